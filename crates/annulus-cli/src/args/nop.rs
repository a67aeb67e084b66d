//! The command line of `annulus bench nop`.

use std::path::PathBuf;
use std::time::Duration;

use super::BenchWatchArgs;
use super::MORE_OPTIONS;
use super::TraceArgs;
use super::value::parse_seconds;

const NOP_HELP: &str = "\
Layers, from the lowest up:
  abi, abi-defer       the ABI crate alone: push --depth NOPs, enter once, take all completions;
                       abi is a plain ring, abi-defer has SINGLE_ISSUER and DEFER_TASKRUN
  null-executor        --depth tasks on the plain executor, each yielding: no engine, no kernel
  null-hand-off        the same tasks, completed by another thread: two thread hops, no ring
  annulus              Engine::nop(), awaited by --depth tasks on the plain executor
  annulus-tokio        the same on Tokio's current_thread runtime
  annulus-tokio-mt     the same on Tokio's multi_thread runtime with two workers

Each layer is measured --repeat times, in a shuffled order; the table shows medians. CPU time is
that of the whole process. The cost of a layer is its row minus the row below it.";

#[derive(Debug, clap::Args)]
#[command(after_help = MORE_OPTIONS, after_long_help = NOP_HELP)]
pub(crate) struct NopArgs {
    /// Operations outstanding; a list measures each in turn
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "1,8,32"
    )]
    pub(crate) depth: Vec<usize>,

    /// Length of each run, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "0.3", value_parser = parse_seconds)]
    pub(crate) runtime: Duration,

    /// Number of runs of each layer
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) repeat: usize,

    /// Write the results of each run to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Replace the FILE of --json if it exists
    #[arg(long, requires = "json")]
    pub(crate) replace: bool,

    /// Seed of the order of the runs
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    #[command(flatten)]
    pub(crate) watch: BenchWatchArgs,

    #[command(flatten)]
    pub(crate) trace: TraceArgs,
}
