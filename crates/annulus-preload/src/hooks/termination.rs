//! # Safety
//!
//! Children that libc creates without the handlers of `pthread_atfork`, and ways to end the process that run no exit
//! handler (Typed, Lent: the header of `hooks` gives the contract).
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc, reason = "the header names the contract")]

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{pid_t, pthread_t, sigval};

use super::catch_panic;
use super::process::before_exec;
use crate::process;
use crate::real::{self, Run};
use crate::ring_policy;
use crate::sys;

// ---- children ----

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _Fork() -> pid_t {
    catch_panic(|| {
        process::before_fork_child();
        None
    });
    pass_on!(real::_Fork())
}

/// Takes the largest number of arguments; those that the caller left out are forwarded unread.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn clone(
    run: Option<Run>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: *mut pid_t,
    thread: *mut c_void,
    child: *mut pid_t,
) -> c_int {
    catch_panic(|| {
        process::before_clone(flags);
        None
    });
    pass_on!(real::clone(
        run, stack, flags, argument, parent, thread, child
    ))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __clone(
    run: Option<Run>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: *mut pid_t,
    thread: *mut c_void,
    child: *mut pid_t,
) -> c_int {
    pass_on!(clone(run, stack, flags, argument, parent, thread, child))
}

// ---- ends ----

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn execveat(
    folder: c_int,
    path: *const c_char,
    arguments: *const *const c_char,
    variables: *const *const c_char,
    flags: c_int,
) -> c_int {
    before_exec();
    pass_on!(real::execveat(folder, path, arguments, variables, flags))
}

/// Defines functions of libc that print a message and then abort by an internal call, which no hook sees.
macro_rules! aborts {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name($($arg: $type),*) -> ! {
                catch_panic(|| {
                    process::before_possible_exit();
                    None
                });
                // SAFETY: Typed: the program's own arguments; `abort` may be called at any time.
                unsafe {
                    real::$name($($arg),*);
                    libc::abort()
                }
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
}

/// Sends queued bytes before a signal that ends or stops this process.
fn before_signal(signal: c_int) {
    // After a filter was set, no bytes are queued, and the query may be forbidden.
    if signal != 0 && !ring_policy::may_be_filtered() && sys::is_fatal(signal) {
        before_exec();
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

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn raise(signal: c_int) -> c_int {
    before_signal(signal);
    pass_on!(real::raise(signal))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn gsignal(signal: c_int) -> c_int {
    pass_on!(raise(signal))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn kill(pid: pid_t, signal: c_int) -> c_int {
    if targets_self(pid) {
        before_signal(signal);
    }
    pass_on!(real::kill(pid, signal))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn killpg(group: pid_t, signal: c_int) -> c_int {
    if group == 0 || targets_self(group.saturating_neg()) {
        before_signal(signal);
    }
    pass_on!(real::killpg(group, signal))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn tgkill(process: pid_t, thread: pid_t, signal: c_int) -> c_int {
    if targets_self(process) {
        before_signal(signal);
    }
    pass_on!(real::tgkill(process, thread, signal))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_kill(thread: pthread_t, signal: c_int) -> c_int {
    before_signal(signal);
    pass_on!(real::pthread_kill(thread, signal))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sigqueue(pid: pid_t, signal: c_int, value: sigval) -> c_int {
    if targets_self(pid) {
        before_signal(signal);
    }
    pass_on!(real::sigqueue(pid, signal, value))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_sigqueue(
    thread: pthread_t,
    signal: c_int,
    value: sigval,
) -> c_int {
    before_signal(signal);
    pass_on!(real::pthread_sigqueue(thread, signal, value))
}
