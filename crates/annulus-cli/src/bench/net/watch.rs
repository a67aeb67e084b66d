//! Measures the server's CPU time and context switches from `/proc`, and its system calls with `perf`.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use annulus_baselines::net::load::{Live, Moment};

use crate::proc_files;
use crate::trace::Counter;

/// The time for which system calls are counted. Counting follows the measured time because it slows the server.
const COUNTED: Duration = Duration::from_millis(300);

/// The name prefix of the kernel's threads for a process's rings: workers and submission-queue pollers.
const RING_THREADS: &str = "iou-";

/// The resources that a thread has used since it started.
#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    /// Set for a kernel thread that serves a ring.
    of_ring: bool,
    cpu_ns: u64,
    voluntary: u64,
    involuntary: u64,
}

/// A snapshot of all threads of a process and its descendants, keyed by their `/proc` folders.
#[derive(Clone, Debug, Default)]
struct Account {
    threads: HashMap<PathBuf, Thread>,
    at: Option<Instant>,
}

impl Account {
    /// Returns the total that the threads in this snapshot have used since `begin`. Threads that have ended are not
    /// included.
    fn since(&self, begin: &Account, of: fn(&Thread) -> u64) -> f64 {
        self.each_since(begin, of).map(|(_, used)| used).sum()
    }

    /// Returns the usage of each thread since `begin`.
    fn each_since(
        &self,
        begin: &Account,
        of: fn(&Thread) -> u64,
    ) -> impl Iterator<Item = (&Thread, f64)> {
        self.threads.iter().map(move |(folder, now)| {
            let before = begin.threads.get(folder).map_or(0, of);
            (now, of(now).saturating_sub(before) as f64)
        })
    }
}

/// The resources that the server used in the measured time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used {
    pub(crate) cpu_ns: f64,
    /// CPU time of the program's busiest thread.
    pub(crate) busiest_cpu_ns: f64,
    /// CPU time of the kernel's threads for the program's rings.
    pub(crate) rings_cpu_ns: f64,
    pub(crate) voluntary: f64,
    pub(crate) involuntary: f64,
    pub(crate) seconds: f64,
}

/// The measurements of one server process.
pub(crate) struct Watch {
    pid: u32,
    begin: Result<Account, String>,
    end: Result<Account, String>,
    syscalls: Result<f64, String>,
}

impl Watch {
    pub(crate) fn new(pid: u32) -> Watch {
        let not_yet = || "the run ended before it was measured".to_string();
        Watch {
            pid,
            begin: Err(not_yet()),
            end: Err(not_yet()),
            syscalls: Err(not_yet()),
        }
    }

    /// Takes the measurement for a moment of the run.
    pub(crate) fn at(&mut self, moment: Moment, live: &Live<'_>) {
        match moment {
            Moment::Begin => self.begin = account(self.pid),
            Moment::End => self.end = account(self.pid),
            Moment::After => self.syscalls = count_syscalls(self.pid, live),
        }
    }

    /// Returns the resources used between the begin and the end of the measured time.
    pub(crate) fn used(&self) -> Result<Used, String> {
        let begin = self.begin.as_ref().map_err(String::clone)?;
        let end = self.end.as_ref().map_err(String::clone)?;
        let seconds = match (begin.at, end.at) {
            (Some(begin), Some(end)) => end.duration_since(begin).as_secs_f64(),
            _ => 0.0,
        };
        let (mut busiest_cpu_ns, mut rings_cpu_ns) = (0.0_f64, 0.0);
        for (thread, used) in end.each_since(begin, |thread| thread.cpu_ns) {
            match thread.of_ring {
                true => rings_cpu_ns += used,
                false => busiest_cpu_ns = busiest_cpu_ns.max(used),
            }
        }
        Ok(Used {
            busiest_cpu_ns,
            rings_cpu_ns,
            cpu_ns: end.since(begin, |thread| thread.cpu_ns),
            voluntary: end.since(begin, |thread| thread.voluntary),
            involuntary: end.since(begin, |thread| thread.involuntary),
            seconds,
        })
    }

    /// Returns the number of system calls per request.
    pub(crate) fn syscalls_per_request(&self) -> Result<f64, String> {
        self.syscalls.clone()
    }
}

