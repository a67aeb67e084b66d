//! A process, described by its files in `/proc`.

use std::fs;
use std::io::{self, ErrorKind};

use annulus::metrics::Snapshot;
use annulus_observe::switch::Switch;
use annulus_observe::{snapshot_of, started_ticks};

use super::observer::Observed;
use super::report::ProcessFacts;
use super::units::without_escapes;
use crate::fault::Fault;
use crate::proc_files;

/// An observed process.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pid: u32,
    /// The start time of the process, in ticks since the start of the machine. Together with the process ID, it
    /// identifies the process; the kernel reuses IDs.
    started_ticks: u64,
    command: String,
}

impl Process {
    pub(crate) fn find(pid: u32) -> Result<Process, Fault> {
        Process::running(pid).ok_or_else(|| {
            failed!(
                "there is no process {pid}; `annulus top` without arguments lists the processes that share their metrics"
            )
        })
    }

    /// Returns whether the process still exists. Another process with the same ID does not count.
    pub(crate) fn is_running(&self) -> bool {
        started_ticks(self.pid) == Some(self.started_ticks)
    }

    /// Returns the descendants of a process that share their metrics, such as the workers of nginx.
    pub(super) fn sharing_descendants(pid: u32) -> io::Result<Vec<Process>> {
        let mut others = processes()?;
        others.retain(|&other| descends(other, pid) && snapshot_of(other).is_ok());
        Ok(others.into_iter().filter_map(Process::running).collect())
    }

    pub(crate) fn running(pid: u32) -> Option<Process> {
        let started_ticks = started_ticks(pid)?;
        Some(Process {
            pid,
            started_ticks,
            command: command(pid).unwrap_or_default(),
        })
    }
}

impl Observed for Process {
    fn snapshot(&mut self) -> io::Result<Snapshot> {
        let snapshot = snapshot_of(self.pid);
        if self.is_alive() {
            snapshot
        } else {
            let message = format!("process {} has ended", self.pid);
            Err(io::Error::new(ErrorKind::NotFound, message))
        }
    }

    fn is_alive(&self) -> bool {
        self.is_running()
    }

    fn is_released(&mut self) -> Option<bool> {
        Some(Switch::of(self.pid).ok()?.is_released())
    }

    fn switch(&mut self, released: bool) -> io::Result<()> {
        Switch::of(self.pid)?.request(released);
        Ok(())
    }

    fn facts(&self) -> ProcessFacts {
        ProcessFacts {
            pid: self.pid,
            command: self.command.clone(),
            uptime_seconds: uptime(self.started_ticks),
        }
    }
}

/// The processes that share their metrics.
pub(super) struct Sharing {
    /// The process IDs, in ascending order.
    pub(super) pids: Vec<u32>,
    /// The number of processes whose descriptors this user may not read.
    pub(super) hidden: usize,
}

impl Sharing {
    pub(super) fn find() -> io::Result<Sharing> {
        let mut sharing = Sharing {
            pids: Vec::new(),
            hidden: 0,
        };
        for pid in processes()? {
            match snapshot_of(pid).map_err(|error| error.kind()) {
                // It shares another layout of counters, and the caller gets that error when it observes the process.
                Ok(_) | Err(ErrorKind::InvalidData) => sharing.pids.push(pid),
                Err(ErrorKind::PermissionDenied) => sharing.hidden += 1,
                Err(_) => {}
            }
        }
        Ok(sharing)
    }
}

/// Returns the IDs of all processes, in ascending order.
fn processes() -> io::Result<Vec<u32>> {
    let entries = fs::read_dir("/proc")?.flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut pids: Vec<u32> = pids.collect();
    pids.sort_unstable();
    Ok(pids)
}

fn command(pid: u32) -> Option<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let args = line.split(|byte| *byte == 0);
    let args: Vec<_> = args.map(String::from_utf8_lossy).collect();
    Some(without_escapes(args.join(" ").trim_end()))
}

/// Returns whether a process is a descendant of `ancestor`.
fn descends(pid: u32, ancestor: u32) -> bool {
    /// A chain of parents is not longer; with a reused ID it could be a circle.
    const GENERATIONS_MAX: usize = 64;
    let parent = |pid: &u32| parent_in(&proc_files::read(format!("/proc/{pid}/stat")).ok()?);
    let mut ancestors = std::iter::successors(parent(&pid), parent).take(GENERATIONS_MAX);
    ancestors.any(|one| one == ancestor)
}

fn parent_in(stat: &str) -> Option<u32> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(1)?.parse().ok()
}

fn uptime(started_ticks: u64) -> Option<f64> {
    let text = proc_files::read("/proc/uptime").ok()?;
    let machine: f64 = text.split_whitespace().next()?.parse().ok()?;
    let process = started_ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
    Some((machine - process).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_parsed_after_any_name() {
        assert_eq!(parent_in("7 (a) S 1 (b) R 4 5 6"), Some(4));
    }

    #[test]
    fn this_process_is_running_and_has_a_command() {
        let own = Process::running(std::process::id()).unwrap();
        assert!(own.is_alive());
        assert!(!own.command.is_empty());
        assert!(own.facts().uptime_seconds.unwrap() < 1e9);
        assert!(Process::running(u32::MAX).is_none());
    }
}
