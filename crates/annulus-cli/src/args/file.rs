//! The command line of `annulus bench file`.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use super::BenchWatchArgs;
use super::MORE_OPTIONS;
use super::TraceArgs;
use super::job::JobArgs;
use super::loads::{Load, PLAIN, Rw};
use super::report::{Heatmap, OutputArgs};
use super::value::{REPEATS_MAX, parse_bytes, parse_count, parse_exponent, parse_seconds};
use crate::trace::labelled;

/// The time when writes are flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sync {
    /// After the measurement
    None,
    /// Before each write completes (RWF_DSYNC; mmap: msync; tokio-fs: sync_data)
    Each,
}

/// The kernel's limit on the entries of a ring.
const DEPTH_MAX: usize = 32_768;
const THREADS_MAX: usize = 256;

// Lines have at most 96 columns: clap wraps longer ones again.
const FILE_HELP: &str = "\
Examples:
  annulus bench file
      direct random reads of a temporary file in the current directory; one to two minutes
  annulus bench file /data/table.sst --depth 1,8,64
      an existing file, which is read and never written
  annulus bench file --dir /mnt/nvme --rw randrw --bs 16k --depth 64
  annulus bench file --hot --variants annulus,pread,mmap --repeat 9 --json hot.json
  annulus bench file --load many-files --memory 2G
      128 files, together four times as large as the memory for their page cache; needs root

How it measures:
  Every variant keeps exactly --depth operations outstanding. After a short ramp, the latency
  from submission to completion is recorded. The variants run one after the other, in a
  shuffled order, --repeat times. The table shows medians over the repeats, and ratios are
  computed within a repeat. CPU time is that of the whole process, including kernel threads of
  the ring. Every result is checked. In a test file: its length, and a tag in every 4 KiB. In an
  existing file: its length, and for 1 in 64 the content, compared with a later pread.

Writes:
  A write is complete when the kernel reports its completion. Without `--sync each`, nothing is
  flushed during the measurement: direct writes have reached the device (or its cache), buffered
  writes the page cache. After each run the file is flushed, and a sample of the written data is
  read back and checked.

Threads:
  --threads N starts N threads that share the depth (rings, libaio), N submitting threads and up
  to N drivers (Annulus, see --drivers), or N workers (Tokio). pread and mmap block a thread for
  each operation: they get at most N threads, so fewer operations are outstanding.

Your data:
  Without PATH, or if PATH is a directory, a test file is created. It is unlinked as soon as it
  is open, so that it never remains. An existing file or device is only read, unless --overwrite
  is given; then the tested part is first filled with test data.

Exit code:
  0 success; 1 a run failed (wrong result, no space, a variant that hangs); 2 the command line is
  wrong; 3 all runs succeeded, but a run of Annulus raised an --alert.";

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = MORE_OPTIONS, after_long_help = FILE_HELP, next_help_heading = "Load")]
pub(crate) struct FileArgs {
    /// File or device to read, or directory for a test file [default: .]
    #[arg(help_heading = None)]
    pub(crate) path: Option<PathBuf>,

