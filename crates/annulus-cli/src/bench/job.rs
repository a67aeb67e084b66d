//! What was typed, turned into what is measured; everything that can be refused without touching the
//! disk is refused here.

use std::path::PathBuf;
use std::time::Duration;

use crate::args::{FileArgs, Rw};
use crate::fault::Fault;

/// More operations outstanding than any device has queue entries for.
const DEPTH_MAX: usize = 4096;
/// Every disk addresses at least this; smaller operations could not carry a tag.
const BLOCK_MULTIPLE: u64 = 512;
/// An SQE's length is 32 bits; a power of two below it.
const BLOCK_MAX: u64 = 1 << 30;
/// A run takes seconds: more repeats than this are a typing error.
const REPEAT_MAX: usize = 1000;
const THREADS_MAX: usize = 256;

/// How the page cache takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cache {
    /// `O_DIRECT`: not at all.
    Direct,
    /// Nothing of the file is in it, and no block is used twice.
    Cold,
    /// The whole file is in it.
    Hot,
}

impl Cache {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Cache::Direct => "direct",
            Cache::Cold => "buffered, cold",
            Cache::Hot => "buffered, hot",
        }
    }
}

/// A whole comparison, as asked for.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) path: Option<PathBuf>,
    pub(crate) dir: Option<PathBuf>,
    pub(crate) overwrite: bool,
    pub(crate) rw: Rw,
    pub(crate) write_percent: u8,
    pub(crate) block_bytes: u64,
    pub(crate) offset_bytes: u64,
    pub(crate) size_bytes: Option<u64>,
    pub(crate) cache: Cache,
    /// Whether `cache` was asked for by name, and must not be replaced.
    pub(crate) cache_asked: bool,
    pub(crate) depths: Vec<usize>,
    pub(crate) threads: Option<usize>,
    pub(crate) runtime: Duration,
    pub(crate) repeat: usize,
    pub(crate) seed: u64,
}

impl Plan {
    pub(crate) fn new(args: &FileArgs) -> Result<Plan, Fault> {
        let (cache, cache_asked) = match args {
            _ if args.hot => (Cache::Hot, true),
            _ if args.cold || args.buffered => (Cache::Cold, true),
            _ => (Cache::Direct, args.direct),
        };
        check_numbers(args)?;
        let mut depths = Vec::new();
        for &depth in &args.depth {
            if depth == 0 || depth > DEPTH_MAX {
                return Err(Fault::usage(format!(
                    "--depth {depth}: a depth is from 1 to {DEPTH_MAX}"
                )));
            }
            if !depths.contains(&depth) {
                depths.push(depth);
            }
        }
        Ok(Plan {
            path: args.path.clone(),
            dir: args.dir.clone(),
            overwrite: args.overwrite,
            rw: args.rw,
            write_percent: match args.rw {
                Rw::Read | Rw::Randread => 0,
                Rw::Write | Rw::Randwrite => 100,
                Rw::Randrw => 100 - args.rwmixread,
            },
            block_bytes: args.bs,
            offset_bytes: args.offset,
            size_bytes: args.size,
            cache,
            cache_asked,
            depths,
            threads: args.threads,
            runtime: args.runtime,
            repeat: args.repeat,
            // A seed that is easily typed again.
            seed: args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000)),
        })
    }

    pub(crate) fn writes(&self) -> bool {
        self.write_percent > 0
    }

    pub(crate) fn random(&self) -> bool {
        !matches!(self.rw, Rw::Read | Rw::Write)
    }

    pub(crate) fn depth_max(&self) -> usize {
        self.depths.iter().copied().max().unwrap_or(1)
    }

    /// The operations in words, for the heading: `randread 4 KiB`.
    pub(crate) fn words(&self) -> String {
        let rw = match self.rw {
            Rw::Read => "read",
            Rw::Write => "write",
            Rw::Randread => "randread",
            Rw::Randwrite => "randwrite",
            Rw::Randrw => "randrw",
        };
        match self.rw {
            Rw::Randrw => format!("{rw} ({} % reads)", 100 - self.write_percent),
            _ => rw.to_string(),
        }
    }
}

fn check_numbers(args: &FileArgs) -> Result<(), Fault> {
    let bs = args.bs;
    if bs == 0 || !bs.is_multiple_of(BLOCK_MULTIPLE) || bs > BLOCK_MAX {
        return Err(Fault::usage(format!(
            "--bs {bs}: a block is a multiple of {BLOCK_MULTIPLE} bytes, up to 1 GiB"
        )));
    }
    if let Some(size) = args.size {
        if size == 0 {
            return Err(Fault::usage("--size 0: there is nothing to read"));
        }
        if !size.is_multiple_of(bs) {
            return Err(Fault::usage(format!(
                "--size {size} is not a multiple of --bs {bs}; try --size {}",
                size - size % bs
            )));
        }
    }
    if !args.offset.is_multiple_of(bs) {
        return Err(Fault::usage(format!(
            "--offset {} is not a multiple of --bs {bs}",
            args.offset
        )));
    }
    if args.repeat == 0 || args.repeat > REPEAT_MAX {
        return Err(Fault::usage(format!(
            "--repeat {}: from 1 to {REPEAT_MAX}",
            args.repeat
        )));
    }
    if let Some(threads) = args
        .threads
        .filter(|&threads| threads == 0 || threads > THREADS_MAX)
    {
        return Err(Fault::usage(format!(
            "--threads {threads}: from 1 to {THREADS_MAX}"
        )));
    }
    Ok(())
}