/// Returns the process and all of its descendants. nginx, for example, serves from a child process.
pub(crate) fn family(pid: u32) -> Vec<u32> {
    let mut family = vec![pid];
    let mut checked = 0;
    while let Some(pid) = family.get(checked) {
        let threads = fs::read_dir(format!("/proc/{pid}/task"))
            .into_iter()
            .flatten();
        let children: Vec<u32> = threads
            .flatten()
            .filter_map(|thread| proc_files::read(thread.path().join("children")).ok())
            .flat_map(|text| text.split_whitespace().map(str::parse).collect::<Vec<_>>())
            .flatten()
            .collect();
        family.extend(children);
        checked += 1;
    }
    family
}

fn account(pid: u32) -> Result<Account, String> {
    let mut account = Account {
        at: Some(Instant::now()),
        ..Account::default()
    };
    let folder = format!("/proc/{pid}/task");
    let unreadable = |error| format!("not available: reading {folder}: {error}");
    fs::read_dir(&folder).map_err(unreadable)?;
    let folders = family(pid)
        .into_iter()
        .map(|pid| format!("/proc/{pid}/task"));
    for task in folders
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flatten()
        .flatten()
    {
        // A thread may end during the reads. Its usage is then missing.
        let read = |name: &str| proc_files::read(task.path().join(name)).unwrap_or_default();
        let status = read("status");
        let thread = Thread {
            of_ring: read("comm").starts_with(RING_THREADS),
            cpu_ns: run_time_ns(&read("schedstat")),
            voluntary: field(&status, "voluntary_ctxt_switches"),
            involuntary: field(&status, "nonvoluntary_ctxt_switches"),
        };
        account.threads.insert(task.path(), thread);
    }
    match account.threads.values().any(|thread| thread.cpu_ns > 0) {
        true => Ok(account),
        false => Err("not available: the kernel gives no /proc/PID/task/*/schedstat".into()),
    }
}

/// Returns the first number of a `schedstat` file: nanoseconds on a processor.
fn run_time_ns(text: &str) -> u64 {
    let first = text.split_whitespace().next();
    first.and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn field(status: &str, name: &str) -> u64 {
    let value = proc_files::value(status, name);
    value.and_then(|value| value.parse().ok()).unwrap_or(0)
}

/// Counts system calls for [`COUNTED`] and divides them by the responses in that time.
fn count_syscalls(pid: u32, live: &Live<'_>) -> Result<f64, String> {
    let counter = Counter::of_all(&family(pid));
    let (counted, responses) = while_loaded(live, counter, Counter::stop)
        .map_err(|why| format!("not available: {why}"))?;
    match responses {
        0 => Err("not available: no request completed while perf counted".into()),
        responses => Ok(counted.all as f64 / responses as f64),
    }
}

/// Keeps an attached tracer running for [`COUNTED`], then detaches it. Returns its result and the number of responses
/// in that time. Both are of the same slowed server.
pub(crate) fn while_loaded<A, B>(
    live: &Live<'_>,
    attached: Result<A, String>,
    detach: impl FnOnce(A) -> Result<B, String>,
) -> Result<(B, u64), String> {
    let attached = attached?;
    let responses = live.responses();
    thread::sleep(COUNTED);
    let responses = live.responses() - responses;
    Ok((detach(attached)?, responses))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_is_watched_with_its_children() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let family = family(std::process::id());
        assert_eq!(family[0], std::process::id());
        // Kernels without `CONFIG_PROC_CHILDREN` do not list children.
        let lists = fs::metadata("/proc/self/task").is_ok()
            && fs::metadata(format!("/proc/{0}/task/{0}/children", std::process::id())).is_ok();
        assert_eq!(family.contains(&child.id()), lists);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_account_of_a_busy_process_grows() {
        // A separate process, because other tests start and end threads in this one.
        let mut busy = Command::new("sh")
            .args(["-c", "while :; do sleep 0.001; done"])
            .spawn()
            .unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        let mut accounts = std::iter::repeat_with(|| account(busy.id()).unwrap_or_default());
        let before = accounts.next().unwrap();
        let grown = accounts.take_while(|_| Instant::now() < until).any(|now| {
            now.since(&before, |thread| thread.cpu_ns) > 0.0
                && now.since(&before, |thread| thread.voluntary) > 0.0
        });
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert!(grown, "{before:?}");
    }

    #[test]
    fn a_process_that_is_gone_is_reported() {
        assert!(
            account(u32::MAX)
                .unwrap_err()
                .contains("/proc/4294967295/task")
        );
    }
}
