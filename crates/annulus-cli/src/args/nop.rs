//! What can be typed behind `annulus bench nop`.

use std::path::PathBuf;
use std::time::Duration;

use super::BenchWatchArgs;
use super::TraceArgs;
use super::value::parse_seconds;

const NOP_HELP: &str = "\
Layers, from the ground up:
  abi, abi-defer       the ABI crate by hand: push --depth NOPs, one enter, take all; a plain
                       ring, and one with SINGLE_ISSUER and DEFER_TASKRUN
  null-executor        --depth tasks on the plain executor, each yielding: no engine, no kernel
  null-hand-off        the same tasks, answered by another thread: a hop there and back, no ring
  annulus              Engine::nop() awaited by --depth tasks on the plain executor
  annulus-tokio        the same on Tokio's current_thread runtime
  annulus-tokio-mt     the same on Tokio's multi_thread runtime with two workers

Runs take turns in a shuffled order, --repeat times; the table shows medians. CPU is that of the
whole process. A row less the row below it is what its layer costs.";

#[derive(Debug, clap::Args)]
#[command(after_long_help = NOP_HELP)]
pub(crate) struct NopArgs {
    /// Operations outstanding; several are measured one after the other
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "1,8,32"
    )]
    pub(crate) depth: Vec<usize>,

    /// How long each run is measured, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "0.3", value_parser = parse_seconds)]
    pub(crate) runtime: Duration,

    /// How often each layer is measured
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) repeat: usize,

    /// Write the figures of each run to FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Replace the FILE of --json if it exists
    #[arg(long, requires = "json")]
    pub(crate) replace: bool,

    /// Seed of the order of runs
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    #[command(flatten)]
    pub(crate) watch: BenchWatchArgs,

    #[command(flatten)]
    pub(crate) trace: TraceArgs,
}
