//! # Safety
//!
//! Probes of io_uring's three system calls, which the kernel or a filter may refuse. A ring is set up and closed
//! immediately with nothing in flight (Drained). The other two calls are made on a descriptor that is not a ring, so
//! the kernel accesses no memory of this process (Lent).
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

use super::filter_probe::{self, RING_CALLS};

/// The result of probing one of io_uring's system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SyscallProbe {
    /// The name of the system call.
    pub name: &'static str,
    /// The error number; `None` if the call works, or ends the process. The probe calls `io_uring_enter` and `io_uring_register` on a
    /// descriptor that is not a ring. The kernel's own error for that counts as working.
    pub errno: Option<i32>,
    /// True if a seccomp filter ends the process for this call. The call was then made in a child only.
    pub kills: bool,
}

/// The number of entries of the smallest ring that the engine accepts.
const ENTRIES: u32 = 8;

/// A probe of a call, which returns the errno of a refusal.
type Attempt = fn() -> Option<i32>;

/// Makes each call once, except those for which a filter would end the process.
pub(crate) fn probe_calls() -> [SyscallProbe; 3] {
    let is_safe = filter_probe::check().is_ok();
    let [set_up_call, enter_call, register_call] = RING_CALLS;
    let attempts: [(&str, _, Attempt); 3] = [
        ("io_uring_setup", set_up_call, || {
            set_up().err().map(Errno::raw_os_error)
        }),
        ("io_uring_enter", enter_call, || refusal(enter())),
        ("io_uring_register", register_call, || refusal(register())),
    ];
    attempts.map(|(name, call, attempt)| {
        // Without a child to test it in, the call is not made either.
        let kills = !is_safe && filter_probe::kills(&[call]).unwrap_or(true);
        SyscallProbe {
            name,
            errno: if kills { None } else { attempt() },
            kills,
        }
    })
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
        for result in probe_calls() {
            assert_eq!(
                (result.errno, result.kills),
                (None, false),
                "{}",
                result.name
            );
        }
    }
}
