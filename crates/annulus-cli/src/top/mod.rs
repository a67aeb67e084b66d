//! `annulus top`: shows the rings of a running process, live.

#[cfg(feature = "screen")]
mod app;
mod grid;
mod heat;
mod list;
#[cfg(feature = "screen")]
mod live;
mod notes;
mod observer;
mod preload;
mod process;
mod report;
mod rows;
#[cfg(feature = "screen")]
mod screen;
#[cfg(all(test, feature = "screen"))]
mod snapshots_for_tests;
#[cfg(all(test, feature = "screen"))]
mod tests;
mod text;
mod units;

use std::io::{self, Write};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use annulus_observe::prometheus::serve_machine;

use crate::args::TopArgs;
use crate::fault::Fault;
use crate::watching::refused;
use observer::{Observation, Observed, Observer};
pub(crate) use process::Process;
use report::Report;

/// The exit code of `--once` if an alert was raised, as for benchmarks.
const RAISED: u8 = 3;

pub(crate) fn top(args: &TopArgs) -> Result<ExitCode, Fault> {
    if let Some(address) = args.serve {
        let endpoint = serve_machine(address).map_err(|error| refused("--serve", &error))?;
        let address = endpoint.addr();
        note!("annulus: metrics of all processes at http://{address}/metrics");
        // A signal ends the process.
        loop {
            thread::park();
        }
    }
    let pid = match args.pid {
        Some(pid) => pid,
        None => match list::only_process(args)? {
            Some(pid) => pid,
            None => return Ok(ExitCode::SUCCESS),
        },
    };
    let mut observer = Observer::at(pid, &args.alert)?;
    match (args.json, args.once) {
        (true, false) => lines(&mut observer, args.interval),
        (true, true) => once(&mut observer, args.interval, json),
        (false, true) => once(&mut observer, args.interval, text::text),
        (false, false) => live(&mut observer, args.interval),
    }
}

fn once<L: Observed>(
    observer: &mut Observer<L>,
    interval: Duration,
    shown: fn(&Report) -> String,
) -> Result<ExitCode, Fault> {
    observer.wait(interval);
    match observer.observe()? {
        Observation::Report(report) => {
            print(&shown(&report))?;
            let raised = report.alerts.iter().any(|alert| alert.raised);
            Ok(if raised {
                ExitCode::from(RAISED)
            } else {
                ExitCode::SUCCESS
            })
        }
        Observation::Ended => Err(failed!(
            "process {} ended within the first interval, so there is nothing to show",
            observer.facts().pid
        )),
    }
}

/// Prints a line for each interval, until the process ends or standard output is closed.
fn lines<L: Observed>(observer: &mut Observer<L>, interval: Duration) -> Result<ExitCode, Fault> {
    loop {
        observer.wait(interval);
        match observer.observe()? {
            Observation::Report(report) => {
                if !print(&json(&report))? {
                    return Ok(ExitCode::SUCCESS);
                }
            }
            Observation::Ended => {
                note!("annulus: process {} has ended", observer.facts().pid);
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
}

/// Shows one interval in place of the screen.
fn instead_of_screen<L: Observed>(
    observer: &mut Observer<L>,
    interval: Duration,
    reason: &str,
) -> Result<ExitCode, Fault> {
    note!("annulus: {reason}, so one interval is shown, as with --once; --json shows all");
    once(observer, interval, text::text)
}

#[cfg(not(feature = "screen"))]
fn live<L: Observed>(observer: &mut Observer<L>, interval: Duration) -> Result<ExitCode, Fault> {
    let reason = "this build has no screen (the Cargo feature `screen` of annulus-cli)";
    instead_of_screen(observer, interval, reason)
}

#[cfg(feature = "screen")]
fn live<L: Observed>(observer: &mut Observer<L>, interval: Duration) -> Result<ExitCode, Fault> {
    use live::End;

    if !live::is_possible() {
        return instead_of_screen(observer, interval, "standard output is not a terminal");
    }
    if let End::Ended(last) = live::run(observer, interval)? {
        if let Some(report) = last {
            print(&text::text(&report))?;
        }
        let pid = observer.facts().pid;
        print(&format!(
            "\nprocess {pid} has ended; this was its last state\n"
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns lines about a process: its command, and what the preload library serves and passes through.
pub(crate) fn preload_lines(pid: u32) -> io::Result<Vec<String>> {
    let mut process = Process::running(pid).ok_or(io::ErrorKind::NotFound)?;
    let now = process.snapshot()?;
    let report = Report::between(process.facts(), &now, &now);
    let calls = report.total.since_start.get("completed");
    let calls = units::whole(calls.copied().unwrap_or_default());
    let mut lines = vec![
        format!("process {}", rows::process(&report)),
        format!("CALLS  {calls} served since the start"),
    ];
    let counts = preload::lines(&report).into_iter();
    lines.extend(counts.map(|pieces| text::joined(&pieces)));
    lines.extend(
        preload::notes(&report)
            .iter()
            .map(|note| format!("! {note}")),
    );
    Ok(lines)
}

fn json(report: &Report) -> String {
    match serde_json::to_string(report) {
        Ok(line) => line + "\n",
        // All keys are strings and all numbers finite, so this does not occur.
        Err(error) => format!("{{\"error\":{:?}}}\n", error.to_string()),
    }
}

/// Prints to standard output. Returns `false` if it is closed.
fn print(text: &str) -> Result<bool, Fault> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(failed!("cannot write to standard output: {error}")),
    }
}
