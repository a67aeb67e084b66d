//! The list of processes that share their metrics.

use std::thread;

use annulus::metrics::Snapshot;

use super::grid::{Align, Column, Grid, Tone};
use super::observer::Observed;
use super::process::{Process, Sharing};
use super::report::Report;
use super::rows;
use super::units::{count, uptime};
use crate::args::TopArgs;
use crate::fault::Fault;

/// The ways for a process to share its metrics.
const HOW_TO_SHARE: &str = "`annulus serve` and `annulus bench` share theirs, a server under `annulus run` does from its \
     first ring on (an epoll set with eight connections gets one), and other programs call \
     annulus::metrics::share() before they create an engine or a runtime";

/// Returns the only process that shares its metrics. If there are several, prints a list and returns `None`.
pub(super) fn only_process(args: &TopArgs) -> Result<Option<u32>, Fault> {
    let sharing =
        Sharing::find().map_err(|error| failed!("cannot list the processes in /proc: {error}"))?;
    match sharing.pids[..] {
        [] => Err(Fault::failed(no_process(sharing.hidden))),
        [pid] => Ok(Some(pid)),
        _ => {
            let reports = observe_all(&sharing.pids, args);
            match reports.len() {
                0 => Err(Fault::failed(no_process(sharing.hidden))),
                1 => Ok(Some(reports[0].process.pid)),
                several => {
                    let message = format!(
                        "{}\n{several} processes share their metrics; name one: annulus top {}\n",
                        list(&reports),
                        reports[0].process.pid
                    );
                    if args.json {
                        return Err(Fault::usage(message.trim_end()));
                    }
                    super::print(&message)?;
                    Ok(None)
                }
            }
        }
    }
}

fn no_process(hidden: usize) -> String {
    let mut message = format!("no process shares its metrics; {HOW_TO_SHARE}");
    if hidden > 0 {
        message += &format!("; {hidden} processes of other users are only visible with sudo");
    }
    message
}

/// Returns the reports of all processes for one interval. A process that ends or is not accessible is left out.
fn observe_all(pids: &[u32], args: &TopArgs) -> Vec<Report> {
    let processes = pids.iter().filter_map(|pid| Process::running(*pid));
    let observed: Vec<(Process, Snapshot)> = processes
        .filter_map(|mut process| process.snapshot().ok().map(|snapshot| (process, snapshot)))
        .collect();
    thread::sleep(args.interval);
    let reports = observed.into_iter().filter_map(|(mut process, earlier)| {
        let now = process.snapshot().ok()?;
        Some(Report::between(process.facts(), &earlier, &now))
    });
    reports.collect()
}

fn list(reports: &[Report]) -> String {
    let column = |heading, align| Column {
        heading,
        align,
        rank: 0,
    };
    let plain = |text: String| (text, Tone::Plain);
    let row = |report: &Report| {
        let backend = rows::backends(report).into_iter().next();
        vec![
            plain(report.process.pid.to_string()),
            plain(
                report
                    .process
                    .uptime_seconds
                    .map_or_else(String::new, uptime),
            ),
            plain(count(report.total.rate("completed"))),
            backend.unwrap_or_else(|| plain("-".to_owned())),
            plain(report.process.command.clone()),
        ]
    };
    let grid = Grid {
        columns: vec![
            column("PID", Align::Right),
            column("up", Align::Right),
            column("ops/s", Align::Right),
            column("backend", Align::Left),
            column("command", Align::Left),
        ],
        rows: reports.iter().map(row).collect(),
    };
    let lines = grid.lines(usize::MAX).into_iter().map(|pieces| {
        let text: String = pieces.into_iter().map(|(text, _)| text).collect();
        text.trim_end().to_owned() + "\n"
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::snapshots_for_tests;

    #[test]
    fn without_a_process_the_message_explains_how_to_share_metrics() {
        assert!(no_process(0).contains("annulus::metrics::share()"));
        assert!(!no_process(0).contains("sudo"));
        assert!(no_process(3).contains("3 processes of other users are only visible with sudo"));
    }

    #[test]
    fn the_list_has_the_backend_the_rate_and_the_command_of_each_process() {
        let mut other = snapshots_for_tests::report();
        other.process.pid = 99;
        let text = list(&[snapshots_for_tests::report(), other]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(
            lines[1].starts_with("4321  1:02:03  25.0k  io_uring"),
            "{text}"
        );
        assert!(lines[1].ends_with("annulus serve echo --addr 127.0.0.1:7000"));
        assert!(lines[2].trim_start().starts_with("99 "), "{text}");
    }
}
