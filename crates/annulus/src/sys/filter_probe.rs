//! # Safety
//!
//! Determines whether a seccomp filter ends the process for a call of io_uring. The kernel tells a process that it has
//! a filter, but not what the filter does, so a child makes the calls. It is a copy of the calling thread, with its own
//! memory and the same filters. The calls get no ring and no memory (Lent), and the child uses no lock and no
//! allocator, which another thread of the parent may have held.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{c_int, c_long};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Pid, WaitOptions, set_dumpable_behavior, waitpid};
use rustix::thread::{SecureComputingMode, secure_computing_mode};

use super::probe;
use crate::error::SetupError;

/// The calls of io_uring that a ring needs.
pub(crate) const RING_CALLS: [c_long; 3] = [
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

thread_local! {
    /// The last result of this thread, and the number of filters that it holds for. Not shared by the threads of the
    /// process: each may have added other filters, and the kernel reports only their number. A virtual machine monitor
    /// gives each thread a different filter, for example.
    static KNOWN: Cell<Option<(u32, bool)>> = const { Cell::new(None) };
}

/// Fails if a filter of the calling thread ends the process for a call of io_uring. Creates a child only if the thread
/// has filters, and remembers its result until the thread gets another filter.
pub(crate) fn check() -> Result<(), SetupError> {
    if !is_filtered() {
        return Ok(());
    }
    let filters = probe::seccomp_filters_count();
    let known = KNOWN.get();
    let kills = match known.filter(|&(known, _)| filters == Some(known)) {
        Some((_, kills)) => kills,
        None => kills(&RING_CALLS).map_err(probe::explain_no_child)?,
    };
    KNOWN.set(filters.map(|filters| (filters, kills)));
    match kills {
        true => Err(probe::explain_kill()),
        false => Ok(()),
    }
}

/// Returns whether a filter of the calling thread ends the process for one of `calls`, each made with arguments that
/// the kernel itself refuses.
///
/// # Errors
///
/// Fails if the kernel refuses a child: the process limit is reached, or memory is short.
pub(crate) fn kills(calls: &[c_long]) -> io::Result<bool> {
    if !is_filtered() {
        return Ok(false);
    }
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // A signal to the process group would run a handler of the program in the child.
    // SAFETY: Lent: both sets are of this stack.
    let masked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr())
    };
    // SAFETY: Lent: the child gets a copy of this stack, as no flag shares memory. Without an exit signal, the program
    // gets no SIGCHLD, and its `wait` does not see the child.
    let child = unsafe { call(libc::SYS_clone, [0; 5]) };
    if child == 0 {
        run_child(calls);
    }
    let started = c_int::try_from(child).ok().filter(|&child| child > 0);
    let killed = match started.and_then(Pid::from_raw) {
        Some(child) => was_killed(child),
        None => Err(io::Error::from_raw_os_error(
            c_int::try_from(-child).unwrap_or(libc::EAGAIN),
        )),
    };
    if masked == 0 {
        // SAFETY: Lent: `before` was written above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    }
    killed
}

fn is_filtered() -> bool {
    secure_computing_mode() == Ok(SecureComputingMode::Filter)
}

/// Makes the calls, and ends the child if none of them has ended it.
fn run_child(calls: &[c_long]) -> ! {
    // Otherwise a kill writes a core dump with the memory of the program.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    for &number in calls {
        // SAFETY: Lent: no descriptor, no entries and no memory.
        unsafe { call(number, [-1, 0, 0, 0, 0]) };
    }
    loop {
        // SAFETY: Typed: a number. Handlers of the program do not run.
        unsafe { call(libc::SYS_exit_group, [0; 5]) };
    }
}

fn was_killed(child: Pid) -> io::Result<bool> {
    /// `__WALL`: also children without an exit signal.
    const ALL: u32 = 0x4000_0000;
    loop {
        match waitpid(Some(child), WaitOptions::from_bits_retain(ALL)) {
            Ok(ended) => return Ok(ended.is_some_and(|(_, status)| status.signaled())),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Makes a system call. Not by libc, whose `syscall` may be a hook of `annulus-preload` (Sealed), which would prepare
/// for a child. Returns the result, or minus an errno.
///
/// # Safety
///
/// Lent: the arguments satisfy the contract of the call.
#[cfg(target_arch = "x86_64")]
unsafe fn call(number: c_long, arguments: [c_long; 5]) -> c_long {
    let result;
    let [a, b, c, d, e] = arguments;
    // SAFETY: Lent: the caller upholds the contract of the call; the kernel changes no other registers.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") 0_u64,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Makes a system call, as above. The preload library hooks `syscall` on x86-64 only.
///
/// # Safety
///
/// Lent: the arguments satisfy the contract of the call.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn call(number: c_long, arguments: [c_long; 5]) -> c_long {
    let [a, b, c, d, e] = arguments;
    // SAFETY: Lent: the caller upholds the contract of the call.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, 0_u64) };
    if result < 0 {
        return -c_long::from(io::Error::last_os_error().raw_os_error().unwrap_or(0));
    }
    result
}
