//! # Safety
//!
//! x86-64. The entry points follow the System V calling convention and that of the kernel (Typed).
#![allow(unsafe_code)]

use std::ops::Range;

use ::libc::__errno_location;

/// The addresses of a program. The first page is never mapped, and user space ends here or before.
const ADDRESSES: Range<usize> = 4096..1 << 47;

/// Returns whether an address may be mapped in the program.
#[inline]
pub(crate) fn may_be_mapped(address: usize) -> bool {
    ADDRESSES.contains(&address)
}

/// Returns the size of a page, bytes.
pub(crate) fn page_bytes() -> usize {
    PAGE_BYTES_MAX
}

/// The largest size of a page, bytes.
pub(crate) const PAGE_BYTES_MAX: usize = 4096;

/// Aligns the value that it is a field of to a page.
#[repr(align(4096))]
pub(crate) struct PageAligned;

/// An event of an epoll set, at any address.
pub(crate) type Event = ::libc::epoll_event;

/// Returns glibc's `pthread_self`, which is this load, without a call.
#[inline]
pub(crate) fn thread_id() -> usize {
    let own: usize;
    // SAFETY: Typed: the first word of the thread's control block has its own address.
    unsafe {
        std::arch::asm!("mov {}, fs:[0x10]", out(reg) own, options(nostack, preserves_flags, readonly));
    }
    own
}

/// Moves the number and six arguments from the registers of the C calling convention to those of a system call.
///
/// A child that this creates on another stack (`clone`) returns from here on that stack, as from libc's function.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn system_call() {
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

/// Calls `$next`, and jumps to the function that it returns, with registers and stack unchanged. Floating-point values
/// are in the vector registers.
macro_rules! jump_to {
    ($next:ident) => {
        std::arch::naked_asm!(
            "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
            "sub rsp, 128",
            "movups [rsp], xmm0", "movups [rsp + 16], xmm1",
            "movups [rsp + 32], xmm2", "movups [rsp + 48], xmm3",
            "movups [rsp + 64], xmm4", "movups [rsp + 80], xmm5",
            "movups [rsp + 96], xmm6", "movups [rsp + 112], xmm7",
            "call {next}",
            "mov r11, rax",
            "movups xmm0, [rsp]", "movups xmm1, [rsp + 16]",
            "movups xmm2, [rsp + 32]", "movups xmm3, [rsp + 48]",
            "movups xmm4, [rsp + 64]", "movups xmm5, [rsp + 80]",
            "movups xmm6, [rsp + 96]", "movups xmm7, [rsp + 112]",
            "add rsp, 128",
            "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
            "jmp r11",
            next = sym $next,
        )
    };
}
pub(crate) use jump_to;

/// The body of `syscall`: calls `$dispatch` for a number below `$numbers` whose byte of `$watched` is not 0, and
/// returns its first word if the second is not 0. Otherwise jumps to `$next`.
macro_rules! dispatching {
    ($numbers:ident, $watched:ident, $next:ident, $dispatch:ident) => {
        std::arch::naked_asm!(
            ".cfi_startproc",
            "cmp rdi, {numbers}",
            "jae 2f",
            "lea r11, [rip + {watched}]",
            "cmp byte ptr [r11 + rdi], 0",
            "jne 3f",
            "2:",
            "jmp qword ptr [rip + {next}]",
            "3:",
            "push rbp",
            ".cfi_def_cfa_offset 16",
            ".cfi_offset rbp, -16",
            "mov rbp, rsp",
            ".cfi_def_cfa_register rbp",
            "sub rsp, 64",
            "mov [rsp], rdi",
            "mov [rsp + 8], rsi",
            "mov [rsp + 16], rdx",
            "mov [rsp + 24], rcx",
            "mov [rsp + 32], r8",
            "mov [rsp + 40], r9",
            // The seventh word lies above the return address.
            "mov rax, [rbp + 16]",
            "mov [rsp + 48], rax",
            "mov rdi, rsp",
            "call {dispatch}",
            "test rdx, rdx",
            "jz 4f",
            "leave",
            ".cfi_remember_state",
            ".cfi_def_cfa rsp, 8",
            "ret",
            "4:",
            ".cfi_restore_state",
            "mov rdi, [rsp]",
            "mov rsi, [rsp + 8]",
            "mov rdx, [rsp + 16]",
            "mov rcx, [rsp + 24]",
            "mov r8, [rsp + 32]",
            "mov r9, [rsp + 40]",
            "leave",
            ".cfi_def_cfa rsp, 8",
            "jmp qword ptr [rip + {next}]",
            ".cfi_endproc",
            numbers = const $numbers,
            watched = sym $watched,
            next = sym $next,
            dispatch = sym $dispatch,
        )
    };
}
pub(crate) use dispatching;

/// Writes `$bytes` bytes of `$text` to standard error, and exits with code 1. Needs no relocation.
macro_rules! print_and_exit {
    ($text:ident, $bytes:expr) => {
        core::arch::naked_asm!(
            "mov edi, 2",
            "lea rsi, [rip + {text}]",
            "mov edx, {bytes}",
            "mov eax, {write}",
            "syscall",
            "mov edi, 1",
            "mov eax, {exit}",
            "syscall",
            "ud2",
            text = sym $text,
            bytes = const $bytes,
            write = const libc::SYS_write,
            exit = const libc::SYS_exit_group,
        )
    };
}
pub(crate) use print_and_exit;
