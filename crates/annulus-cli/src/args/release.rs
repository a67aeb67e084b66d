//! What can be typed behind `annulus release` and `annulus resume`.

use std::time::Duration;

use super::top::parse_pid;
use super::value::parse_seconds;

const RELEASE_HELP: &str = "\
Every epoll set of the process that a ring serves is handed back to the kernel, with all that has been
received and not been read, and what it makes from now on is left to the kernel, until
`annulus resume`. The process goes on as it would without the library; so do children that it forks
from now on. Programs that it executes begin anew.

Only the user of the process, and root, may do that. Each process is asked by itself: of nginx name the
workers. From Linux 6.7 on a process that sleeps is woken for it; before, it looks at its next event.";

const RESUME_HELP: &str = "\
What `annulus release` has handed back is served again: of each epoll set when its thread waits on it the
next time, so of a server that is idle at its next event. Connections with bytes that are still to be
read or sent, and those that have ended in a direction, stay with the kernel.";

/// How long somebody may wait for it, in seconds.
const WAITS: std::ops::RangeInclusive<f64> = 0.0..=3600.0;

#[derive(Debug, clap::Args)]
#[command(after_long_help = RELEASE_HELP)]
pub(crate) struct ReleaseArgs {
    #[command(flatten)]
    pub(crate) whom: TargetProcesses,
}

#[derive(Debug, clap::Args)]
#[command(after_long_help = RESUME_HELP)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    pub(crate) whom: TargetProcesses,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TargetProcesses {
    /// The processes, which run under `annulus run`
    #[arg(value_name = "PID", required = true, value_parser = parse_pid)]
    pub(crate) pids: Vec<u32>,

    /// How long to wait until all have done it, in seconds; 0: only ask. Exit code 4: not all of it was done by then
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_wait)]
    pub(crate) wait: Duration,
}

fn parse_wait(text: &str) -> Result<Duration, String> {
    match parse_seconds(text) {
        Ok(wait) if WAITS.contains(&wait.as_secs_f64()) => Ok(wait),
        _ => Err(format!(
            "write a time from {} to {} s, for example 5, 0.5 or 200ms",
            WAITS.start(),
            WAITS.end()
        )),
    }
}
