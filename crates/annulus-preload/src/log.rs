//! # Safety
//!
//! Messages: lines in the file that `ANNULUS_LOG` names. Nothing is written to stdout, and one line to stderr if
//! io_uring is unavailable (Lent: strings of this library, borrowed for the call).
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::build_id;
use crate::config;
use crate::counters::{self, Why};
use crate::epoll_set_list;
use crate::fd_table::{self, Kind};
use crate::identity;
use crate::raw_libc as libc;
use crate::reserved_fds::{self, Inode, Slot};
use crate::ring_policy;
use crate::signals;
use crate::stops;
use crate::sys;

/// Writes a line to the log, if one is configured.
pub(crate) fn write_line(line: &str) {
    if config::get().log.is_some() {
        let pid = identity::pid();
        write_to_log(&format!("process {pid}: {line}"));
    }
}

/// Writes a line, which may be made without a lock: a handler that jumps out of an allocation would leave the lock of
/// `malloc` taken.
pub(crate) fn write(line: impl FnOnce() -> String) {
    signals::without(|| write_line(&line()));
}

/// The file that is stderr. Another file that gets its number is not written to.
static STDERR: Slot = Slot::new();

/// Records the file of stderr, at the start and when the program gives the number another one on purpose.
pub(crate) fn on_stderr() {
    STDERR.identify(2, Inode::Own);
}

/// Writes a line to the log, or to stderr if there is no log.
pub(crate) fn write_line_or_stderr(line: &str) {
    if !write_to_log(line) && STDERR.is_same_file(2) {
        write_to(2, line);
    }
}

/// The first reason for which no ring could be created.
static REFUSAL: OnceLock<String> = OnceLock::new();

/// Reports that io_uring is unavailable, once in a process and its children.
pub(crate) fn log_refused(why: &str) {
    let _ = REFUSAL.set(why.to_owned());
    static REFUSAL_LOGGED: AtomicBool = AtomicBool::new(false);
    if !REFUSAL_LOGGED.swap(true, Ordering::Relaxed) {
        write_line_or_stderr(&format!("io_uring is not used: {why}"));
    }
}

/// This process has logged its build.
static BUILD_LOGGED: AtomicBool = AtomicBool::new(false);
/// This process has created a ring.
static HAS_RING: AtomicBool = AtomicBool::new(false);
/// This process has logged that a ring serves a connection.
static SERVES_LOGGED: AtomicBool = AtomicBool::new(false);
/// This process has logged why it has no ring yet.
static REASON_LOGGED: AtomicBool = AtomicBool::new(false);

/// Logs the build, before the first other line of this process.
pub(crate) fn log_build() {
    if config::get().log.is_some() && !BUILD_LOGGED.swap(true, Ordering::Relaxed) {
        let (build, command) = (build_id::name(), identity::command());
        write_line(&format!(
            "{command} under {build}, Linux {}",
            build_id::kernel()
        ));
    }
}

/// Logs the first ring of the process.
pub(crate) fn has_ring(backend: &str) {
    if !HAS_RING.swap(true, Ordering::Relaxed) {
        log_build();
        write_line(&format!("created its first ring: {backend}"));
    }
}

/// Confirms that serving works, with the first connection that a ring of the process serves.
#[cold]
pub(crate) fn serves_connection() {
    if !SERVES_LOGGED.swap(true, Ordering::Relaxed) {
        write_line("all is well: io_uring serves the first connection");
    }
}

/// Logs why a connection passes through, if it is the first and the process has no ring.
#[cold]
pub(crate) fn log_first_pass(why: Why) {
    if !HAS_RING.load(Ordering::Relaxed) && !REASON_LOGGED.swap(true, Ordering::Relaxed) {
        write(|| {
            log_build();
            let why = why.name();
            format!("no ring yet: the first connection passes through: {why}")
        });
    }
}

/// Logs, when the process ends, why it never created a ring, or which sets and listeners it stopped serving.
pub(crate) fn log_result() {
    let config = config::get();
    if config.log.is_none() || config.disabled {
        return;
    }
    let left = stops::summary().map(|stops| format!("left to the kernel: {stops}"));
    if HAS_RING.load(Ordering::Relaxed) {
        if let Some(left) = left {
            write_line(&left);
        }
        return;
    }
    log_build();
    let counted = counters::passed_by_reason();
    let why = match REFUSAL.get() {
        Some(refusal) => refusal.as_str(),
        None if !counted.is_empty() => counted.as_str(),
        None if epoll_set_list::all().next().is_none() => "the process created no epoll set",
        None => "no thread waited on an epoll set that had a TCP connection",
    };
    let left = left.map_or_else(String::new, |left| format!("; {left}"));
    write_line(&format!("created no ring: {why}{left}"));
}

