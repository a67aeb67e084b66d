//! The command line of `annulus doctor`.

use std::path::PathBuf;

use clap::ValueEnum;

const DOCTOR_HELP: &str = "\
Examples:
  annulus doctor
      reports what io_uring can do here, what it costs, and what to change; takes two seconds
  annulus doctor /data
      also checks the file system and the device of /data
  annulus doctor /dev/nvme0n1 --quick --json
  annulus doctor --profile docker --for redis-server >annulus.json
      writes the seccomp profile of a container that may use io_uring, and says what it opens
  sudo -u postgres annulus doctor /var/lib/postgresql --for postgresql --max-connections 300
      reports whether PostgreSQL 18 starts with io_method = io_uring

Access to PATH:
  PATH is only read. Reads are measured on PATH if it is a readable file or device of at least
  1 MiB. If PATH is a directory, they are measured on an unnamed temporary file of 4 MiB in it.

Exit code:
  0 everything that Annulus can use is available; 1 io_uring works with restrictions; 2 the
  command line is wrong; 77 io_uring is not available (Annulus then uses epoll and blocking
  threads). With --for postgresql: 0 it starts; 1 it starts with restrictions; 77 it does not.";

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

    /// Print the rules under which a container or a service may use io_uring: a seccomp profile, or lines of a unit
    #[arg(long, value_name = "KIND", conflicts_with_all = ["path", "json", "quick"])]
    pub(crate) profile: Option<ProfileName>,

    /// The command of the server that --profile is for. Without --profile: `postgresql`, to find out whether PostgreSQL
    /// 18 starts with io_method = io_uring under the limits of this user
    #[arg(long = "for", value_name = "COMMAND", conflicts_with = "json")]
    pub(crate) server: Option<String>,

    /// The max_connections of PostgreSQL
    #[arg(
        long,
        value_name = "NUMBER",
        default_value = "100",
        requires = "server",
        conflicts_with = "profile"
    )]
    pub(crate) max_connections: u16,
}

/// The environment that a profile is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProfileName {
    Docker,
    Podman,
    Kubernetes,
    Systemd,
}
