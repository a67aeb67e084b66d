//! Options that trace a run: its system calls and its processor time.

use std::path::PathBuf;

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Tracing")]
pub(crate) struct TraceArgs {
    /// After the measurement, count system calls by name in one more run of each variant (perf as root)
    #[arg(long, hide_short_help = true)]
    pub(crate) syscalls: bool,

    /// After the measurement, record where processor time goes in one more run, and draw a flame graph (perf). If
    /// there are several variants or depths, each is written to FILE-VARIANT-DEPTH.svg. A release build has no names
    /// of functions; build the tool with `--profile profiling`
    #[arg(long, value_name = "FILE.svg", hide_short_help = true)]
    pub(crate) flamegraph: Option<PathBuf>,
}
