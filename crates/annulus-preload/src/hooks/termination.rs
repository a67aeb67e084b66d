//! # Safety
//!
//! Children that libc creates without the handlers of `pthread_atfork`, cancelled threads, jumps out of handlers, and
//! ways to end the process that run no exit handler (Typed, Lent: the header of `hooks` gives the contract).
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc, reason = "the header names the contract")]

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{pid_t, pthread_t, sigval};

use super::attempt;
use crate::epoll_set_list;
use crate::process;
use crate::real::{Run, call_next};
use crate::ring_policy;
use crate::signals;
use crate::sys;

// ---- children ----

hooks! {
    /// Takes the largest number of arguments; those that the caller left out are forwarded unread.
    fn clone(run: Option<Run>, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent: *mut pid_t,
        thread: *mut c_void, child: *mut pid_t) -> c_int {
        attempt(|| process::before_clone(flags));
        pass_on!(real(run, stack, flags, argument, parent, thread, child))
    }

    fn __clone(run: Option<Run>, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent: *mut pid_t,
        thread: *mut c_void, child: *mut pid_t) -> c_int {
        pass_on!(clone(run, stack, flags, argument, parent, thread, child))
    }
}

// ---- threads and jumps ----

hooks! {
    /// A thread that sleeps in a ring is not in a function that glibc would interrupt.
    fn pthread_cancel(thread: pthread_t) -> c_int {
        let ret = pass_on!(real(thread));
        if ret == 0 {
            attempt(|| epoll_set_list::cancel_sleep_of(thread as usize));
        }
        ret
    }
}

passes_registers! {
    fn __sigsetjmp(_environment: *mut c_void, saves_mask: c_int) {
        // A handler that jumps without restoring the mask would leave its signal blocked.
        if saves_mask != 0 && !signals::tracks_nothing() {
            attempt(process::before_jumps);
        }
    }
}

// ---- ends ----

/// Defines functions of libc that abort by an internal call, which no hook sees. A handler of the program may go on.
macro_rules! aborts {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name($($arg: $type),*) -> ! {
                attempt(process::before_possible_exit);
                call_next!($name($($arg: $type),*) -> c_int);
                // SAFETY: Typed: it may be called at any time.
                unsafe { libc::abort() }
            }
        )*
    };
}

aborts! {
    __assert_fail(what: *const c_char, file: *const c_char, line: c_uint, function: *const c_char);
    __assert_perror_fail(errno: c_int, file: *const c_char, line: c_uint, function: *const c_char);
    __assert(what: *const c_char, file: *const c_char, line: c_int);
    __stack_chk_fail();
    __chk_fail();
    abort();
}

/// Sends queued bytes before a signal that ends or stops this process.
fn before_signal(signal: c_int) {
    // After a filter was set, no bytes are queued, and the query may be forbidden.
    if signal != 0 && !ring_policy::may_be_filtered() && sys::is_fatal(signal) {
        attempt(process::before_exec);
    }
}

/// Returns whether a signal to `pid`, in the notation of `kill(2)`, reaches this process as well.
fn targets_self(pid: pid_t) -> bool {
    match pid {
        _ if ring_policy::may_be_filtered() => false,
        0 | -1 => true,
        // SAFETY: Typed: a function that may be called at any time.
        1.. => pid == unsafe { libc::getpid() },
        // SAFETY: Typed: as above.
        group => group.checked_neg() == Some(unsafe { libc::getpgrp() }),
    }
}

hooks! {
    before { before_signal(signal) }
    fn raise(signal: c_int) -> c_int;
    fn pthread_kill(thread: pthread_t, signal: c_int) -> c_int;
    fn pthread_sigqueue(thread: pthread_t, signal: c_int, value: sigval) -> c_int;
    before {
        if targets_self(pid) {
            before_signal(signal);
        }
    }
    fn kill(pid: pid_t, signal: c_int) -> c_int;
    fn sigqueue(pid: pid_t, signal: c_int, value: sigval) -> c_int;
    fn tgkill(pid: pid_t, thread: pid_t, signal: c_int) -> c_int;
    before {
        if group == 0 || targets_self(group.saturating_neg()) {
            before_signal(signal);
        }
    }
    fn killpg(group: pid_t, signal: c_int) -> c_int;
}

hooks! {
    fn gsignal(signal: c_int) -> c_int { pass_on!(raise(signal)) }
}
