//! System calls of the generator: sockets, CPU affinity, clocks, limits.

#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::address::KernelAddress;
use crate::Failure;
use crate::forbidden::rings_allowed;

/// The maximum delay of a wait. The default of 50 µs would distort a fixed rate.
const TIMER_SLACK_NS: libc::c_ulong = 1000;

/// Opens a non-blocking stream socket, bound to `source` if given.
pub(super) fn socket(family: i32, source: Option<Ipv4Addr>) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no memory is passed.
    let fd = checked(unsafe { libc::socket(family, kind, 0) })?;
    // SAFETY: the call has just created this descriptor, and no other code owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    if family != libc::AF_UNIX {
        switch_on(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY)?;
    }
    if let Some(source) = source {
        // Choosing the port at connect makes all ports available for each pair of source and destination.
        switch_on(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT)?;
        let address = KernelAddress::tcp(SocketAddr::V4(SocketAddrV4::new(source, 0)));
        // SAFETY: the address is a whole `sockaddr` that lives for the length of the call.
        checked(unsafe { libc::bind(fd, address.as_ptr(), address.len) })?;
    }
    Ok(socket)
}

fn switch_on(fd: RawFd, level: i32, option: i32) -> io::Result<()> {
    let on: libc::c_int = 1;
    let len = size_of_val(&on) as libc::socklen_t;
    // SAFETY: the option's value is an `int` that lives for the length of the call.
    checked(unsafe { libc::setsockopt(fd, level, option, (&raw const on).cast(), len) }).map(drop)
}

/// Shuts both directions down, which completes a pending receive of the ring.
pub(super) fn shutdown(socket: &OwnedFd) {
    // SAFETY: no memory is passed. An error means that the connection is already closed.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
}

/// Pins the calling thread to a processor.
pub(super) fn pin(cpu: usize) -> io::Result<()> {
    // SAFETY: all zeroes is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the number is below the size of the set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set lives for the length of the call.
    checked(unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) }).map(drop)
}

/// Makes timers of the calling thread as exact as possible.
pub(super) fn exact_timers() {
    // SAFETY: no memory is passed. If the call fails, a fixed rate is slightly less even.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, TIMER_SLACK_NS) };
}

/// Returns the CPU time of the calling thread.
pub(super) fn thread_cpu_ns() -> u64 {
    let mut time = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: the call writes one `timespec` to memory for one.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, time.as_mut_ptr()) };
    // SAFETY: the memory is zeroed, which is valid for this plain struct, or written by the kernel.
    let time = unsafe { time.assume_init() };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Raises the soft limit of open files to the hard limit, and returns the limit.
pub fn raise_open_files() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the struct lives for the length of the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return 0;
    }
    let soft = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: `limit` is a local value that outlives the call. If the call fails, the old limit stays.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } {
        0 => limit.rlim_max,
        _ => soft,
    }
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

fn checked(code: i32) -> io::Result<i32> {
    match code {
        -1 => Err(io::Error::last_os_error()),
        code => Ok(code),
    }
}