/// Resets the flags in a child of a fork, which has logged nothing and created no ring.
pub(crate) fn reset_in_child() {
    for flag in [&BUILD_LOGGED, &HAS_RING, &SERVES_LOGGED, &REASON_LOGGED] {
        flag.store(false, Ordering::Relaxed);
    }
}

/// The log's descriptor. It is opened when the library is loaded: later the process may have another user or root.
static OPENED: AtomicI32 = AtomicI32::new(-1);
/// The log's file.
static FILE: Slot = Slot::new();

/// Opens the file of the log, whose name the operator has set, with additional flags.
fn open_file(path: &CStr, flags: c_int) -> io::Result<i32> {
    let flags = flags | libc::O_WRONLY | libc::O_APPEND | libc::O_CLOEXEC | libc::O_NOCTTY;
    // SAFETY: Lent: a string that ends.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_openat,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            0o644,
        )
    };
    i32::try_from(fd)
        .ok()
        .filter(|&fd| fd >= 0)
        .ok_or_else(io::Error::last_os_error)
}

pub(crate) fn open() {
    let Some(path) = &config::get().log else {
        return;
    };
    let low = match open_file(path, libc::O_CREAT) {
        Ok(low) => low,
        Err(error) => {
            let path = path.to_string_lossy();
            let line =
                format!("cannot open the log {path}: {error}; set ANNULUS_LOG to a writable file");
            return write_to(2, &line);
        }
    };
    // A high number stays out of the program's way.
    let fd = match sys::dup_above(low, reserved_fds::lowest()) {
        Ok(high) => {
            let _ = sys::close(low);
            high
        }
        Err(_) => low,
    };
    FILE.identify(fd, Inode::Own);
    OPENED.store(fd, Ordering::Relaxed);
}

/// Marks the log's descriptor as the library's.
pub(crate) fn reserve_fd() {
    if let Some(entry) = fd_table::entry(OPENED.load(Ordering::Relaxed)) {
        entry.set_kind(Kind::Library, 0);
    }
}

/// In place of a descriptor: the log was closed, and each line opens it.
const CLOSED: i32 = -2;

/// Returns the log's descriptor; negative: it is not open.
pub(crate) fn descriptor() -> i32 {
    OPENED.load(Ordering::Relaxed)
}

/// Writes a line and closes the log, as the process has no descriptor left. Returns whether it was open.
pub(crate) fn close(last_line: &str) -> bool {
    write_line(last_line);
    let fd = OPENED.swap(CLOSED, Ordering::Relaxed);
    if let Some(entry) = fd_table::entry(fd).filter(|entry| entry.kind() == Kind::Library) {
        entry.forget();
    }
    if is_log(fd) {
        let _ = sys::close(fd);
    }
    fd >= 0
}

/// Returns whether the number refers to the log. A program that closes all numbers by raw system calls may have another
/// file with this number.
fn is_log(fd: i32) -> bool {
    fd >= 0 && FILE.is_same_file(fd)
}

fn write_to_log(line: &str) -> bool {
    let fd = OPENED.load(Ordering::Relaxed);
    if is_log(fd) {
        write_to(fd, line);
        return true;
    }
    let path = config::get().log.as_ref().filter(|_| fd == CLOSED);
    let Some(Ok(fd)) = path.map(|path| open_file(path, 0)) else {
        return false;
    };
    write_to(fd, line);
    let _ = sys::close(fd);
    true
}

/// Writes the line in one call, so that lines of several processes do not mix. A pipe that is full would block the
/// program, and one without a reader, or the limit on files, would end it by a signal: the line is lost instead.
fn write_to(fd: i32, line: &str) {
    let line = format!("annulus: {line}\n");
    if !ring_policy::may_soon_be_filtered() && !sys::takes_bytes(fd) {
        return;
    }
    // SAFETY: Lent: borrowed for the call.
    unsafe { libc::syscall(libc::SYS_write, fd, line.as_ptr(), line.len()) };
}
