//! # Safety
//!
//! The C library's types and functions, except for `syscall`, which is the bare system call. The `syscall` that libc
//! exports is a hook of this library, and no code here may call its own hooks (Sealed, Typed).
#![allow(unsafe_code)]

pub(crate) use ::libc::*;

/// Returns the kernel's result, or -1 and errno, as libc's `syscall` does. It takes no lock, allocates no memory and
/// needs no other library, so a signal handler or an allocator that is still starting may call it.
#[allow(non_upper_case_globals, reason = "it stands for libc's function")]
pub(crate) const syscall: unsafe extern "C" fn(c_long, ...) -> c_long =
    // SAFETY: Typed: it takes up to seven integers by the C calling convention, and returns one.
    unsafe {
        std::mem::transmute::<unsafe extern "C" fn(), unsafe extern "C" fn(c_long, ...) -> c_long>(
            direct,
        )
    };

/// Moves the number and six arguments from the registers of the C calling convention to those of a system call.
///
/// A child that this creates on another stack (`clone`) returns from here on that stack, as from libc's function.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn direct() {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 2f",
        "ret",
        "2:",
        "neg eax",
        "push rax",
        ".cfi_adjust_cfa_offset 8",
        "call {errno}",
        "pop rcx",
        ".cfi_adjust_cfa_offset -8",
        "mov [rax], ecx",
        "mov rax, -1",
        "ret",
        ".cfi_endproc",
        errno = sym __errno_location,
    )
}
