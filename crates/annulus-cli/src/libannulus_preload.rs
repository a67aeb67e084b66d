//! The preload library of `annulus run`: a shared object with the code of the crate `annulus-preload`. The build script
//! passes the options of the linker.

#![forbid(unsafe_code)]
#![cfg_attr(shared_object, no_main)]

// Links the crate, which exports the functions.
#[cfg(shared_object)]
use annulus_preload as _;

#[cfg(not(shared_object))]
fn main() -> std::process::ExitCode {
    eprintln!(
        "libannulus_preload: `annulus run` has no library here, because it supports only x86-64 and aarch64 Linux with \
         glibc as a shared library; other commands of annulus work"
    );
    std::process::ExitCode::FAILURE
}
