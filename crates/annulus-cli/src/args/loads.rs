//! The named loads of `annulus bench file`. A new load is an entry of [`LOADS`], and is stated nowhere else.
//!
//! A load sets only the options that were not given: an option beside `--load` takes precedence.

use std::time::Duration;

use clap::ValueEnum;
use clap::builder::PossibleValue;

/// The kind of operations and their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rw {
    /// Sequential reads
    Read,
    /// Sequential writes
    Write,
    /// Random reads
    Randread,
    /// Random writes
    Randwrite,
    /// Sequential reads and writes, mixed by --rwmixread
    Readwrite,
    /// Random reads and writes, mixed by --rwmixread
    Randrw,
}

/// The role of the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cache {
    /// `O_DIRECT`: the page cache is bypassed.
    Direct,
    /// The file is not in the page cache, and no block is used twice.
    Cold,
    /// The whole file is in the page cache.
    Hot,
    /// The memory limit is reached, and the page cache holds a part of the file.
    Full,
}

impl Cache {
    /// Returns the word for names of files.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Cache::Direct => "direct",
            Cache::Cold => "cold",
            Cache::Hot => "hot",
            Cache::Full => "full",
        }
    }

    pub(crate) fn label(self) -> &'static str {
        match self {
            Cache::Direct => "direct",
            Cache::Cold => "buffered, cold",
            Cache::Hot => "buffered, hot",
            Cache::Full => "buffered, memory full",
        }
    }
}

/// A set of options with a name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) name: &'static str,
    help: &'static str,
    pub(crate) rw: Rw,
    pub(crate) block_bytes: u64,
    pub(crate) depths: &'static [usize],
    pub(crate) threads: Option<usize>,
    pub(crate) files: usize,
    /// Every write is durable.
    pub(crate) durable: bool,
    /// The states of the page cache. Each has a table.
    pub(crate) caches: &'static [Cache],
    /// The number of blocks of the tool's file, if it matters.
    pub(crate) own_blocks: Option<u64>,
    /// Use each block once, and end the run then.
    pub(crate) once: bool,
    /// Each operation opens, queries, reads and closes a small file.
    pub(crate) opens: bool,
    /// True if it does so with the function that reads a whole file.
    pub(crate) whole: bool,
    /// Each operation reads many pages that are in memory.
    pub(crate) resident: bool,
    /// Operations read the first file only; some variants have a thread that reads the others meanwhile.
    pub(crate) scan: bool,
    /// Count system calls in one more run of each variant.
    pub(crate) syscalls: bool,
    /// The memory limit of runs that start with the memory full.
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) runtime: Duration,
    /// The variants.
    pub(crate) variants: &'static [&'static str],
}

impl ValueEnum for Load {
    fn value_variants<'a>() -> &'a [Load] {
        &LOADS
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name).help(self.help))
    }
}

/// The options without `--load`.
pub(crate) const PLAIN: Load = Load {
    name: "",
    help: "",
    rw: Rw::Randread,
    block_bytes: 4 << 10,
    depths: &[8, 32],
    threads: None,
    files: 1,
    durable: false,
    caches: &[Cache::Direct],
    own_blocks: None,
    once: false,
    opens: false,
    whole: false,
    resident: false,
    scan: false,
    syscalls: false,
    memory_bytes: None,
    runtime: Duration::from_secs(1),
    variants: &["default"],
};

