//! Counts system calls in the kernel with `perf stat` on the `raw_syscalls` tracepoints.
//!
//! One counter counts all calls. Two filtered counters for each name count its calls and its negative results. perf
//! attaches with its counters disabled. A command on its standard input enables them, and perf acknowledges it.

use syscalls::Sysno;

use super::calls::Counted;
use super::is_installed;
use super::tracer::Tracer;

/// The calls that are counted by name: those that programs make in normal work. Each name adds two filters to every
/// call, so the list leaves out most of the 360 calls.
const NAMES: &str = "\
    read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 io_uring_enter io_uring_setup \
    io_uring_register io_submit io_getevents io_pgetevents io_setup io_destroy epoll_wait epoll_pwait \
    epoll_pwait2 epoll_ctl poll ppoll select pselect6 accept accept4 connect socket shutdown recvfrom \
    recvmsg recvmmsg sendto sendmsg sendmmsg sendfile splice setsockopt futex sched_yield nanosleep \
    clock_nanosleep clone clone3 exit openat close fsync fdatasync msync mmap munmap madvise rt_sigprocmask \
    timerfd_settime ioctl lseek newfstatat statx fadvise64 fallocate sched_setaffinity";
const EVENT: &str = "raw_syscalls:sys_enter";
const RETURN: &str = "raw_syscalls:sys_exit";
const HINT: &str =
    "run as root, or set sysctl kernel.perf_event_paranoid=-1 and let tracefs be read";

/// A running `perf stat`.
pub(crate) struct Counter {
    tracer: Tracer,
    names: Vec<Sysno>,
}

impl Counter {
    /// Counts all calls of these processes and of the processes that they start.
    pub(crate) fn of_all(pids: &[u32]) -> Result<Counter, String> {
        Counter::start(pids, Vec::new())
    }

    /// Counts all calls of these processes and of the processes that they start, in total and by name.
    pub(crate) fn by_name(pids: &[u32]) -> Result<Counter, String> {
        // Some architectures have no `epoll_wait` or `poll`.
        let names = NAMES
            .split(' ')
            .filter_map(|name| name.parse().ok())
            .collect();
        Counter::start(pids, names)
    }

    fn start(pids: &[u32], names: Vec<Sysno>) -> Result<Counter, String> {
        if !is_installed("perf") {
            return Err("perf is not installed (Debian: apt install linux-perf)".into());
        }
        let refused = |why: String| format!("perf: {why}; {HINT}");
        let mut tracer = Tracer::start("perf", &arguments(pids, &names), None)?;
        tracer.send("enable\n")?;
        tracer.wait_for(|line| line == "ack").map_err(refused)?;
        Ok(Counter { tracer, names })
    }

    /// Detaches perf and returns the counts.
    pub(crate) fn stop(self) -> Result<Counted, String> {
        let text = self.tracer.end().map_err(|why| format!("perf: {why}"))?;
        read(&text, &self.names)
    }
}

fn arguments(pids: &[u32], names: &[Sysno]) -> Vec<String> {
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    let mut arguments: Vec<String> = [
        "stat",
        "-x,",
        "--no-merge",
        "-D",
        "-1",
        "--control",
        "fd:0,2",
        "-p",
        &pids.join(","),
        "-e",
        EVENT,
    ]
    .map(String::from)
    .into();
    for name in names {
        let id = name.id();
        for (event, filter) in [
            (EVENT, format!("id=={id}")),
            (RETURN, format!("id=={id} && ret<0")),
        ] {
            arguments.extend(["-e", event, "--filter", &filter].map(String::from));
        }
    }
    arguments
}

/// Parses the output of perf: one line for each counter in the requested order, such as
/// `3000,,raw_syscalls:sys_enter,…`.
pub(super) fn read(text: &str, names: &[Sysno]) -> Result<Counted, String> {
    let counts: Vec<u64> = (text.lines())
        .filter_map(|line| {
            let mut fields = line.split(',');
            let (count, event) = (fields.next()?, fields.nth(1)?);
            // A counter that never ran shows `<not counted>`.
            [EVENT, RETURN]
                .contains(&event)
                .then(|| count.trim().parse().unwrap_or(0))
        })
        .collect();
    let (Some(&all), 1) = (counts.first(), counts.len() % 2) else {
        return Err(unexpected(text));
    };
    if counts.len() != 1 + 2 * names.len() {
        return Err(unexpected(text));
    }
    let named = names.iter().zip(counts[1..].chunks_exact(2));
    let named = named.map(|(name, pair)| (name.name().to_string(), pair[0], pair[1]));
    Ok(Counted::new(all, named.collect()))
}

fn unexpected(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty());
    format!(
        "perf did not report the requested counts: {}; {HINT}",
        line.unwrap_or("it printed nothing")
    )
}
