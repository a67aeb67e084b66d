//! System calls of the generator: sockets, CPU affinity, clocks, limits.

#![allow(unsafe_code)]

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::Shutdown;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity, set_current_timer_slack};
use rustix::time::{ClockId, clock_gettime};
use socket2::{Domain, Socket, Type};

use crate::Failure;
use crate::forbidden::rings_allowed;

/// The maximum delay of a wait. The default of 50 µs would distort a fixed rate.
const TIMER_SLACK_NS: Option<NonZeroU64> = NonZeroU64::new(1000);

/// Opens a non-blocking stream socket, bound to `source` if given.
pub(super) fn socket(domain: Domain, source: Option<Ipv4Addr>) -> io::Result<OwnedFd> {
    let socket = Socket::new(domain, Type::STREAM.nonblocking(), None)?;
    if domain != Domain::UNIX {
        socket.set_tcp_nodelay(true)?;
    }
    if let Some(source) = source {
        choose_port_at_connect(&socket)?;
        socket.bind(&SocketAddrV4::new(source, 0).into())?;
    }
    Ok(socket.into())
}

/// Makes all ports available for each pair of source and destination.
fn choose_port_at_connect(socket: &Socket) -> io::Result<()> {
    let on: libc::c_int = 1;
    let len = size_of_val(&on) as libc::socklen_t;
    let (fd, option) = (socket.as_raw_fd(), libc::IP_BIND_ADDRESS_NO_PORT);
    // SAFETY: the option's value is an `int` that lives for the length of the call.
    match unsafe { libc::setsockopt(fd, libc::IPPROTO_IP, option, (&raw const on).cast(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Shuts both directions down, which completes a pending receive of the ring.
pub(super) fn shutdown(socket: &OwnedFd) {
    // An error means that the connection is already closed.
    let _ = rustix::net::shutdown(socket, Shutdown::Both);
}

/// Pins the calling thread to a processor.
pub(super) fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Makes timers of the calling thread as exact as possible.
pub(super) fn exact_timers() {
    // If this fails, a fixed rate is slightly less even.
    let _ = set_current_timer_slack(TIMER_SLACK_NS);
}

/// Returns the CPU time of the calling thread.
pub(super) fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Raises the soft limit of open files to the hard limit, and returns the limit.
pub fn raise_open_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // If this fails, the old limit stays.
    let now = setrlimit(Resource::Nofile, most).map_or(limit.current, |()| most.current);
    now.unwrap_or(u64::MAX)
}

/// Returns the failure if the kernel refuses a ring for the generator.
pub fn kernel_refuses() -> Option<Failure> {
    if let Err(failure) = rings_allowed() {
        return Some(failure);
    }
    match super::ring::build(8) {
        Ok(_) => None,
        Err(error) => Some(ring_failure(&error)),
    }
}

/// Returns the failure of a ring's setup, with advice.
pub(super) fn ring_failure(error: &io::Error) -> Failure {
    let hint = match error.raw_os_error() {
        Some(libc::ENOSYS) => "this kernel has no io_uring, or a seccomp filter hides it",
        Some(libc::EPERM) => "sysctl kernel.io_uring_disabled or a seccomp filter forbids it",
        Some(libc::EINVAL) => "SINGLE_ISSUER | DEFER_TASKRUN need Linux 6.1",
        Some(libc::ENOMEM) => "raise the limit of locked memory, `ulimit -l`",
        _ => return Failure::failed("io_uring_setup", error),
    };
    Failure::Unavailable(format!("io_uring_setup: {error}; {hint}"))
}
