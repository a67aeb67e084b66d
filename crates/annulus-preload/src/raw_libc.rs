//! # Safety
//!
//! The C library's types and functions, with one difference: `syscall` is the system call itself. The `syscall` that
//! libc exports is a hook of this library, and nothing in it may call its own hooks (Sealed, Typed).
#![allow(unsafe_code)]

pub(crate) use ::libc::*;

/// Like libc's own: returns the kernel's result, or -1 and errno. It takes no lock, allocates nothing and needs nothing
/// to be loaded, so that a signal handler, or an allocator that is just starting, may call it.
#[allow(non_upper_case_globals, reason = "it stands for libc's function")]
#[cfg(target_arch = "x86_64")]
pub(crate) const syscall: unsafe extern "C" fn(c_long, ...) -> c_long =
    // SAFETY: Typed: it takes up to seven integers by the C calling convention, and returns one.
    unsafe {
        std::mem::transmute::<unsafe extern "C" fn(), unsafe extern "C" fn(c_long, ...) -> c_long>(
            direct,
        )
    };

/// Moves the number and six arguments from where a C caller puts them to where the kernel takes them.
///
/// A child that this makes on a stack of its own (`clone`) returns from here on that stack, as from libc's function.
#[cfg(target_arch = "x86_64")]
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
