//! The command line of `annulus bench multiget`.

use std::ffi::OsString;
use std::path::PathBuf;

const MULTIGET_HELP: &str = "\
Examples:
  annulus bench multiget                  the whole comparison, in about ten minutes
  annulus bench multiget -- --short       a quick check
  annulus bench multiget -- --help        the options of the program";

#[derive(Debug, clap::Args)]
#[command(after_long_help = MULTIGET_HELP)]
pub(crate) struct MultigetArgs {
    /// The program annulus-multiget, if it is in another place
    ///
    /// By default it is searched beside this tool, in bench/target/release of the current
    /// directory and of those above it, and in PATH.
    #[arg(long, value_name = "FILE")]
    pub(crate) program: Option<PathBuf>,

    /// Options of the program
    #[arg(last = true, value_name = "OPTION")]
    pub(crate) options: Vec<OsString>,
}
