//! # Safety
//!
//! Children that libc makes without the handlers of `pthread_atfork` (Typed, Lent: as the header of the hooks says).
#![allow(unsafe_code)]
#![allow(
    clippy::missing_safety_doc,
    clippy::undocumented_unsafe_blocks,
    reason = "the header's note holds for each: what the program passed is passed on"
)]

use std::ffi::{c_int, c_void};

use libc::pid_t;

use super::guard;
use crate::process;
use crate::real::{self, Run};

// ---- children ----

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _Fork() -> pid_t {
    guard(|| {
        process::has_child();
        None
    });
    unsafe { real::_Fork() }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __vfork() -> pid_t {
    unsafe { real::fork() }
}

/// With as many arguments as there may be; those that the caller left out are passed on as they lie there.
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
    guard(|| {
        process::is_about_to_clone(flags);
        None
    });
    unsafe { real::clone(run, stack, flags, argument, parent, thread, child) }
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
    unsafe { clone(run, stack, flags, argument, parent, thread, child) }
}
