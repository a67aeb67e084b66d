//! What can be typed about looking into a run: its system calls, where its processor time goes.

use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(crate) struct TraceArgs {
    /// Afterwards, in one more run of each, count system calls by name (perf, as root; or strace)
    #[arg(long)]
    pub(crate) syscalls: bool,

    /// Afterwards, in one more run, record where processor time goes, and draw it (perf); of several,
    /// FILE-VARIANT-DEPTH.svg each
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) flamegraph: Option<PathBuf>,
}
