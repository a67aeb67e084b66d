//! `annulus top`: the rings of a running process, live.

mod app;
#[cfg(test)]
mod corrupted;
mod grid;
mod heat;
mod list;
mod live;
mod notes;
mod observer;
mod preload;
mod process;
mod report;
mod rows;
mod screen;
#[cfg(test)]
mod tests;
mod text;
mod units;

use std::env;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use crate::args::TopArgs;
use crate::fault::Fault;
use live::End;
use observer::{Observation, Observed, Observer};
pub(crate) use process::Process;
use report::Report;

/// The exit code of a look that raised an alert, as of a measurement.
const RAISED: u8 = 3;

pub(crate) fn top(args: &TopArgs) -> Result<ExitCode, Fault> {
    let pid = match args.pid {
        Some(pid) => pid,
        None => match list::only_one(args)? {
            Some(pid) => pid,
            None => return Ok(ExitCode::SUCCESS),
        },
    };
    let mut looker = Observer::at(pid, &args.alert)?;
    match (args.json, args.once) {
        (true, false) => lines(&mut looker, args.interval),
        (true, true) => once(&mut looker, args.interval, json),
        (false, true) => once(&mut looker, args.interval, text::text),
        (false, false) if !on_a_terminal() => {
            eprintln!(
                "annulus: not on a terminal, so this is one look, as by --once; --json goes on and on"
            );
            once(&mut looker, args.interval, text::text)
        }
        (false, false) => live(&mut looker, args.interval),
    }
}

/// A screen can be drawn, and keys come from somewhere.
fn on_a_terminal() -> bool {
    let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stdin().is_terminal() && io::stdout().is_terminal() && !dumb
}

fn once<L: Observed>(
    looker: &mut Observer<L>,
    interval: Duration,
    shown: fn(&Report) -> String,
) -> Result<ExitCode, Fault> {
    looker.wait(interval);
    match looker.look()? {
        Observation::Report(report) => {
            say(&shown(&report))?;
            let raised = report.alerts.iter().any(|alert| alert.raised);
            Ok(if raised {
                ExitCode::from(RAISED)
            } else {
                ExitCode::SUCCESS
            })
        }
        Observation::Ended => Err(Fault::failed(format!(
            "process {} ended before the interval did, so there is nothing to show",
            looker.facts().pid
        ))),
    }
}

/// A line for each interval, until the process ends or nobody reads them any more.
fn lines<L: Observed>(looker: &mut Observer<L>, interval: Duration) -> Result<ExitCode, Fault> {
    loop {
        looker.wait(interval);
        match looker.look()? {
            Observation::Report(report) => {
                if !say(&json(&report))? {
                    return Ok(ExitCode::SUCCESS);
                }
            }
            Observation::Ended => {
                eprintln!("annulus: process {} has ended", looker.facts().pid);
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
}

fn live<L: Observed>(looker: &mut Observer<L>, interval: Duration) -> Result<ExitCode, Fault> {
    if let End::Ended(last) = live::run(looker, interval)? {
        if let Some(report) = last {
            say(&text::text(&report))?;
        }
        let pid = looker.facts().pid;
        say(&format!(
            "\nprocess {pid} has ended; that was its last state\n"
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn json(report: &Report) -> String {
    match serde_json::to_string(report) {
        Ok(line) => line + "\n",
        // Its keys are strings and its numbers finite, so there is no such error; it would be said as JSON.
        Err(error) => format!("{{\"error\":{:?}}}\n", error.to_string()),
    }
}

/// To standard output; whether anybody still reads it.
fn say(text: &str) -> Result<bool, Fault> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Fault::failed(format!("standard output: {error}"))),
    }
}
