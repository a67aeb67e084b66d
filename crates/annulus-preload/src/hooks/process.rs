//! # Safety
//!
//! Exec, children and the end of the process (Typed, Lent: the header of `hooks` gives the contract).
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc, reason = "the header names the contract")]

use std::ffi::{c_char, c_int, c_ulong, c_void};

use libc::{FILE, gid_t, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t, uid_t};

use super::attempt;
use crate::process;
use crate::raw_libc as libc;
use crate::real;

hooks! {
    /// Calls `fork`, as POSIX allows. A child that shares its parent's memory until it executes another program would
    /// mark the parent's connections as closed in the parent's table.
    fn vfork() -> pid_t { pass_on!(real::fork()) }
}

hooks! {
    // glibc creates these children without the handlers of `pthread_atfork`.
    before { attempt(|| process::before_fork_child()) }
    fn posix_spawn(child: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, arguments: *const *mut c_char, variables: *const *mut c_char) -> c_int;
    fn posix_spawnp(child: *mut pid_t, file: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, arguments: *const *mut c_char, variables: *const *mut c_char) -> c_int;
    fn system(command: *const c_char) -> c_int;
    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE;
    fn _Fork() -> pid_t;
    fn wordexp(words: *const c_char, result: *mut c_void, flags: c_int) -> c_int;
    before { attempt(process::before_exec) }
    fn execve(path: *const c_char, arguments: *const *const c_char, variables: *const *const c_char) -> c_int;
    fn execv(path: *const c_char, arguments: *const *const c_char) -> c_int;
    fn execvp(file: *const c_char, arguments: *const *const c_char) -> c_int;
    fn execvpe(file: *const c_char, arguments: *const *const c_char, variables: *const *const c_char) -> c_int;
    fn execveat(folder: c_int, path: *const c_char, arguments: *const *const c_char, variables: *const *const c_char,
        flags: c_int) -> c_int;
    fn fexecve(fd: c_int, arguments: *const *const c_char, variables: *const *const c_char) -> c_int;
    // A kernel thread that polls for a ring keeps the credentials with which the ring was created (trap 20).
    before { attempt(process::before_credential_change) }
    fn setuid(user: uid_t) -> c_int;
    fn setgid(group: gid_t) -> c_int;
    fn seteuid(user: uid_t) -> c_int;
    fn setegid(group: gid_t) -> c_int;
    fn setreuid(real: uid_t, effective: uid_t) -> c_int;
    fn setregid(real: gid_t, effective: gid_t) -> c_int;
    fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int;
    fn setresgid(real: gid_t, effective: gid_t, saved: gid_t) -> c_int;
}

passes_registers! {
    fn execl() { attempt(process::before_exec) }
    fn execlp() { attempt(process::before_exec) }
    fn execle() { attempt(process::before_exec) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn _exit(status: c_int) -> ! {
    attempt(process::before_exit);
    loop {
        // SAFETY: Typed: a system call with one integer, which does not return.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _Exit(status: c_int) -> ! {
    pass_on!(_exit(status))
}

hooks! {
    fn prctl(what: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
        match what {
            // It usually comes before a filter.
            libc::PR_SET_NO_NEW_PRIVS if a == 1 => {
                attempt(process::before_possible_filter);
            }
            // Without a filter, this call only tests whether filters are supported.
            libc::PR_SET_SECCOMP if a != c_ulong::from(libc::SECCOMP_MODE_FILTER) || b != 0 => {
                attempt(process::before_filter);
            }
            _ => {}
        }
        pass_on!(real(what, a, b, c, d))
    }
}
