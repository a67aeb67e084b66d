//! # Safety
//!
//! Other programs, children and the end (Typed, Lent: as the header of the hooks says).
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc)]

use std::ffi::{c_char, c_int};

use libc::pid_t;

use super::guard;
use crate::process;
use crate::real;

type Strings = *const *const c_char;

/// A child that shares its parent's memory until it becomes another program would close the parent's connections in
/// the parent's table. POSIX lets `vfork` be `fork`.
#[unsafe(no_mangle)]
unsafe extern "C" fn vfork() -> pid_t {
    unsafe { real::fork() }
}

fn before_another() {
    guard(|| {
        process::becomes_another();
        None
    });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execve(path: *const c_char, arguments: Strings, variables: Strings) -> c_int {
    before_another();
    unsafe { real::execve(path, arguments, variables) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execv(path: *const c_char, arguments: Strings) -> c_int {
    before_another();
    unsafe { real::execv(path, arguments) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execvp(file: *const c_char, arguments: Strings) -> c_int {
    before_another();
    unsafe { real::execvp(file, arguments) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execvpe(file: *const c_char, arguments: Strings, variables: Strings) -> c_int {
    before_another();
    unsafe { real::execvpe(file, arguments, variables) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fexecve(fd: c_int, arguments: Strings, variables: Strings) -> c_int {
    before_another();
    unsafe { real::fexecve(fd, arguments, variables) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _exit(status: c_int) -> ! {
    guard(|| {
        process::ends();
        None
    });
    loop {
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _Exit(status: c_int) -> ! {
    unsafe { _exit(status) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn abort() -> ! {
    guard(|| {
        process::ends();
        None
    });
    // As the C library does it: whatever handles the signal comes first, then nothing handles it.
    unsafe {
        libc::raise(libc::SIGABRT);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(libc::SIGABRT, &raw const action, std::ptr::null_mut());
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGABRT);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        libc::raise(libc::SIGABRT);
    }
    loop {
        unsafe { libc::syscall(libc::SYS_exit_group, 127) };
    }
}
