//! The command line of `annulus doctor`.

use std::path::PathBuf;

const DOCTOR_HELP: &str = "\
Examples:
  annulus doctor
      reports what io_uring can do here, what it costs, and what to change; takes two seconds
  annulus doctor /data
      also checks the file system and the device of /data
  annulus doctor /dev/nvme0n1 --quick --json

Access to PATH:
  PATH is only read. Reads are measured on PATH if it is a readable file or device of at least
  1 MiB. If PATH is a directory, they are measured on an unnamed temporary file of 4 MiB in it.

Exit code:
  0 everything that Annulus can use is available; 1 io_uring works with restrictions; 2 the
  command line is wrong; 77 io_uring is not available (Annulus then uses epoll and blocking
  threads).";

#[derive(Debug, clap::Args)]
#[command(after_long_help = DOCTOR_HELP)]
pub(crate) struct DoctorArgs {
    /// File, directory or device whose file system and device are checked [default: the current directory]
    pub(crate) path: Option<PathBuf>,

    /// Print the report as JSON instead of text
    #[arg(long)]
    pub(crate) json: bool,

    /// Skip the measurement
    #[arg(long)]
    pub(crate) quick: bool,
}
