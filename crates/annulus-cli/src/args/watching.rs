//! Options that monitor a running command: metrics for Prometheus, and alerts.

use std::net::SocketAddr;

use annulus_observe::alert::Rule;

/// The options of a server.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Monitoring")]
pub(crate) struct WatchArgs {
    /// Serve Prometheus metrics at http://ADDRESS/metrics. Port 0 selects a free port, which is printed
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<SocketAddr>,

    /// Report when a threshold is crossed, such as 'read.p99 > 500us for 5s', 'errors > 0.1%' or 'rate < 1000/s'
    /// (docs/reference/metrics.md). May be repeated
    #[arg(long, value_name = "RULE")]
    pub(crate) alert: Vec<Rule>,
}

/// The options of a benchmark.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Monitoring")]
pub(crate) struct BenchWatchArgs {
    /// Serve Prometheus metrics of this process at http://ADDRESS/metrics. Port 0 selects a free port, which is
    /// printed. Monitoring slightly slows the measured code
    #[arg(long, value_name = "ADDRESS", hide_short_help = true)]
    pub(crate) metrics: Option<SocketAddr>,

    /// Check every run against a threshold, such as 'read.p99 > 500us', 'errors > 0%' or 'rate < 1000/s'
    /// (docs/reference/metrics.md). May be repeated. If a run of Annulus crosses it, the exit code is 3
    #[arg(long, value_name = "RULE", hide_short_help = true)]
    pub(crate) alert: Vec<Rule>,
}
