//! State inherited from the parent process that Rust's runtime changes before `main`: the runtime ignores
//! SIGPIPE, and opens `/dev/null` where standard input, output or error is closed. A process that execs another
//! program restores both, so that the program starts as if it were a direct child.

#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static SIGPIPE_IGNORED: AtomicBool = AtomicBool::new(false);
static CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

/// Runs before the runtime, which starts in `main`.
// SAFETY: the section holds pointers to functions that the loader calls once, in this thread, before `main`; this one
// makes system calls and stores, which need nothing that would not be there yet.
#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn() = record;

extern "C" fn record() {
    // SAFETY: plain data, for which zero bytes are a value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: it writes to that only, and changes nothing.
    let status = unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut action) };
    let ignored = status == 0 && action.sa_sigaction == libc::SIG_IGN;
    SIGPIPE_IGNORED.store(ignored, Relaxed);
    for (number, closed) in CLOSED.iter().enumerate() {
        // SAFETY: asks for a number; no descriptor is changed.
        let flags = unsafe { libc::fcntl(number as RawFd, libc::F_GETFD) };
        closed.store(flags < 0, Relaxed);
    }
}

/// Restores the inherited state for the program that this process is about to exec. Nothing may be printed afterwards,
/// except to a descriptor that was open all the time.
pub fn restore_inherited() {
    if !SIGPIPE_IGNORED.load(Relaxed) {
        // SAFETY: no handler of this process is removed; the default is what this process was started with.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
    for (number, closed) in CLOSED.iter().enumerate() {
        if closed.load(Relaxed) {
            // SAFETY: it is the runtime's `/dev/null`, which nobody else knows.
            unsafe { libc::fcntl(number as RawFd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
}
