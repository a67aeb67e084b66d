//! What can be typed behind `annulus doctor`.

use std::path::PathBuf;

const DOCTOR_HELP: &str = "\
Examples:
  annulus doctor
      what io_uring can do here, what it costs, and what to change; about two seconds
  annulus doctor /data
      the same with the file system and the device of /data
  annulus doctor /dev/nvme0n1 --quick --json

What it does to PATH:
  It is only read. If it is a readable file or device of 1 MiB or more, reads are measured on it;
  if it is a directory, on a file of 4 MiB made in it, which has no name and is gone afterwards.

Exit code:
  0 all that Annulus can use is there; 1 io_uring works with less; 2 used wrongly; 77 there is no
  io_uring here (everything works on epoll and blocking threads).";

#[derive(Debug, clap::Args)]
#[command(after_long_help = DOCTOR_HELP)]
pub(crate) struct DoctorArgs {
    /// A file, a directory or a device: its file system and its device [default: the current directory]
    pub(crate) path: Option<PathBuf>,

    /// Print everything as JSON instead of text
    #[arg(long)]
    pub(crate) json: bool,

    /// Leave out the measurement
    #[arg(long)]
    pub(crate) quick: bool,
}
