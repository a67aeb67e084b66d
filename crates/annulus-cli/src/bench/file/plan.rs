//! Converts the arguments into a plan, and refuses every combination that can be refused without touching the disk.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::PossibleValue;

use super::variant::PAGES_PER_OP;
use crate::args::{Cache, FileArgs, Load, Rw, Sync};
use crate::fault::Fault;

/// The unit of blocks: every disk supports it, and a smaller block has no space for a tag.
const BLOCK_MULTIPLE: u64 = 512;
/// The largest block: a power of two that fits an SQE's 32-bit length.
const BLOCK_MAX: u64 = 1 << 30;
/// The limit on files: each is open twice, and once more in an engine.
const FILES_MAX: usize = 4096;
/// The limit on small files, which are open only during an operation.
const SMALL_FILES_MAX: usize = 1_000_000;
/// The least memory limit that leaves space for the process itself.
const MEMORY_MIN: u64 = 16 << 20;
/// The ratio of data to memory from which the kernel reclaims each block before it is used again.
const FORGETS: u64 = 2;

/// The options of a comparison.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The load, whose own values the other fields replace.
    pub(crate) load: Load,
    pub(crate) path: Option<PathBuf>,
    pub(crate) dir: Option<PathBuf>,
    pub(crate) overwrite: bool,
    pub(crate) rw: Rw,
    pub(crate) write_percent: u8,
    pub(crate) block_bytes: u64,
    pub(crate) offset_bytes: u64,
    /// The total size of all files.
    pub(crate) size_bytes: Option<u64>,
    pub(crate) files: usize,
    /// Blocks are chosen by Zipf's law with this exponent.
    pub(crate) zipf: Option<f64>,
    /// The memory limit of the process, page cache included.
    pub(crate) memory_bytes: Option<u64>,
    /// Complete a write only when it is on stable storage.
    pub(crate) durable: bool,
    pub(crate) cache: Cache,
    /// The user selected `cache`, so it must not be replaced.
    pub(crate) cache_requested: bool,
    pub(crate) depths: Vec<usize>,
    pub(crate) threads: Option<usize>,
    pub(crate) drivers: Option<usize>,
    pub(crate) runtime: Duration,
    pub(crate) repeat: usize,
    pub(crate) seed: u64,
}

impl Plan {
    /// Returns a plan for each state of the page cache. There are several only if the load has several and no option
    /// selects one.
    pub(crate) fn all(args: &FileArgs) -> Result<Vec<Plan>, Fault> {
        let (caches, requested) = match args {
            _ if args.hot => (&[Cache::Hot][..], true),
            _ if args.cold || args.buffered => (&[Cache::Cold][..], true),
            _ if args.direct => (&[Cache::Direct][..], true),
            _ => (args.load_or_plain().caches, false),
        };
        // Short, so that it is easy to type.
        let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
        let plan = |&cache| Plan::new(args, cache, requested || cache != Cache::Direct, seed);
        caches.iter().map(plan).collect()
    }

    fn new(args: &FileArgs, cache: Cache, cache_requested: bool, seed: u64) -> Result<Plan, Fault> {
        let load = args.load_or_plain();
        let rw = args.rw.unwrap_or(load.rw);
        let mut plan = Plan {
            load,
            path: args.path.clone(),
            dir: args.dir.clone(),
            overwrite: args.overwrite,
            rw,
            write_percent: match rw {
                Rw::Read | Rw::Randread => 0,
                Rw::Write | Rw::Randwrite => 100,
                Rw::Readwrite | Rw::Randrw => 100 - args.rwmixread,
            },
            block_bytes: args.bs.unwrap_or(load.block_bytes),
            offset_bytes: args.offset,
            size_bytes: args.size,
            files: args.files.unwrap_or(load.files),
            zipf: args.zipf,
            memory_bytes: (args.memory)
                .or_else(|| load.memory_bytes.filter(|_| cache == Cache::Full)),
            durable: args.sync.map_or(load.durable, |sync| sync == Sync::Each),
            cache,
            cache_requested,
            depths: depths(&args.depth, load.depths),
            threads: args.threads.or(load.threads),
            drivers: args.drivers,
            runtime: args.runtime.unwrap_or(load.runtime),
            repeat: args.repeat,
            seed,
        };
        plan.check()?;
        if args.sync == Some(Sync::Each) && !plan.writes() {
            return Err(Fault::usage("--sync each: this load writes nothing"));
        }
        // `--rw` may turn a load that syncs its writes into one without writes.
        plan.durable &= plan.writes();
        Ok(plan)
    }

