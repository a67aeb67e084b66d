//! # Safety
//!
//! What is said: lines in a file that the operator names. Nothing on stdout, ever, and on stderr one line, if
//! io_uring is refused (Lent: strings of ours for the call).
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use crate::config;
use crate::ours;
use crate::sealed as libc;
use crate::sys;
use crate::table::{self, Kind};

/// A line for the log, if there is one.
pub(crate) fn say(line: &str) {
    if config::get().log.is_some() {
        let pid = crate::process::pid();
        write_to_log(&format!("process {pid}: {line}"));
    }
}

/// To the log, else to stderr.
pub(crate) fn say_somewhere(line: &str) {
    if !write_to_log(line) {
        write(2, line);
    }
}

/// io_uring can't be had: said once in a process and its children.
pub(crate) fn refused(why: &str) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        say_somewhere(&format!("runs as without Annulus: {why}"));
    }
}

/// Opened when the library is loaded: later the process may have another user, or another root.
static OPENED: AtomicI32 = AtomicI32::new(-1);
/// Which file that is: its device and its number.
static DEVICE: AtomicU64 = AtomicU64::new(0);
static NUMBER: AtomicU64 = AtomicU64::new(0);

pub(crate) fn open() {
    let Some(path) = &config::get().log else {
        return;
    };
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC | libc::O_NOCTTY;
    // SAFETY: Lent: a string that ends.
    let low = unsafe {
        libc::syscall(
            libc::SYS_openat,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            0o644,
        )
    };
    if low < 0 {
        let error = std::io::Error::last_os_error();
        let path = path.to_string_lossy();
        write(
            2,
            &format!("no log: {path} can't be opened: {error}; see ANNULUS_LOG"),
        );
        return;
    }
    let low = low as i32;
    // It is opened with a high number, out of the program's way.
    let fd = match sys::dup_above(low, ours::lowest()) {
        Ok(high) => {
            let _ = sys::close(low);
            high
        }
        Err(_) => low,
    };
    if let Some((device, number)) = sys::identity(fd) {
        DEVICE.store(device, Ordering::Relaxed);
        NUMBER.store(number, Ordering::Relaxed);
        OPENED.store(fd, Ordering::Relaxed);
    }
}

/// The log's descriptor is not the program's.
pub(crate) fn keep() {
    if let Some(entry) = table::entry(OPENED.load(Ordering::Relaxed)) {
        entry.become_kind(Kind::Ours, 0);
    }
}

fn write_to_log(line: &str) -> bool {
    let fd = OPENED.load(Ordering::Relaxed);
    // A program that closes all numbers by calls of its own may have another file there.
    let it = (
        DEVICE.load(Ordering::Relaxed),
        NUMBER.load(Ordering::Relaxed),
    );
    if fd < 0 || sys::identity(fd) != Some(it) {
        return false;
    }
    write(fd, line);
    true
}

/// In one call, so that lines of several processes do not mix.
fn write(fd: i32, line: &str) {
    let line = format!("annulus: {line}\n");
    // SAFETY: Lent: borrowed for the call.
    unsafe { libc::syscall(libc::SYS_write, fd, line.as_ptr(), line.len()) };
}
