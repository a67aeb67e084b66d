//! The command lines of `annulus enable` and `annulus disable`.

use std::path::PathBuf;

const ENABLE_HELP: &str = "\
Writes /etc/systemd/system/SERVICE.service.d/annulus.conf, which sets LD_PRELOAD, and restarts
the service. Where the unit has NoExecPaths=, the file allows the library; where its
SystemCallFilter= refuses io_uring, it allows those calls. Other settings stay as they are.

The service must run, and listen on a TCP address. After the restart it is checked: it is active
and not restarted again, its addresses accept connections, and a ring serves a connection. If a
check fails, the file is removed and the service restarted without it.

Needs root. Exit status: 0 if the service is served, 1 if not (its unit is as before), 2 for a
wrong command line.

Examples:
  annulus enable redis-server
  annulus status                    # what is served, and what passes through
  annulus disable redis-server";

const DISABLE_HELP: &str = "\
Removes the file that `annulus enable` wrote, and restarts the service if it runs. Does nothing if
there is no such file. Needs root.";

#[derive(Debug, clap::Args)]
#[command(after_long_help = ENABLE_HELP)]
pub(crate) struct EnableArgs {
    /// Name of the service, with or without `.service`
    #[arg(value_name = "SERVICE")]
    pub(crate) service: String,

    /// Path of the library [default: as for `annulus run`]
    #[arg(long, value_name = "FILE")]
    pub(crate) library: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
#[command(after_long_help = DISABLE_HELP)]
pub(crate) struct DisableArgs {
    /// Name of the service, with or without `.service`
    #[arg(value_name = "SERVICE")]
    pub(crate) service: String,
}
