//! Rings that the kernel must not be asked for: a filter of the process ends it for the attempt.

use std::sync::OnceLock;

use crate::Failure;

static REASON: OnceLock<String> = OnceLock::new();

/// Makes each later set-up of a hand-written ring fail with `reason`, without a system call.
///
/// Call it if a seccomp filter ends the process for a call of io_uring. This crate cannot test that itself.
pub fn forbid_rings(reason: String) {
    // The first reason stays.
    let _ = REASON.set(reason);
}

/// Fails if rings are forbidden. Every set-up of a ring calls it first.
pub(crate) fn rings_allowed() -> Result<(), Failure> {
    match REASON.get() {
        Some(reason) => Err(Failure::Unavailable(reason.clone())),
        None => Ok(()),
    }
}