/// The loads, in the order of the help.
static LOADS: [Load; 12] = [
    Load {
        name: "sequential-read",
        help: "Sequential reads of a large file: --rw read --bs 16k --depth 64 --buffered",
        rw: Rw::Read,
        ..MAPPED
    },
    Load {
        name: "random-read",
        help: "Random reads of a large file: --rw randread --bs 16k --depth 64 --buffered",
        ..MAPPED
    },
    Load {
        name: "durable-write",
        help: "Each write on stable storage before it completes: \
               --rw randwrite --bs 16k --depth 64 --sync each --buffered",
        rw: Rw::Randwrite,
        durable: true,
        ..MAPPED
    },
    Load {
        name: "mixed-threads",
        help: "Reads and writes from 32 threads: \
               --rw readwrite --bs 16k --depth 2048 --threads 32 --buffered",
        rw: Rw::Readwrite,
        depths: &[2048],
        threads: Some(32),
        variants: &["default", "mmap-sync"],
        ..MAPPED
    },
    Load {
        name: "many-files",
        help: "Tables of a database that exceed the memory: \
               --files 128 --bs 4k --depth 8,32,512 --memory 1G --buffered",
        depths: &[8, 32, 512],
        files: 128,
        caches: &[Cache::Full],
        memory_bytes: Some(1 << 30),
        // Long enough for a steady state of what is in memory.
        runtime: Duration::from_secs(5),
        variants: &["default", "pool", "pool-tokio", "mmap-tokio"],
        ..PLAIN
    },
    Load {
        name: "beside-scan",
        help: "Reads of data in memory while a thread scans seven times as much: \
               --files 8 --bs 4k --depth 1 --memory 512M --buffered",
        depths: &[1],
        files: 8,
        caches: &[Cache::Full],
        scan: true,
        memory_bytes: Some(512 << 20),
        runtime: Duration::from_secs(5),
        variants: &[
            "pread",
            "pread-beside-scan",
            "pread-beside-uncached",
            "annulus-tokio",
            "annulus-tokio-beside-scan",
            "annulus-tokio-beside-uncached",
        ],
        ..PLAIN
    },
    Load {
        name: "resident",
        help: "256 pages in memory per operation, mapped and in a page pool: a word of each, a copy of each, \
               batches of 16: --bs 4k --depth 1,2 --hot",
        depths: &[1, 2],
        caches: &[Cache::Hot],
        own_blocks: Some(128 << 10),
        resident: true,
        variants: &[
            "mmap-words",
            "mmap-copies",
            "mmap-batches",
            "pool-with",
            "pool-guards",
            "pool-copies",
            "pool-batches",
        ],
        ..PLAIN
    },
    Load {
        name: "aio-uring",
        help: "Linux AIO, io_uring and SQPOLL, direct and buffered: --bs 4k --depth 1,32,128,256",
        depths: &[1, 32, 128, 256],
        caches: &[Cache::Direct, Cache::Cold],
        variants: &[
            "annulus-own",
            "annulus-arena",
            "annulus-sqpoll",
            "base-unregistered",
            "base-sqpoll",
            "libaio",
        ],
        ..PLAIN
    },
    Load {
        name: "ranges",
        help: "Many tasks with a range each, also under Tokio: --bs 64k --depth 20000 --runtime 5 --buffered",
        block_bytes: 64 << 10,
        depths: &[20_000],
        caches: &[Cache::Cold],
        // At this depth, an operation takes nearly a second.
        runtime: Duration::from_secs(5),
        variants: &[
            "default",
            "annulus-tokio-mt",
            "annulus-arena-direct",
            "annulus-tokio-arena-direct",
            "pread-512",
            "pread-512-direct",
        ],
        ..PLAIN
    },
    Load {
        name: "small-files",
        help: "Open, metadata, read and close of each file, cached and cold: \
               --files 10000 --bs 4k --depth 64 --syscalls",
        ..SMALL_FILES
    },
    Load {
        name: "whole-files",
        help: "One call per file that reads it whole, such as std::fs::read: options of small-files",
        whole: true,
        ..SMALL_FILES
    },
    Load {
        name: "tokio-8367",
        help: "32 tasks with 1,000 reads each of a large file, cold and cached: --bs 128k --depth 32",
        block_bytes: 128 << 10,
        depths: &[32],
        caches: &[Cache::Cold, Cache::Hot],
        own_blocks: Some(32_000),
        once: true,
        // The limit for a slow disk.
        runtime: Duration::from_secs(120),
        variants: &[
            "default",
            "annulus-tokio-mt",
            "annulus-arena-direct",
            "annulus-tokio-arena-direct",
            "pread-direct",
        ],
        ..PLAIN
    },
];

/// Blocks of 16 KiB, 64 outstanding, through the page cache, so that `mmap` can take part.
const MAPPED: Load = Load {
    block_bytes: 16 << 10,
    depths: &[64],
    caches: &[Cache::Cold],
    ..PLAIN
};

/// 10,000 files, as many at once as a build or a copy has.
const SMALL_FILES: Load = Load {
    depths: &[64],
    files: 10_000,
    caches: &[Cache::Hot, Cache::Cold],
    once: true,
    opens: true,
    syscalls: true,
    // The limit for a slow disk.
    runtime: Duration::from_secs(120),
    variants: &[
        "annulus",
        "annulus-own-tasks",
        "annulus-tokio",
        "annulus-tokio-mt",
        "pread",
        "tokio-fs",
        "tokio-blocking",
        "null",
    ],
    ..PLAIN
};
