//! State inherited from the parent process that Rust's runtime changes before `main`: the runtime ignores
//! SIGPIPE, and opens `/dev/null` where standard input, output or error is closed. A process that execs another
//! program restores both, so that the program starts as if it were a direct child.

#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static SIGPIPE_IGNORED: AtomicBool = AtomicBool::new(false);
static CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

/// Runs `record` before `main`, in which the runtime starts.
// SAFETY: the loader calls each function of this section once, on this thread, before `main`. `record` makes only
// system calls and atomic stores, which need no runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn() = record;

extern "C" fn record() {
    // SAFETY: `sigaction` is plain data, for which zero bytes are a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes only to `action`, and changes no handler.
    let status = unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut action) };
    let ignored = status == 0 && action.sa_sigaction == libc::SIG_IGN;
    SIGPIPE_IGNORED.store(ignored, Relaxed);
    for (number, closed) in CLOSED.iter().enumerate() {
        // SAFETY: F_GETFD reads the flags of a number and changes no descriptor.
        let flags = unsafe { libc::fcntl(number as RawFd, libc::F_GETFD) };
        closed.store(flags < 0, Relaxed);
    }
}

/// Restores the inherited state for the program that this process is about to exec. Nothing may be printed afterwards,
/// except to a descriptor that was open all the time.
pub fn restore_inherited() {
    if !SIGPIPE_IGNORED.load(Relaxed) {
        // SAFETY: this process has set no handler for SIGPIPE, so none is removed. SIG_DFL is the disposition that it
        // was started with.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
    for (number, closed) in CLOSED.iter().enumerate() {
        if closed.load(Relaxed) {
            // SAFETY: the number was closed at the start, so it is the runtime's `/dev/null`, which no other code owns.
            unsafe { libc::fcntl(number as RawFd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
}
