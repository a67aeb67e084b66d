//! `annulus release` and `annulus resume`: hands a process that runs under the preload library back to the kernel, and
//! has it served again, without a restart.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use annulus_observe::switch::{Switch, SwitchCounter};

use crate::args::TargetProcesses;
use crate::fault::Fault;
use crate::top::Process;

/// The exit code where not all that was requested was done in time.
const LATE: u8 = 4;
/// How often it is looked whether it has been done.
const LOOK: Duration = Duration::from_millis(2);

/// What is requested.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Request {
    Release,
    Resume,
}

pub(crate) fn release(whom: &TargetProcesses) -> Result<ExitCode, Fault> {
    each(whom, Request::Release)
}

pub(crate) fn resume(whom: &TargetProcesses) -> Result<ExitCode, Fault> {
    each(whom, Request::Resume)
}

fn each(whom: &TargetProcesses, request: Request) -> Result<ExitCode, Fault> {
    // All are asked before the first is waited for.
    let pending: Vec<_> = whom
        .pids
        .iter()
        .map(|&pid| Pending::ask(pid, request))
        .collect();
    let until = Instant::now() + whom.wait;
    let (mut late, mut failed) = (false, None);
    for pending in pending {
        match pending.and_then(|pending| pending.wait(until)) {
            Ok(outcome) => {
                late |= !outcome.is_done;
                // If nobody reads it, it has been done all the same.
                let _ = writeln!(io::stdout(), "{}", outcome.says);
            }
            // The caller reports the last one.
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

/// What has come of it for one process.
struct Outcome {
    says: String,
    is_done: bool,
}

/// A process that has been asked.
struct Pending {
    pid: u32,
    process: Process,
    switch: Switch,
    request: Request,
    /// It was requested something else before.
    is_new: bool,
    /// Sets and connections that it had done this to.
    before: [u64; 2],
}

impl Pending {
    fn ask(pid: u32, request: Request) -> Result<Pending, Fault> {
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

    /// Sets that are as they were.
    fn left(&self) -> u64 {
        self.switch.count(match self.request {
            Request::Release => SwitchCounter::Serving,
            Request::Resume => SwitchCounter::Released,
        })
    }

    fn wait(self, until: Instant) -> Result<Outcome, Fault> {
        let pid = self.pid;
        while self.left() > 0 && Instant::now() < until {
            if !self.process.is_there() {
                return Err(Fault::failed(format!("process {pid} has ended meanwhile")));
            }
            thread::sleep(LOOK);
        }
        let left = self.left();
        let [sets, connections] = done(&self.switch, self.request);
        // A process may write there what it likes.
        let done = [
            sets.wrapping_sub(self.before[0]),
            connections.wrapping_sub(self.before[1]),
        ];
        let says = describe(self.request, self.is_new, done, left);
        Ok(Outcome {
            says: format!("process {pid}: {says}"),
            is_done: left == 0,
        })
    }
}

/// Sets and connections that the process has done this to since its start.
fn done(switch: &Switch, request: Request) -> [u64; 2] {
    let counts = match request {
        Request::Release => [SwitchCounter::SetsHandedBack, SwitchCounter::HandedBack],
        Request::Resume => [SwitchCounter::SetsServedAgain, SwitchCounter::ServedAgain],
    };
    counts.map(|what| switch.count(what))
}

/// What has been done, what is left, and how it is undone.
fn describe(request: Request, is_new: bool, [sets, connections]: [u64; 2], left: u64) -> String {
    let (sets, connections) = (count(sets, "epoll set"), count(connections, "connection"));
    let done = match request {
        Request::Release if !is_new => "was handed back before, and is not served".to_owned(),
        Request::Resume if !is_new => "is served, and was not handed back".to_owned(),
        Request::Release => format!("{sets} with {connections} handed back to the kernel"),
        Request::Resume => format!("{sets} with {connections} served again"),
    };
    let rest = match request {
        _ if left == 0 => String::new(),
        Request::Release => format!(
            "; {} still served: handed back at the next wait of each thread",
            count(left, "epoll set")
        ),
        Request::Resume => format!(
            "; {} still the kernel's: served again at the next event of each",
            count(left, "epoll set")
        ),
    };
    done + &rest
}

fn count(number: u64, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}

fn refused(pid: u32, error: &io::Error) -> Fault {
    if error.kind() != ErrorKind::Unsupported {
        return Fault::failed(error.to_string());
    }
    Fault::failed(match has_library(pid) {
        true => format!(
            "process {pid} runs under `annulus run` and has made no ring: nothing of it is served, and there is \
             nothing to hand back. Its log says why; ask again when it serves, or start it with ANNULUS_DISABLE=1"
        ),
        false => format!(
            "process {pid} does not run under `annulus run`, or with a library that can't be asked: nothing of it can \
             be handed back. Of a server with several processes name those that serve; `annulus top` lists them"
        ),
    })
}

/// Whether the library is mapped there.
fn has_library(pid: u32) -> bool {
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    String::from_utf8_lossy(&maps).contains("libannulus_preload")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_is_reported_in_numbers_with_what_is_left() {
        assert_eq!(
            describe(Request::Release, true, [1, 300], 0),
            "1 epoll set with 300 connections handed back to the kernel"
        );
        assert_eq!(
            describe(Request::Release, true, [0, 0], 2),
            "0 epoll sets with 0 connections handed back to the kernel; 2 epoll sets still served: handed back at the \
             next wait of each thread"
        );
        assert_eq!(
            describe(Request::Resume, true, [2, 1], 1),
            "2 epoll sets with 1 connection served again; 1 epoll set still the kernel's: served again at the next \
             event of each"
        );
    }
}
