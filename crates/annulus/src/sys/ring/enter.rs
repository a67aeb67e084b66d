//! # Safety
//!
//! The enter call of a ring, with flags that the ABI crate lacks. The in-flight table owns the pushed operations
//! (Lent); the descriptor belongs to the ring (Open).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use rustix::io_uring::{IoringEnterFlags, io_uring_getevents_arg};

use super::Ring;
use crate::sys::call::timespec;
use crate::sys::kernel::Kernel;
use crate::sys::polling::must_wake_poller;
use crate::sys::size_limit::SignalBlocked;
use crate::sys::wait_for::WaitFor;
#[cfg(all(feature = "__preload", target_arch = "x86_64"))]
use crate::{narrow::to_u32, sys::errno::check};

/// The size of a kernel signal set, bytes.
const SIGNAL_SET_BYTES: u32 = 8;

impl Ring {
    /// Returns the enter flags that the poller of the submission queue requires: to wake it, to wait for space in a
    /// full queue, and to fetch completions that overflowed.
    pub(super) fn poller_flags(&mut self) -> u32 {
        let queue = self.ring.submission();
        let mut flags = IoringEnterFlags::empty();
        // Dropping the queue's view stores the tail; nothing was pushed through this one.
        if must_wake_poller(|| queue.need_wakeup_after_intermittent_seqcst()) {
            flags |= IoringEnterFlags::SQ_WAKEUP;
        }
        if queue.is_full() {
            flags |= IoringEnterFlags::SQ_WAIT;
        }
        if queue.cq_overflow() {
            flags |= IoringEnterFlags::GETEVENTS;
        }
        drop(queue);
        self.entered.sq_wakeups += u64::from(flags.contains(IoringEnterFlags::SQ_WAKEUP));
        flags.bits()
    }

    /// Returns the flag that wakes the poller of the submission queue, if there is a sleeping one.
    #[cfg(feature = "__preload")]
    pub(in crate::sys) fn poller_wakes(&mut self) -> u32 {
        if self.sq_polled {
            self.poller_flags() & IoringEnterFlags::SQ_WAKEUP.bits()
        } else {
            0
        }
    }

    pub(super) fn enter(
        &mut self,
        wait_for: WaitFor,
        flags: u32,
        timeout_ns: Option<u64>,
    ) -> io::Result<()> {
        // SAFETY: Lent: no mask is passed.
        unsafe { self.enter_masked(wait_for, flags, timeout_ns, ptr::null()) }
    }

    /// Enters like `enter`, with the thread's signal mask set to `mask` while it sleeps, unless `mask` is null.
    ///
    /// # Safety
    ///
    /// Lent: `mask` is null, or points to the 8 bytes of a kernel signal set until this returns.
    pub(in crate::sys) unsafe fn enter_masked(
        &mut self,
        wait_for: WaitFor,
        flags: u32,
        timeout_ns: Option<u64>,
        mask: *const u64,
    ) -> io::Result<()> {
        self.entered.enters += 1;
        let _blocked = self.blocks_signal.then(SignalBlocked::new);
        let to_submit = self.unsubmitted();
        let mut flags = flags | self.flags_enter;
        let fd = match self.registered {
            Some(index) => {
                flags |= IoringEnterFlags::REGISTERED_RING.bits();
                index
            }
            None => self.ring.as_raw_fd(),
        };
        // SAFETY: Open: this ring, or its index in this thread's table of registered rings, which the call takes as the
        // same type.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let wait_for = if self.is_patient {
            wait_for
        } else {
            wait_for.without_patience()
        };
        let min_complete = wait_for.completions;
        let taken = match timeout_ns {
            None if mask.is_null() && wait_for.any_after_us == 0 => {
                let flags = IoringEnterFlags::from_bits_retain(flags);
                // SAFETY: Lent. Every SQE pushed points to memory that the in-flight table owns.
                unsafe { call(fd, to_submit, min_complete, flags, None) }
            }
            _ => {
                let timeout = timeout_ns.map(timespec);
                let ts = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
                let arg = io_uring_getevents_arg {
                    ts: rustix::io_uring::io_uring_ptr::new(ts.cast_mut().cast()),
                    sigmask: rustix::io_uring::io_uring_ptr::new(mask.cast_mut().cast()),
                    sigmask_sz: if mask.is_null() { 0 } else { SIGNAL_SET_BYTES },
                    min_wait_usec: wait_for.any_after_us,
                };
                let flags = IoringEnterFlags::from_bits_retain(flags) | IoringEnterFlags::EXT_ARG;
                // SAFETY: Lent. Every SQE pushed points to memory that the in-flight table owns; `timeout` outlives the
                // call, and the caller guarantees the same for `mask`.
                unsafe { call(fd, to_submit, min_complete, flags, Some(&arg)) }
            }
        }?;
        if !self.sq_polled {
            self.entered.entries += u64::from(taken);
        }
        Ok(())
    }
}

/// Calls `io_uring_enter(2)`. In the preload library, a handler of the program may end the thread during the call, by
/// `pthread_exit`.
///
/// # Safety
///
/// Lent: the submitted entries, and `arg`, point to memory that is valid for the kernel.
unsafe fn call(
    fd: BorrowedFd<'_>,
    to_submit: u32,
    min_complete: u32,
    flags: IoringEnterFlags,
    arg: Option<&io_uring_getevents_arg>,
) -> io::Result<u32> {
    #[cfg(not(all(feature = "__preload", target_arch = "x86_64")))]
    {
        use rustix::io_uring::{io_uring_enter, io_uring_enter_arg};

        let taken = match arg {
            // SAFETY: Lent: the caller upholds the contract in `# Safety`.
            None => unsafe { io_uring_enter(fd, to_submit, min_complete, flags) },
            // SAFETY: Lent: the caller upholds the contract in `# Safety`.
            Some(_) => unsafe { io_uring_enter_arg(fd, to_submit, min_complete, flags, arg) },
        };
        Ok(taken?)
    }
    #[cfg(all(feature = "__preload", target_arch = "x86_64"))]
    {
        let (fd, flags) = (fd.as_raw_fd(), flags.bits());
        let bytes = arg.map_or(0, size_of_val);
        let arg = arg.map_or(ptr::null(), ptr::from_ref);
        // SAFETY: Lent: the caller upholds the contract in `# Safety`.
        let res = unsafe { unwinding_enter(fd, to_submit, min_complete, flags, arg, bytes) };
        check(res).map(to_u32)
    }
}

/// The bare system call. `pthread_exit` unwinds the stack from here. An inlined call would have no entry in its
/// function's exception table, and the unwinder would then end the process.
#[cfg(all(feature = "__preload", target_arch = "x86_64"))]
#[unsafe(naked)]
unsafe extern "C-unwind" fn unwinding_enter(
    fd: i32,
    to_submit: u32,
    min_complete: u32,
    flags: u32,
    arg: *const io_uring_getevents_arg,
    bytes: usize,
) -> i32 {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "mov eax, {number}",
        "mov r10, rcx",
        "syscall",
        "ret",
        ".cfi_endproc",
        number = const libc::SYS_io_uring_enter,
    )
}
