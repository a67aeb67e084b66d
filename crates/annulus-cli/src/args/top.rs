//! What can be typed behind `annulus top`.

use std::time::Duration;

use annulus_observe::alert::Rule;

use super::value::parse_seconds;

const TOP_HELP: &str = "\
A process can be looked at once it has called annulus::metrics::share(); `annulus serve` and
`annulus bench` do, and a program under `annulus run` once it has a ring. Without a PID, the
only process that shares is shown; of several, a list. It records latencies only while somebody
looks.

Keys: q quits, p pauses, s sorts, + and - change the interval, ? explains the columns.
Where standard output is no terminal, one look is printed, as by --once.";

/// Intervals, in seconds: shorter ones show noise and cost the process itself.
const INTERVALS: std::ops::RangeInclusive<f64> = 0.1..=3600.0;

#[derive(Debug, clap::Args)]
#[command(after_long_help = TOP_HELP)]
pub(crate) struct TopArgs {
    /// The process; without it, the only one that shares its metrics
    #[arg(value_name = "PID", value_parser = parse_pid)]
    pub(crate) pid: Option<u32>,

    /// Look once: what happened within one interval, as text
    #[arg(long)]
    pub(crate) once: bool,

    /// JSON instead: a line for each interval, or one with --once
    #[arg(long)]
    pub(crate) json: bool,

    /// How long an interval is, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    pub(crate) interval: Duration,

    /// Say when a threshold is crossed, as in 'read.p99 > 500us for 5s', 'errors > 0.1%' or 'rate < 1000/s'
    /// (docs/reference/metrics.md); may be given several times. With --once it is exit code 3
    #[arg(long, value_name = "RULE")]
    pub(crate) alert: Vec<Rule>,
}

pub(super) fn parse_pid(text: &str) -> Result<u32, String> {
    match text.parse::<i32>() {
        Ok(pid) if pid > 0 => Ok(pid.unsigned_abs()),
        _ => Err(
            "not the number of a process; `annulus top` alone lists those that can be looked at"
                .to_owned(),
        ),
    }
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let says = format!(
        "an interval lasts from {} s to {} s; write for example 1, 0.5 or 200ms",
        INTERVALS.start(),
        INTERVALS.end()
    );
    match parse_seconds(text) {
        Ok(interval) if INTERVALS.contains(&interval.as_secs_f64()) => Ok(interval),
        _ => Err(says),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_a_positive_number() {
        assert_eq!(parse_pid("1"), Ok(1));
        for bad in ["0", "-1", "echo", "", "4294967296", "127.0.0.1:9464"] {
            assert!(parse_pid(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_interval_lasts_from_a_tenth_of_a_second_to_an_hour() {
        assert_eq!(parse_interval("200ms"), Ok(Duration::from_millis(200)));
        assert_eq!(parse_interval("60m"), Ok(Duration::from_secs(3600)));
        for bad in ["0", "10ms", "61m", "x", "-1", "NaN"] {
            assert!(parse_interval(bad).is_err(), "{bad}");
        }
    }
}
