//! The command line of `annulus bench all`.

use std::path::PathBuf;

const ALL_HELP: &str = "\
Examples:
  annulus bench all --out report
      measures in the current directory; at most 20 minutes
  annulus bench all --out report --dir /mnt/nvme

What it measures:
  direct, polled and cached reads, and direct writes; echo and HTTP servers; installed Redis,
  memcached and nginx under `annulus run`; reads and messages over an increasing number of
  processors. `annulus doctor` says which of these this machine can show. Each part is an
  ordinary `annulus bench file` or `annulus bench net` in a process of its own, and the page has
  its command.

Output:
  FOLDER/report.html has the tables, spreads and verdicts of all parts, and the machine.
  FOLDER/report.json has the results of each run. Both have the processor, the kernel, the disk
  and the command lines, and no name of the host or the user.

Exit code:
  0 all parts were measured, or are not available here; 1 a run failed; 2 the command line is
  wrong.";

#[derive(Debug, clap::Args)]
#[command(after_long_help = ALL_HELP)]
pub(crate) struct AllArgs {
    /// Folder for report.html and report.json; it is created if necessary
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: PathBuf,

    /// Directory for test files, on the disk to measure [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,

    /// Time for all parts, in minutes: at least 8, for all variants and five repeats
    #[arg(long, value_name = "N", default_value_t = 18, value_parser = clap::value_parser!(u64).range(8..=240))]
    pub(crate) minutes: u64,

    /// Measure each part only briefly, to see whether it works; the figures show nothing
    #[arg(long, conflicts_with = "minutes")]
    pub(crate) short: bool,

    /// Replace the files of an earlier report
    #[arg(long)]
    pub(crate) replace: bool,
}
