//! Named loads, each a set of options.
//!
//! A load sets only the options that were not given: an option beside `--load` takes precedence.

use std::time::Duration;

use clap::ValueEnum;

use super::plan::Cache;
use crate::args::{LoadName, Rw};

/// The options of a load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Preset {
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
    /// Count system calls in one more run of each variant.
    pub(crate) syscalls: bool,
    /// The memory limit of runs that start with the memory full.
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) runtime: Duration,
    /// The variants.
    pub(crate) variants: &'static [&'static str],
}

/// The options without `--load`.
pub(crate) const PLAIN: Preset = Preset {
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
    syscalls: false,
    memory_bytes: None,
    runtime: Duration::from_secs(1),
    variants: &["default"],
};

/// Blocks of 16 KiB, 64 outstanding, through the page cache, so that `mmap` can take part.
const MAPPED: Preset = Preset {
    block_bytes: 16 << 10,
    depths: &[64],
    caches: &[Cache::Cold],
    ..PLAIN
};

/// The number of reads at once that a query of a large file makes.
const RANGES: Preset = Preset {
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
};

/// The ways to submit a read, without and with the page cache.
const AIO_URING: Preset = Preset {
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
};

/// 32 tasks with 1,000 reads each.
const TOKIO_8367: Preset = Preset {
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
};

/// 10,000 files, as many at once as a build or a copy has.
const SMALL_FILES: Preset = Preset {
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

/// Small files that are each read by one call of a library.
const WHOLE_FILES: Preset = Preset {
    whole: true,
    ..SMALL_FILES
};

/// Returns the options of `load`.
pub(crate) fn preset(load: Option<LoadName>) -> Preset {
    match load {
        None => PLAIN,
        Some(LoadName::SequentialRead) => Preset {
            rw: Rw::Read,
            ..MAPPED
        },
        Some(LoadName::RandomRead) => MAPPED,
        Some(LoadName::DurableWrite) => Preset {
            rw: Rw::Randwrite,
            durable: true,
            ..MAPPED
        },
        Some(LoadName::MixedThreads) => Preset {
            rw: Rw::Readwrite,
            depths: &[2048],
            threads: Some(32),
            variants: &["default", "mmap-sync"],
            ..MAPPED
        },
        Some(LoadName::ManyFiles) => Preset {
            depths: &[8, 32, 512],
            files: 128,
            caches: &[Cache::Full],
            memory_bytes: Some(1 << 30),
            ..PLAIN
        },
        Some(LoadName::Ranges) => RANGES,
        Some(LoadName::SmallFiles) => SMALL_FILES,
        Some(LoadName::WholeFiles) => WHOLE_FILES,
        Some(LoadName::AioUring) => AIO_URING,
        Some(LoadName::Tokio8367) => TOKIO_8367,
    }
}

/// Returns the name of `load` on the command line.
pub(crate) fn name(load: LoadName) -> Option<String> {
    Some(load.to_possible_value()?.get_name().to_string())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, BenchTarget, Command};
    use crate::bench::file::plan::{Cache, Plan};

    fn plan(line: &[&str]) -> Plan {
        let line = ["annulus", "bench", "file"].iter().chain(line);
        let Command::Bench(bench) = Args::try_parse_from(line).unwrap().command else {
            panic!("not a bench")
        };
        let BenchTarget::File(args) = bench.target else {
            unreachable!()
        };
        Plan::all(&args).unwrap().remove(0)
    }

    #[test]
    fn every_load_is_a_plan_and_its_variants_exist() {
        for load in LoadName::value_variants() {
            let name = load.to_possible_value().unwrap();
            let plan = plan(&["--load", name.get_name()]);
            assert_eq!(plan.cache, preset(Some(*load)).caches[0], "{load:?}");
            let names: Vec<String> = (preset(Some(*load)).variants.iter())
                .map(|name| name.to_string())
                .collect();
            assert!(
                crate::bench::file::variant::choose(&names).is_ok(),
                "{load:?}"
            );
        }
    }

    #[test]
    fn options_take_precedence_over_the_load() {
        let load = plan(&["--load", "durable-write"]);
        assert_eq!((load.block_bytes, load.durable), (16384, true));
        assert_eq!(load.depths, [64]);
        let typed = plan(&[
            "--load",
            "durable-write",
            "--bs",
            "4k",
            "--sync",
            "none",
            "--depth",
            "2,3",
            "--direct",
        ]);
        assert_eq!((typed.block_bytes, typed.durable), (4096, false));
        assert_eq!((typed.rw, typed.cache), (Rw::Randwrite, Cache::Direct));
        assert_eq!(typed.depths, [2, 3]);
    }
}
