//! # Safety
//!
//! The attempts of the probes of io_uring's three system calls (`probe_table.rs`), which the kernel or a filter may
//! refuse. A ring is set up and closed immediately with nothing in flight (Drained). The other two calls are made on a
//! descriptor that is not a ring, so the kernel accesses no memory of this process (Lent).
//!
//! Filters forbid calls by number and never check the descriptor. An `EPERM` from `io_uring_enter` on an eventfd
//! therefore comes from a filter; the kernel itself would report that this is not a ring.
#![allow(unsafe_code)]

use std::ptr;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::io_uring::{
    IoringEnterFlags, IoringRegisterOp, io_uring_enter, io_uring_params, io_uring_register,
    io_uring_setup,
};

/// The number of entries of the smallest ring that the engine accepts.
const ENTRIES: u32 = 8;

/// Sets up a ring, and closes it. Returns the errno of a refusal.
pub(super) fn set_up_refusal() -> Option<i32> {
    set_up().err().map(Errno::raw_os_error)
}

/// Calls `io_uring_enter`. Returns the errno of a refusal.
pub(super) fn enter_refusal() -> Option<i32> {
    refusal(enter())
}

/// Calls `io_uring_register`. Returns the errno of a refusal.
pub(super) fn register_refusal() -> Option<i32> {
    refusal(register())
}

fn set_up() -> Result<(), Errno> {
    let mut params = io_uring_params::default();
    // SAFETY: Lent: `params` outlives the call. Nothing is mapped or submitted before the ring is closed (Drained).
    unsafe { io_uring_setup(ENTRIES, &mut params) }.map(drop)
}

fn enter() -> Result<(), Errno> {
    let no_ring = eventfd(0, EventfdFlags::CLOEXEC)?;
    // SAFETY: Lent: nothing is submitted, and the descriptor is not a ring.
    unsafe { io_uring_enter(&no_ring, 0, 0, IoringEnterFlags::empty()) }.map(drop)
}

fn register() -> Result<(), Errno> {
    let no_ring = eventfd(0, EventfdFlags::CLOEXEC)?;
    // SAFETY: Lent: unregistering takes no memory, and the descriptor is not a ring.
    unsafe {
        io_uring_register(
            &no_ring,
            IoringRegisterOp::UnregisterBuffers,
            ptr::null(),
            0,
        )
    }
    .map(drop)
}

/// Returns the errno of a refusal. Not a refusal are the kernel's own errors for a descriptor that is not a ring:
/// `EOPNOTSUPP`, on some kernels `EBADF` or `EINVAL`.
fn refusal(result: Result<(), Errno>) -> Option<i32> {
    match result {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::BADF | Errno::INVAL) => None,
        Err(errno) => Some(errno.raw_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_is_refused_if_a_ring_can_be_created() {
        if let Err(error) = io_uring::IoUring::new(1) {
            return println!("skip: needs io_uring: {error}");
        }
        for attempt in [set_up_refusal, enter_refusal, register_refusal] {
            assert_eq!(attempt(), None);
        }
    }
}
