//! What can be typed behind `annulus bench file`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, ValueEnum};

use super::BenchWatchArgs;
use super::TraceArgs;
use super::job::JobArgs;
use super::report::PictureArgs;
use super::value::{parse_bytes, parse_seconds};

/// Which operations, in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rw {
    /// Reads, one block after the other
    Read,
    /// Writes, one block after the other
    Write,
    /// Reads in random order
    Randread,
    /// Writes in random order
    Randwrite,
    /// Both, one block after the other, in the proportion of --rwmixread
    Readwrite,
    /// Both in random order, in the proportion of --rwmixread
    Randrw,
}

/// A load by name; what it sets, every option beside it overrides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LoadName {
    /// A large file from end to end: --rw read --bs 16k --depth 64 --buffered
    SequentialRead,
    /// The same at random: --rw randread --bs 16k --depth 64 --buffered
    RandomRead,
    /// Every write safe before it is answered: --rw randwrite --bs 16k --depth 64 --sync each --buffered
    DurableWrite,
    /// 32 threads read and write: --rw readwrite --bs 16k --depth 2048 --threads 32 --buffered
    MixedThreads,
    /// A database's tables: --files 128 --bs 4k --depth 8,32,512 --buffered, best with --memory
    ManyFiles,
    /// Many tasks, each with its range: --bs 64k --depth 20000 --runtime 5 --buffered, and Annulus under Tokio
    Ranges,
}

/// When writes are flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sync {
    /// Not while it is measured
    None,
    /// Each is on stable storage before it is answered (RWF_DSYNC; msync; tokio-fs: sync_data)
    Each,
}

// Lines of at most 96 columns: the parser wraps longer ones a second time.
const FILE_HELP: &str = "\
Examples:
  annulus bench file
      a file of its own in the current directory, direct random reads, one to two minutes
  annulus bench file /data/table.sst --depth 1,8,64
      your file: only read, never written
  annulus bench file --dir /mnt/nvme --rw randrw --bs 16k --depth 64
  annulus bench file --hot --variants annulus,pread,mmap --repeat 9 --json hot.json
  annulus bench file --load many-files --memory 2G
      128 files four times as large as the memory they may be cached in; needs root

How it measures:
  Every variant keeps exactly --depth operations outstanding. After a short ramp, latency is
  taken from submission to completion. Variants take turns in a shuffled order, --repeat
  times; the table shows medians over the repeats, and ratios are taken inside one repeat.
  CPU time is that of the whole process, kernel threads of the ring included.
  Every answer is checked: in a file we made, its length and a tag in every 4 KiB; in a file of
  yours, its length, and of one answer in 64 the content, against a pread afterwards.

Writes:
  A write is done when the kernel says so; without --sync each nothing is flushed within the
  measured time. Direct writes have reached the device (perhaps its cache), buffered ones the
  page cache. After each run the file is flushed, and a sample of what was written is read back
  and checked.

Threads:
  --threads N means, for the rings and libaio, N threads with a share of the depth each; for
  Annulus, N threads that ask, and up to N drivers (--drivers); for Tokio, N workers; for pread
  and mmap, which block a thread per operation, at most N threads, so fewer outstanding.

Your data:
  Without PATH, or if PATH is a directory, a file is made; it has no name from the moment it is
  open, so nothing stays behind. An existing file or device is only read, unless --overwrite is
  given: then the tested part is filled with test data first.

Exit code:
  0 done; 1 a failed run (wrong answers, no space, a variant that hangs); 2 used wrongly;
  3 all went well, but an --alert was raised in a run of Annulus.";

#[derive(Debug, clap::Args)]
#[command(after_long_help = FILE_HELP)]
#[command(group = ArgGroup::new("written").multiple(true).args(["json", "html", "heatmap", "fio_json"]))]
pub(crate) struct FileArgs {
    /// A file or device to read, or a directory to make a test file in
    pub(crate) path: Option<PathBuf>,

    /// A load by name; options beside it override what it sets
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) load: Option<LoadName>,

    /// What to do [default: randread]
    #[arg(long, value_enum)]
    pub(crate) rw: Option<Rw>,

    /// Of readwrite and randrw, the percentage of reads
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) rwmixread: u8,

    /// Length of each operation; k, M and G are powers of 1024 [default: 4k]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) bs: Option<u64>,

    /// Spread the data over N files of our own; every operation picks one [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) files: Option<usize>,

    /// Length of what is used, of all files together [default: all; what we make: 1 GiB, a quarter of the free space]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) size: Option<u64>,

    /// Where in PATH that part begins
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_bytes)]
    pub(crate) offset: u64,

    /// Bypass the page cache (O_DIRECT); the default where the file system can
    #[arg(long, conflicts_with_all = ["buffered", "cold", "hot"])]
    pub(crate) direct: bool,

    /// Go through the page cache
    #[arg(long)]
    pub(crate) buffered: bool,

    /// Buffered, with nothing of the file in the page cache, no block twice (the default for --buffered)
    #[arg(long, conflicts_with = "hot")]
    pub(crate) cold: bool,

    /// Buffered, with all of the file in the page cache
    #[arg(long)]
    pub(crate) hot: bool,

    /// Let everything measured use BYTES of memory, its page cache included (a cgroup; needs root)
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) memory: Option<u64>,

    /// When writes are flushed [default: none]
    #[arg(long, value_enum, value_name = "WHEN")]
    pub(crate) sync: Option<Sync>,

    /// Operations outstanding in all; several are measured one after the other [default: 8,32]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) depth: Vec<usize>,

    /// Threads that ask: rings, contexts, callers, workers; at most N for pread and mmap [default: 1; tokio: 2]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,

    /// Driver threads of Annulus [default: as --threads, at most one per processor]
    #[arg(long, value_name = "N")]
    pub(crate) drivers: Option<usize>,

    /// How long each run is measured, in seconds [default: 1]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) runtime: Option<Duration>,

    /// How often each variant is measured
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) repeat: usize,

    /// Who is measured: `default`, `all` or names (see --list); the base always is
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "default"
    )]
    pub(crate) variants: Vec<String>,

    /// Write the figures of each run to FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Write the timeline of each run to the FILE of --json as well: `bench report` draws heat maps from it
    #[arg(long, requires = "json")]
    pub(crate) timeline: bool,

    #[command(flatten)]
    pub(crate) pictures: PictureArgs,

    /// Replace the FILE of --json, --fio-json, --html or --heatmap if it exists
    #[arg(long, requires = "written")]
    pub(crate) replace: bool,

    /// Where to make the test file [default: the current directory]
    #[arg(long, value_name = "DIR", conflicts_with = "path")]
    pub(crate) dir: Option<PathBuf>,

    /// Allow writing to PATH: its content between --offset and --size is DESTROYED
    #[arg(long)]
    pub(crate) overwrite: bool,

    /// Seed of all that is random, to repeat a run exactly
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    #[command(flatten)]
    pub(crate) watch: BenchWatchArgs,

    /// List the variants and do nothing
    #[arg(long)]
    pub(crate) list: bool,

    #[command(flatten)]
    pub(crate) job: JobArgs,

    #[command(flatten)]
    pub(crate) trace: TraceArgs,
}
