//! # Safety
//!
//! The entry point of a shared object that is executed like a program. No loader has relocated it, so it uses the
//! instruction pointer and two system calls only.
#![allow(unsafe_code)]

use crate::arch::print_and_exit;

const MESSAGE: [u8; 104] =
    *b"libannulus_preload is a library for other programs; start a server with it by `annulus run -- COMMAND`.\n";
static TEXT: [u8; MESSAGE.len()] = MESSAGE;

/// Prints what this file is, and exits with code 1. `annulus-cli` names this function to the linker.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn annulus_preload_executed() -> ! {
    print_and_exit!(TEXT, MESSAGE.len())
}
