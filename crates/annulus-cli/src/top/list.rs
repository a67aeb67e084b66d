//! Which processes can be looked at.

use std::path::Path;
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

/// How a process comes to share its metrics.
const HOW: &str = "`annulus serve` and `annulus bench` share theirs, a program under `annulus run` does once it has a \
     ring, and every program that calls annulus::metrics::share() before it makes an engine or a runtime";

/// The only process that shares its metrics. Of several a list is shown, and `None` is the answer.
pub(super) fn only_one(args: &TopArgs) -> Result<Option<u32>, Fault> {
    let sharing = Sharing::find(Path::new("/proc"))
        .map_err(|error| Fault::failed(format!("can't list the processes in /proc: {error}")))?;
    match sharing.pids[..] {
        [] => Err(Fault::failed(nobody(sharing.hidden))),
        [pid] => Ok(Some(pid)),
        _ => {
            let reports = look_at(&sharing.pids, args);
            match reports.len() {
                0 => Err(Fault::failed(nobody(sharing.hidden))),
                1 => Ok(Some(reports[0].process.pid)),
                several => {
                    let says = format!(
                        "{}\n{several} processes share their metrics; choose one by its number: annulus top {}\n",
                        list(&reports),
                        reports[0].process.pid
                    );
                    if args.json {
                        return Err(Fault::usage(says.trim_end()));
                    }
                    super::say(&says)?;
                    Ok(None)
                }
            }
        }
    }
}

fn nobody(hidden: usize) -> String {
    let mut says = format!("no process here shares its metrics; {HOW}");
    if hidden > 0 {
        says += &format!("; {hidden} processes of others can be looked at with sudo only");
    }
    says
}

/// What all of them did within one interval; one that can't be looked at, or ends, is left out.
fn look_at(pids: &[u32], args: &TopArgs) -> Vec<Report> {
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
    use crate::top::corrupted;

    #[test]
    fn where_nobody_shares_it_is_reported_how_and_who_else_might_see_more() {
        assert!(nobody(0).contains("annulus::metrics::share()"));
        assert!(!nobody(0).contains("sudo"));
        assert!(nobody(3).contains("3 processes of others can be looked at with sudo only"));
    }

    #[test]
    fn the_list_says_who_by_what_and_how_much() {
        let mut other = corrupted::report();
        other.process.pid = 99;
        let text = list(&[corrupted::report(), other]);
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
