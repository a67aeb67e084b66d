//! The command line of `annulus top`.

use std::net::SocketAddr;
use std::time::Duration;

use annulus_observe::alert::Rule;

use super::value::parse_seconds;

const TOP_HELP: &str = "\
A process is visible after it has called annulus::metrics::share(). `annulus serve` and
`annulus bench` do so, and so does a server under `annulus run` with its first ring,
which an epoll set with eight connections gets.
Without a PID, the only process that shares its metrics is shown; if there are several, they are
listed.
The process records latencies only while a reader is attached.

Keys: q quits, p pauses, s sorts, + and - change the interval, ? explains the columns.
If standard output is not a terminal, one interval is printed as text, as with --once.";

/// The range of the interval, in seconds. Shorter ones show noise and slow the process.
const INTERVALS: std::ops::RangeInclusive<f64> = 0.1..=3600.0;

#[derive(Debug, clap::Args)]
#[command(after_long_help = TOP_HELP)]
pub(crate) struct TopArgs {
    /// Process to show [default: the only one that shares its metrics]
    #[arg(value_name = "PID", value_parser = parse_pid)]
    pub(crate) pid: Option<u32>,

    /// Print one interval as text, and exit
    #[arg(long)]
    pub(crate) once: bool,

    /// Print JSON: a line for each interval, or one line with --once
    #[arg(long)]
    pub(crate) json: bool,

    /// Length of an interval, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    pub(crate) interval: Duration,

    /// Serve Prometheus metrics of all processes that share theirs, at http://ADDRESS/metrics, until a signal ends the
    /// command. Port 0 selects a free port, which is printed
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["pid", "once", "json", "interval", "alert"])]
    pub(crate) serve: Option<SocketAddr>,

    /// Report when a threshold is crossed, such as 'read.p99 > 500us for 5s', 'errors > 0.1%' or 'rate < 1000/s'
    /// (docs/reference/metrics.md). May be repeated. With --once, the exit code is then 3
    #[arg(long, value_name = "RULE")]
    pub(crate) alert: Vec<Rule>,
}

pub(super) fn parse_pid(text: &str) -> Result<u32, String> {
    match text.parse::<i32>() {
        Ok(pid) if pid > 0 => Ok(pid.unsigned_abs()),
        _ => Err(
            "not a process ID; `annulus top` without arguments lists the processes that share their metrics"
                .to_owned(),
        ),
    }
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let message = format!(
        "the interval must be from {} s to {} s; write for example 1, 0.5 or 200ms",
        INTERVALS.start(),
        INTERVALS.end()
    );
    match parse_seconds(text) {
        Ok(interval) if INTERVALS.contains(&interval.as_secs_f64()) => Ok(interval),
        _ => Err(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_id_is_a_positive_number() {
        assert_eq!(parse_pid("1"), Ok(1));
        for bad in ["0", "-1", "echo", "", "4294967296", "127.0.0.1:9464"] {
            assert!(parse_pid(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_interval_is_from_a_tenth_of_a_second_to_an_hour() {
        assert_eq!(parse_interval("200ms"), Ok(Duration::from_millis(200)));
        assert_eq!(parse_interval("60m"), Ok(Duration::from_secs(3600)));
        for bad in ["0", "10ms", "61m", "x", "-1", "NaN"] {
            assert!(parse_interval(bad).is_err(), "{bad}");
        }
    }
}
