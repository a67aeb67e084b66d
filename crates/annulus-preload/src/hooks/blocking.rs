//! # Safety
//!
//! Calls that may block, other than waits on a set: queued bytes are sent first. Also calls that only a single-threaded
//! process may make (Typed, Lent: the header of `hooks` gives the contract).
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc, reason = "the header names the contract")]

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};

use libc::{
    FILE, addrinfo, clockid_t, id_t, idtype_t, off_t, pid_t, pthread_attr_t, pthread_t, rusage,
    sem_t, sembuf, siginfo_t, sigset_t, size_t, ssize_t, timespec,
};

use super::attempt;
use crate::fd_table::{self, Kind, NONBLOCK};
use crate::flush_thread;
use crate::process;
use crate::ring_policy;
use crate::sys;

/// Sends queued bytes before a call that may sleep.
#[inline]
pub(super) fn before_blocking() {
    flush_thread::flush_before_blocking(None);
}

/// Sends bytes that have been queued for a while, in a call that finds nothing and does not sleep.
#[inline]
pub(super) fn before_repeat() {
    flush_thread::flush_before_repeat();
}

/// Sends queued bytes before an accept that may block. Queries once whether the listener blocks.
#[inline]
pub(super) fn before_accept(fd: c_int) {
    if !flush_thread::has_queued() {
        return;
    }
    let listener = fd_table::entry(fd).filter(|entry| entry.kind() == Kind::Listener);
    let Some(entry) = listener else {
        return before_read(fd);
    };
    if entry.flags() & NONBLOCK == 0 {
        if sys::is_blocking(fd) {
            return before_read(fd);
        }
        entry.set_kind(Kind::Listener, entry.flags() | NONBLOCK);
    }
    before_repeat();
}

/// Sends queued bytes before a read of a descriptor that is not served, if there is nothing to read and it may sleep.
#[inline]
pub(super) fn before_read(fd: c_int) {
    if flush_thread::has_queued() && sys::poll_now(fd, libc::POLLIN as u32) == 0 {
        before_blocking();
    }
}

hooks! {
    before { before_blocking() }
    fn nanosleep(time: *const timespec, left: *mut timespec) -> c_int;
    fn clock_nanosleep(clock: clockid_t, flags: c_int, time: *const timespec, left: *mut timespec) -> c_int;
    fn usleep(us: c_uint) -> c_int;
    fn sleep(seconds: c_uint) -> c_uint;
    fn pause() -> c_int;
    fn sigsuspend(mask: *const sigset_t) -> c_int;
    fn sigwait(set: *const sigset_t, signal: *mut c_int) -> c_int;
    fn sigwaitinfo(set: *const sigset_t, info: *mut siginfo_t) -> c_int;
    fn sigtimedwait(set: *const sigset_t, info: *mut siginfo_t, timeout: *const timespec) -> c_int;
    fn wait(status: *mut c_int) -> pid_t;
    fn waitpid(child: pid_t, status: *mut c_int, options: c_int) -> pid_t;
    fn wait3(status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t;
    fn wait4(child: pid_t, status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t;
    fn waitid(kind: idtype_t, child: id_t, info: *mut siginfo_t, options: c_int) -> c_int;
    fn pclose(stream: *mut FILE) -> c_int;
    fn flock(fd: c_int, operation: c_int) -> c_int;
    fn lockf(fd: c_int, command: c_int, bytes: off_t) -> c_int;
    fn lockf64(fd: c_int, command: c_int, bytes: off_t) -> c_int;
    fn sem_wait(semaphore: *mut sem_t) -> c_int;
    fn sem_timedwait(semaphore: *mut sem_t, until: *const timespec) -> c_int;
    fn semop(set: c_int, operations: *mut sembuf, count: size_t) -> c_int;
    fn semtimedop(set: c_int, operations: *mut sembuf, count: size_t, timeout: *const timespec) -> c_int;
    fn msgrcv(queue: c_int, message: *mut c_void, bytes: size_t, kind: c_long, flags: c_int) -> ssize_t;
    fn getaddrinfo(node: *const c_char, service: *const c_char, hints: *const addrinfo, found: *mut *mut addrinfo)
        -> c_int;
    fn fgets(line: *mut c_char, bytes: c_int, stream: *mut FILE) -> *mut c_char;
    fn fgetc(stream: *mut FILE) -> c_int;
    fn getc(stream: *mut FILE) -> c_int;
    fn getchar() -> c_int;
    fn fread(base: *mut c_void, bytes: size_t, count: size_t, stream: *mut FILE) -> size_t;
    fn getline(line: *mut *mut c_char, bytes: *mut size_t, stream: *mut FILE) -> ssize_t;
    fn getdelim(line: *mut *mut c_char, bytes: *mut size_t, end: c_int, stream: *mut FILE) -> ssize_t;
    fn __getdelim(line: *mut *mut c_char, bytes: *mut size_t, end: c_int, stream: *mut FILE) -> ssize_t;
    fn fgets_unlocked(line: *mut c_char, bytes: c_int, stream: *mut FILE) -> *mut c_char;
    fn fread_unlocked(base: *mut c_void, bytes: size_t, count: size_t, stream: *mut FILE) -> size_t;
    fn __uflow(stream: *mut FILE) -> c_int;
    fn __fgets_chk(line: *mut c_char, capacity: size_t, bytes: c_int, stream: *mut FILE) -> *mut c_char;
    fn __fread_chk(base: *mut c_void, capacity: size_t, bytes: size_t, count: size_t, stream: *mut FILE) -> size_t;
}

/// Sends queued bytes before a connect that blocks. A proxy connects in the middle of its rounds and does not block.
pub(super) fn before_connect(fd: c_int) {
    if flush_thread::has_queued() && sys::is_blocking(fd) {
        before_blocking();
    }
}

/// Makes a call that fails, or behaves differently, in a process with a second thread.
fn alone(call: impl FnOnce() -> c_int) -> c_int {
    before_blocking();
    attempt(|| {
        flush_thread::stop_and_wait();
        // The next child may become the first process of a namespace, which must not be a probe.
        ring_policy::check_inherited_filter()
    });
    let ret = call();
    attempt(flush_thread::restart_if_needed);
    ret
}

hooks! {
    fn unshare(what: c_int) -> c_int {
        let call = || alone(|| pass_on!(real(what)));
        match what & libc::CLONE_FILES {
            0 => call(),
            _ => process::with_private_descriptors(call),
        }
    }

    fn setns(fd: c_int, kind: c_int) -> c_int { alone(|| pass_on!(real(fd, kind))) }
}

hooks! {
    // From now on one thread may wait for bytes that another has queued.
    before { before_blocking() }
    fn pthread_create(thread: *mut pthread_t, attributes: *const pthread_attr_t, run: *mut c_void,
        argument: *mut c_void) -> c_int;
    fn thrd_create(thread: *mut pthread_t, run: *mut c_void, argument: *mut c_void) -> c_int;
}
