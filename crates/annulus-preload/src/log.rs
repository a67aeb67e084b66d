//! # Safety
//!
//! What is said: lines in a file that the operator names. Nothing on stdout, ever, and on stderr one line, if
//! io_uring is refused (Lent: strings of ours for the call).
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

use crate::config;

/// A line for the log, if there is one.
pub(crate) fn say(line: &str) {
    if config::get().log.is_some() {
        write_to_log(line);
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

fn write_to_log(line: &str) -> bool {
    let Some(path) = &config::get().log else {
        return false;
    };
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC | libc::O_NOCTTY;
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
    let Ok(fd) = i32::try_from(fd) else {
        return false;
    };
    if fd < 0 {
        return false;
    }
    write(fd, line);
    // SAFETY: Open: opened above.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    true
}

/// In one call, so that lines of several processes do not mix.
fn write(fd: i32, line: &str) {
    let pid = std::process::id();
    let line = format!("annulus[{pid}]: {line}\n");
    // SAFETY: Lent: borrowed for the call.
    unsafe { libc::syscall(libc::SYS_write, fd, line.as_ptr(), line.len()) };
}
