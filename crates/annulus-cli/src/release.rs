//! `annulus release` and `annulus resume`: returns a process under the preload library to the kernel's epoll, or
//! serves it through io_uring again, without a restart.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use annulus_observe::switch::{Switch, SwitchCounter};

use crate::args::TargetProcesses;
use crate::fault::Fault;
use crate::top::Process;

/// The exit code if a process did not complete the request in time.
const LATE: u8 = 4;
/// The interval between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// The request to a process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Request {
    Release,
    Resume,
}

pub(crate) fn release(target: &TargetProcesses) -> Result<ExitCode, Fault> {
    request_all(target, Request::Release)
}

pub(crate) fn resume(target: &TargetProcesses) -> Result<ExitCode, Fault> {
    request_all(target, Request::Resume)
}

fn request_all(target: &TargetProcesses, request: Request) -> Result<ExitCode, Fault> {
    // All requests are sent before the first wait.
    let pending: Vec<_> = target
        .pids
        .iter()
        .map(|&pid| Pending::send(pid, request))
        .collect();
    let until = Instant::now() + target.wait;
    let (mut late, mut failed) = (false, None);
    for pending in pending {
        match pending.and_then(|pending| pending.wait(until)) {
            Ok(outcome) => {
                late |= !outcome.is_done;
                // If standard output is closed, the request has still been completed.
                let _ = writeln!(io::stdout(), "{}", outcome.message);
            }
            // The caller prints the last error.
            Err(fault) => {
                if let Some(before) = failed.replace(fault) {
                    let _ = writeln!(io::stderr(), "annulus: {before}");
                }
            }
        }
    }
    match failed {
        Some(fault) => Err(fault),
        None if late => Ok(ExitCode::from(LATE)),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// The outcome of the request for one process.
struct Outcome {
    message: String,
    is_done: bool,
}

/// A process with a pending request.
struct Pending {
    pid: u32,
    process: Process,
    switch: Switch,
    request: Request,
    /// `true` if the request changes the state of the process.
    is_new: bool,
    /// The counts of sets and connections before the request.
    before: [u64; 2],
}

impl Pending {
    fn send(pid: u32, request: Request) -> Result<Pending, Fault> {
        let process = Process::find(pid)?;
        let switch = Switch::of(pid).map_err(|error| refused(pid, &error))?;
        let before = done(&switch, request);
        let is_new = switch.request(request == Request::Release);
        Ok(Pending {
            pid,
            process,
            switch,
            request,
            is_new,
            before,
        })
    }

    /// Returns the number of sets that the request has not reached yet.
    fn remaining(&self) -> u64 {
        self.switch.count(match self.request {
            Request::Release => SwitchCounter::Serving,
            Request::Resume => SwitchCounter::Released,
        })
    }

    fn wait(self, until: Instant) -> Result<Outcome, Fault> {
        let pid = self.pid;
        while self.remaining() > 0 && Instant::now() < until {
            if !self.process.is_running() {
                return Err(failed!(
                    "process {pid} ended before it completed the request"
                ));
            }
            thread::sleep(CHECK_INTERVAL);
        }
        let left = self.remaining();
        let [sets, connections] = done(&self.switch, self.request);
        // The process can write any value to these counters.
        let done = [
            sets.wrapping_sub(self.before[0]),
            connections.wrapping_sub(self.before[1]),
        ];
        let text = describe(self.request, self.is_new, done, left);
        Ok(Outcome {
            message: format!("process {pid}: {text}"),
            is_done: left == 0,
        })
    }
}

/// Returns the counts of sets and connections that the process has released or resumed since its start.
fn done(switch: &Switch, request: Request) -> [u64; 2] {
    let counts = match request {
        Request::Release => [SwitchCounter::SetsHandedBack, SwitchCounter::HandedBack],
        Request::Resume => [SwitchCounter::SetsServedAgain, SwitchCounter::ServedAgain],
    };
    counts.map(|counter| switch.count(counter))
}

/// Describes the completed part of the request, and the remaining part.
fn describe(request: Request, is_new: bool, [sets, connections]: [u64; 2], left: u64) -> String {
    let (sets, connections) = (count(sets, "epoll set"), count(connections, "connection"));
    let done = match request {
        Request::Release if !is_new => {
            "was released before; the kernel's epoll serves it".to_owned()
        }
        Request::Resume if !is_new => "was not released; io_uring serves it".to_owned(),
        Request::Release => format!("{sets} with {connections} returned to the kernel"),
        Request::Resume => format!("{sets} with {connections} served again"),
    };
    let rest = match request {
        _ if left == 0 => String::new(),
        Request::Release => format!(
            "; {} remaining: each returns to the kernel when its thread waits next",
            count(left, "epoll set")
        ),
        Request::Resume => format!(
            "; {} remaining: each is served again at its next event",
            count(left, "epoll set")
        ),
    };
    done + &rest
}

fn count(number: u64, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{number} {noun}s"),
    }
}

fn refused(pid: u32, error: &io::Error) -> Fault {
    if error.kind() != ErrorKind::Unsupported {
        return Fault::failed(error.to_string());
    }
    Fault::failed(match has_library(pid) {
        true => format!(
            "process {pid} runs under `annulus run`, but has no ring, so there is nothing to release. Its log has the \
             reason. Try again when it serves connections, or start it with ANNULUS_DISABLE=1"
        ),
        false => format!(
            "process {pid} cannot be released: it does not run under `annulus run`, or its library is too old for \
             this request. For a server with several processes, name those that serve; `annulus top` lists them"
        ),
    })
}

/// Returns whether the process has mapped the library.
pub(crate) fn has_library(pid: u32) -> bool {
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    String::from_utf8_lossy(&maps).contains("libannulus_preload")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_counts_completed_and_remaining_sets() {
        assert_eq!(
            describe(Request::Release, true, [1, 300], 0),
            "1 epoll set with 300 connections returned to the kernel"
        );
        assert_eq!(
            describe(Request::Release, true, [0, 0], 2),
            "0 epoll sets with 0 connections returned to the kernel; 2 epoll sets remaining: each returns to the \
             kernel when its thread waits next"
        );
        assert_eq!(
            describe(Request::Resume, true, [2, 1], 1),
            "2 epoll sets with 1 connection served again; 1 epoll set remaining: each is served again at its next \
             event"
        );
    }
}
