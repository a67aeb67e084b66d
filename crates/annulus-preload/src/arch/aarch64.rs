//! # Safety
//!
//! aarch64. The entry points follow the procedure call standard of Arm and that of the kernel (Typed).
#![allow(unsafe_code)]

use std::ops::Range;

use ::libc::__errno_location;

/// The addresses of a program. The first page is never mapped, and user space ends here or before: 52 bits with pages
/// of 64 KiB.
const ADDRESSES: Range<usize> = 4096..1 << 52;

/// Returns whether an address may be mapped in the program. The processor ignores the highest byte, which is a tag.
#[inline]
pub(crate) fn may_be_mapped(address: usize) -> bool {
    ADDRESSES.contains(&(address << 8 >> 8))
}

/// Returns the size of a page, bytes: 4, 16 or 64 KiB.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: Typed: a number that libc knows.
    let bytes = unsafe { ::libc::sysconf(::libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(PAGE_BYTES_MAX)
}

/// The largest size of a page, bytes.
pub(crate) const PAGE_BYTES_MAX: usize = 64 << 10;

/// Aligns the value that it is a field of to a page.
#[repr(align(65536))]
pub(crate) struct PageAligned;

/// An event of an epoll set, at any address: the kernel accepts one that is not aligned.
#[derive(Clone, Copy)]
#[repr(C, packed)]
pub(crate) struct Event {
    pub(crate) events: u32,
    gap: u32,
    pub(crate) u64: u64,
}

const _: () = assert!(size_of::<Event>() == size_of::<::libc::epoll_event>());

/// Returns the ID that `pthread_cancel` takes.
#[inline]
pub(crate) fn thread_id() -> usize {
    // SAFETY: Typed: it may be called at any time.
    unsafe { ::libc::pthread_self() as usize }
}

/// Numbers of system calls that this architecture lacks: no program makes them.
#[allow(non_upper_case_globals, reason = "they stand for libc's constants")]
pub(crate) mod missing {
    use std::ffi::c_long;

    pub(crate) const SYS_dup2: c_long = -1;
    pub(crate) const SYS_poll: c_long = -2;
    pub(crate) const SYS_select: c_long = -3;
    pub(crate) const SYS_epoll_create: c_long = -4;
    pub(crate) const SYS_epoll_wait: c_long = -5;
    pub(crate) const SYS_fork: c_long = -6;
    pub(crate) const SYS_vfork: c_long = -7;
}

/// Moves the number and six arguments from the registers of the C calling convention to those of a system call.
///
/// A child that this creates on another stack (`clone`) returns from here on that stack, as from libc's function.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn system_call() {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "mov x8, x0",
        "mov x0, x1",
        "mov x1, x2",
        "mov x2, x3",
        "mov x3, x4",
        "mov x4, x5",
        "mov x5, x6",
        "svc #0",
        "cmn x0, #4095",
        "b.hs 2f",
        "ret",
        "2:",
        "stp x30, x0, [sp, #-16]!",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset x30, -16",
        "bl {errno}",
        "ldp x30, x1, [sp], #16",
        ".cfi_def_cfa_offset 0",
        ".cfi_restore x30",
        "neg w1, w1",
        "str w1, [x0]",
        "mov x0, #-1",
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
            "stp x29, x30, [sp, #-224]!",
            "mov x29, sp",
            "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]", "stp x6, x7, [sp, #64]",
            "str x8, [sp, #80]",
            "stp q0, q1, [sp, #96]", "stp q2, q3, [sp, #128]",
            "stp q4, q5, [sp, #160]", "stp q6, q7, [sp, #192]",
            "bl {next}",
            "mov x16, x0",
            "ldp x0, x1, [sp, #16]", "ldp x2, x3, [sp, #32]",
            "ldp x4, x5, [sp, #48]", "ldp x6, x7, [sp, #64]",
            "ldr x8, [sp, #80]",
            "ldp q0, q1, [sp, #96]", "ldp q2, q3, [sp, #128]",
            "ldp q4, q5, [sp, #160]", "ldp q6, q7, [sp, #192]",
            "ldp x29, x30, [sp], #224",
            "br x16",
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
            "cmp x0, {numbers}",
            "b.hs 2f",
            "adrp x16, {watched}",
            "add x16, x16, :lo12:{watched}",
            "ldrb w16, [x16, x0]",
            "cbnz w16, 3f",
            "2:",
            "adrp x16, {next}",
            "ldr x16, [x16, :lo12:{next}]",
            "br x16",
            "3:",
            "stp x29, x30, [sp, #-80]!",
            ".cfi_def_cfa_offset 80",
            ".cfi_offset x29, -80",
            ".cfi_offset x30, -72",
            "mov x29, sp",
            "stp x0, x1, [sp, #16]",
            "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]",
            "str x6, [sp, #64]",
            "add x0, sp, #16",
            "bl {dispatch}",
            "cbz x1, 4f",
            ".cfi_remember_state",
            "ldp x29, x30, [sp], #80",
            ".cfi_def_cfa_offset 0",
            ".cfi_restore x29",
            ".cfi_restore x30",
            "ret",
            "4:",
            ".cfi_restore_state",
            "ldp x0, x1, [sp, #16]",
            "ldp x2, x3, [sp, #32]",
            "ldp x4, x5, [sp, #48]",
            "ldr x6, [sp, #64]",
            "ldp x29, x30, [sp], #80",
            ".cfi_def_cfa_offset 0",
            ".cfi_restore x29",
            ".cfi_restore x30",
            "b 2b",
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
            "mov x0, #2",
            "adrp x1, {text}",
            "add x1, x1, :lo12:{text}",
            "mov x2, {bytes}",
            "mov x8, {write}",
            "svc #0",
            "mov x0, #1",
            "mov x8, {exit}",
            "svc #0",
            "brk #1",
            text = sym $text,
            bytes = const $bytes,
            write = const libc::SYS_write,
            exit = const libc::SYS_exit_group,
        )
    };
}
pub(crate) use print_and_exit;
