//! What can be typed about watching a command while it runs: metrics for Prometheus, and alerts.

use std::net::SocketAddr;

use annulus_observe::alert::Rule;

#[derive(Debug, Default, clap::Args)]
pub(crate) struct WatchArgs {
    /// Answer Prometheus at that address, under /metrics; port 0 is any that is free, and is printed
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<SocketAddr>,

    /// Say when a threshold is crossed, as in 'read.p99 > 500us for 5s', 'errors > 0.1%' or 'rate < 1000/s'
    /// (docs/reference/metrics.md); may be given several times
    #[arg(long, value_name = "RULE")]
    pub(crate) alert: Vec<Rule>,
}

/// The same where a run is measured.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct BenchWatchArgs {
    /// Answer Prometheus at that address, under /metrics, about this process; port 0 is any that is free, and is
    /// printed. Watching costs a little of what is measured
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<SocketAddr>,

    /// Check every run against a threshold, as in 'read.p99 > 500us', 'errors > 0%' or 'rate < 1000/s'
    /// (docs/reference/metrics.md); may be given several times. Crossed by Annulus, it is exit code 3
    #[arg(long, value_name = "RULE")]
    pub(crate) alert: Vec<Rule>,
}