    /// Named load; other options override its settings
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) load: Option<Load>,

    /// Operations and their order [default: randread]
    #[arg(long, value_enum)]
    pub(crate) rw: Option<Rw>,

    /// Percentage of reads in readwrite and randrw
    #[arg(hide_short_help = true)]
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) rwmixread: u8,

    /// Choose blocks by Zipf's law with this exponent, from 0.01 to 0.999
    #[arg(long, value_name = "EXPONENT", value_parser = parse_exponent, hide_short_help = true)]
    pub(crate) zipf: Option<f64>,

    /// Length of each operation, such as 4k or 1M [default: 4k]
    ///
    /// The units k, M and G are powers of 1024.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) bs: Option<u64>,

    /// Spread the data over N test files; every operation picks one [default: 1]
    #[arg(long, value_name = "N", hide_short_help = true)]
    pub(crate) files: Option<usize>,

    /// Length of the tested part [default: all of PATH, or 1 GiB]
    ///
    /// This is the total of all files. A test file takes at most a quarter of the free space by default. A cold run
    /// may need a larger file than 1 GiB.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) size: Option<u64>,

    /// Offset of the tested part in PATH
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_bytes, hide_short_help = true)]
    pub(crate) offset: u64,

    /// Bypass the page cache (O_DIRECT) [default, if supported]
    #[arg(help_heading = "Page cache")]
    #[arg(long, conflicts_with_all = ["buffered", "cold", "hot"])]
    pub(crate) direct: bool,

    /// Use the page cache; implies --cold unless --hot is given
    #[arg(long, help_heading = "Page cache")]
    pub(crate) buffered: bool,

    /// Use the page cache, start with none of the file in it, and read no block twice
    #[arg(
        long,
        conflicts_with = "hot",
        help_heading = "Page cache",
        hide_short_help = true
    )]
    pub(crate) cold: bool,

    /// Use the page cache, with all of the file in it
    #[arg(long, help_heading = "Page cache")]
    pub(crate) hot: bool,

    /// Limit the memory of the measured code to BYTES, including the page cache (uses a cgroup; needs root)
    #[arg(help_heading = "Page cache", hide_short_help = true)]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) memory: Option<u64>,

    /// Flushing of writes [default: none]
    #[arg(long, value_enum, value_name = "WHEN", hide_short_help = true)]
    pub(crate) sync: Option<Sync>,

    /// Operations outstanding, as a list [default: 8,32]
    ///
    /// Each depth of the list is measured in turn, and is shared by all threads.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_count::<DEPTH_MAX>)]
    pub(crate) depth: Vec<usize>,

    /// Submitting threads [default: 1; tokio: 2]
    ///
    /// See "Threads" below.
    #[arg(long, value_name = "N", value_parser = parse_count::<THREADS_MAX>)]
    pub(crate) threads: Option<usize>,

    /// Driver threads of Annulus [default: the value of --threads, at most one per processor]
    #[arg(long, value_name = "N", hide_short_help = true, value_parser = parse_count::<THREADS_MAX>)]
    pub(crate) drivers: Option<usize>,

    /// Length of each run, in seconds [default: 1]
    #[arg(help_heading = "Runs")]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) runtime: Option<Duration>,

    /// Number of runs of each variant
    #[arg(help_heading = "Runs")]
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = parse_count::<REPEATS_MAX>)]
    pub(crate) repeat: usize,

    /// Variants to measure: `default`, `all` or names from --list [default: those of the load]
    ///
    /// The variant `base` is always included.
    #[arg(
        long,
        help_heading = "Runs",
        value_name = "LIST",
        value_delimiter = ','
    )]
    pub(crate) variants: Vec<String>,

    #[command(flatten)]
    pub(crate) output: OutputArgs,

    /// Directory for the test file [default: the current directory]
    #[arg(help_heading = "Test file")]
    #[arg(long, value_name = "DIR", conflicts_with = "path")]
    pub(crate) dir: Option<PathBuf>,

    /// Allow writing to PATH; the tested part is DESTROYED
    #[arg(long, help_heading = "Test file")]
    pub(crate) overwrite: bool,

    /// Seed of all random choices, to repeat a run exactly
    #[arg(long, value_name = "N", help_heading = "Runs", hide_short_help = true)]
    pub(crate) seed: Option<u64>,

    #[command(flatten)]
    pub(crate) watch: BenchWatchArgs,

    /// List the variants, and exit
    #[arg(long, help_heading = "Runs")]
    pub(crate) list: bool,

    #[command(flatten)]
    pub(crate) job: JobArgs,

    #[command(flatten)]
    pub(crate) trace: TraceArgs,
}

impl FileArgs {
    /// Returns the named load, or the options without one.
    pub(crate) fn load_or_plain(&self) -> Load {
        self.load.unwrap_or(PLAIN)
    }

    /// Returns the arguments for one of `count` comparisons. If there are several, its output files have `word` in
    /// their names.
    pub(crate) fn for_one_of(&self, count: usize, word: &str) -> FileArgs {
        let mut args = self.clone();
        let mut paths: Vec<&mut PathBuf> = Vec::new();
        paths.extend(&mut args.output.json);
        paths.extend(&mut args.output.pictures.html);
        paths.extend(&mut args.trace.flamegraph);
        if let Some(Heatmap::File(path)) = &mut args.output.pictures.heatmap {
            paths.push(path);
        }
        for path in paths.into_iter().filter(|_| count > 1) {
            *path = labelled(path, word);
        }
        args
    }
}
