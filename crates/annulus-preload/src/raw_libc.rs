//! # Safety
//!
//! The C library's types and functions, except for `syscall`, which is the bare system call. The `syscall` that libc
//! exports is a hook of this library, and no code here may call its own hooks (Sealed, Typed).
#![allow(unsafe_code)]

pub(crate) use ::libc::*;

#[cfg(target_arch = "aarch64")]
pub(crate) use crate::arch::missing::*;
use crate::arch::system_call;

/// Returns the kernel's result, or -1 and errno, as libc's `syscall` does. It takes no lock, allocates no memory and
/// needs no other library, so a signal handler or an allocator that is still starting may call it.
#[allow(non_upper_case_globals, reason = "it stands for libc's function")]
pub(crate) const syscall: unsafe extern "C" fn(c_long, ...) -> c_long =
    // SAFETY: Typed: it takes up to seven integers by the C calling convention, and returns one.
    unsafe {
        std::mem::transmute::<unsafe extern "C" fn(), unsafe extern "C" fn(c_long, ...) -> c_long>(
            system_call,
        )
    };