    /// Returns whether a block of `bytes` of data has left the page cache before it is used again.
    pub(crate) fn forgets(&self, bytes: u64) -> bool {
        self.memory_bytes
            .is_some_and(|memory| bytes >= FORGETS * memory)
    }

    pub(crate) fn writes(&self) -> bool {
        self.write_percent > 0
    }

    pub(crate) fn random(&self) -> bool {
        !matches!(self.rw, Rw::Read | Rw::Write | Rw::Readwrite)
    }

    pub(crate) fn depth_max(&self) -> usize {
        self.depths.iter().copied().max().unwrap_or(1)
    }

    /// Returns the operations for the heading, for example `randrw (70 % reads)`.
    pub(crate) fn description(&self) -> String {
        let rw = self.rw.to_possible_value();
        let rw = rw.as_ref().map_or("", PossibleValue::get_name);
        match self.rw {
            _ if self.load.whole => "whole files".into(),
            _ if self.load.opens => "open, metadata, read, close".into(),
            _ if self.load.resident => format!("{PAGES_PER_OP} pages in memory per operation"),
            Rw::Readwrite | Rw::Randrw => format!("{rw} ({} % reads)", 100 - self.write_percent),
            _ => match self.zipf {
                Some(exponent) => format!("{rw} (Zipf {exponent})"),
                None => rw.to_string(),
            },
        }
    }

    fn check(&self) -> Result<(), Fault> {
        let bs = self.block_bytes;
        if bs == 0 || !bs.is_multiple_of(BLOCK_MULTIPLE) || bs > BLOCK_MAX {
            return Err(usage!(
                "--bs {bs}: a block is a multiple of {BLOCK_MULTIPLE} bytes, up to 1 GiB"
            ));
        }
        let files = self.files;
        let most = match self.load.opens {
            true => SMALL_FILES_MAX,
            false => FILES_MAX,
        };
        if files == 0 || files > most {
            return Err(usage!("--files {files}: from 1 to {most}"));
        }
        if self.load.opens
            && (self.writes() || self.cache == Cache::Direct || self.size_bytes.is_some())
        {
            return Err(Fault::usage(
                "a load of small files reads whole files through the page cache: use --files and --bs, and not \
                 --size, --direct or a --rw that writes",
            ));
        }
        if let Some(size) = self.size_bytes {
            if size == 0 {
                return Err(Fault::usage("--size 0: it must be at least one block"));
            }
            if !size.is_multiple_of(bs) {
                return Err(usage!(
                    "--size {size} is not a multiple of --bs {bs}; try --size {}",
                    size - size % bs
                ));
            }
            if size / bs < files as u64 {
                return Err(usage!(
                    "--files {files}: --size {size} has fewer blocks of {bs} bytes than that"
                ));
            }
        }
        if self.zipf.is_some() && (!self.random() || self.load.once || self.cache == Cache::Cold) {
            return Err(Fault::usage(
                "--zipf: blocks repeat, so use a random load that is --hot, --direct or --load many-files",
            ));
        }
        if !self.offset_bytes.is_multiple_of(bs) {
            return Err(usage!(
                "--offset {} is not a multiple of --bs {bs}",
                self.offset_bytes
            ));
        }
        if let Some(memory) = self.memory_bytes.filter(|&memory| memory < MEMORY_MIN) {
            return Err(usage!(
                "--memory {memory}: the process itself needs at least {} MiB",
                MEMORY_MIN >> 20
            ));
        }
        Ok(())
    }
}

/// Returns the requested depths, or those of the load, without duplicates.
fn depths(requested: &[usize], load: &[usize]) -> Vec<usize> {
    let listed = if requested.is_empty() {
        load
    } else {
        requested
    };
    let mut depths = Vec::new();
    for &depth in listed {
        if !depths.contains(&depth) {
            depths.push(depth);
        }
    }
    depths
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, BenchTarget, Command, Load};

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
        for load in Load::value_variants() {
            let plan = plan(&["--load", load.name]);
            assert_eq!(plan.cache, load.caches[0], "{load:?}");
            let names: Vec<String> = load.variants.iter().map(|name| name.to_string()).collect();
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
