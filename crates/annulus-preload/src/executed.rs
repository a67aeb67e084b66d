//! # Safety
//!
//! The entry point of a shared object that is executed like a program. No loader has relocated it, so it uses the
//! instruction pointer and two system calls only.
#![allow(unsafe_code)]

const MESSAGE: [u8; 104] =
    *b"libannulus_preload is a library for other programs; start a server with it by `annulus run -- COMMAND`.\n";
static TEXT: [u8; MESSAGE.len()] = MESSAGE;

/// Prints what this file is, and exits with code 1. `annulus-cli` names this function to the linker.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn annulus_preload_executed() -> ! {
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
        text = sym TEXT,
        bytes = const MESSAGE.len(),
        write = const libc::SYS_write,
        exit = const libc::SYS_exit_group,
    )
}
