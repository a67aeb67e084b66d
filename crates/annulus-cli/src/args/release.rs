//! The command lines of `annulus release` and `annulus resume`.

use std::time::Duration;

use super::top::parse_pid;
use super::value::parse_time;

const RELEASE_HELP: &str = "\
Every epoll set of the process that a ring serves returns to the kernel, together with received
data that the process has not read. Sets that the process creates later stay with the kernel
until `annulus resume`. The process continues as it would without the library, and so do children
that it forks later. Programs that it executes start with io_uring again.

Only the user of the process and root may do this. Name each process of a server: for nginx, the
workers. On Linux 6.7 and later, a process that sleeps is woken at once; on older kernels it
reacts at its next event.";

const RESUME_HELP: &str = "\
The ring serves each released epoll set again from the next time its thread waits on it. An idle
server therefore resumes at its next event. Connections with unread or unsent bytes, and
half-closed connections, stay with the kernel.";

/// The range of `--wait`, in seconds.
const WAITS: std::ops::RangeInclusive<f64> = 0.0..=3600.0;

#[derive(Debug, clap::Args)]
#[command(after_long_help = RELEASE_HELP)]
pub(crate) struct ReleaseArgs {
    #[command(flatten)]
    pub(crate) target: TargetProcesses,
}

#[derive(Debug, clap::Args)]
#[command(after_long_help = RESUME_HELP)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    pub(crate) target: TargetProcesses,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TargetProcesses {
    /// Processes that run under `annulus run`
    #[arg(value_name = "PID", required = true, value_parser = parse_pid)]
    pub(crate) pids: Vec<u32>,

    /// Seconds to wait for all processes; 0 only sends the request. If some are not done by then, the exit code is 4
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_wait)]
    pub(crate) wait: Duration,
}

fn parse_wait(text: &str) -> Result<Duration, String> {
    match parse_time(text) {
        Ok(wait) if WAITS.contains(&wait.as_secs_f64()) => Ok(wait),
        _ => Err(format!(
            "write a time from {} to {} s, for example 5, 0.5 or 200ms",
            WAITS.start(),
            WAITS.end()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_may_be_zero_or_up_to_an_hour() {
        assert_eq!(parse_wait("0"), Ok(Duration::ZERO));
        assert_eq!(parse_wait("60m"), Ok(Duration::from_secs(3600)));
        for bad in ["-1", "61m", "soon", "NaN"] {
            assert!(parse_wait(bad).is_err(), "{bad}");
        }
    }
}
