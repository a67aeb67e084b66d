//! # Safety
//!
//! The ring of `annulus-preload`. One thread enters it. Nothing in it changes between two enters, because its task work
//! is deferred. The holder owns the memory and descriptors of the entries (Lent, Open: `push` and `provide` are
//! unsafe). All calls on one value are made under a lock of the holder (One side).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::AtomicU64;

use rustix::io_uring::IoringEnterFlags;

use super::counter_storage::futex_of;
use super::errno::EBADFD;
use super::filter_probe;
use super::kernel::Kernel;
use super::polling::RingPoll;
use super::probe;
use super::register::BufRing;
use super::ring::{Ring, RingConfig, SetupMode};
use super::sq_poll::SqPoll;
/// A completion of an entry.
pub use super::sqe::Cqe as Completion;
pub use super::sqe::Sqe;
use super::sqe::opcode;
use super::wait_for::WaitFor;
use crate::error::SetupError;

/// The opcodes that a server uses, and their flags.
pub mod request {
    #![allow(missing_docs, reason = "the kernel's names")]
    use crate::sys::sqe;

    pub const RECV: u8 = sqe::opcode::RECV;
    pub const SEND: u8 = sqe::opcode::SEND;
    pub const POLL_ADD: u8 = sqe::opcode::POLL_ADD;
    pub const ASYNC_CANCEL: u8 = sqe::opcode::ASYNC_CANCEL;
    /// In `len` of a poll: a completion immediately, and one for each later event. Earlier events are not reported
    /// again.
    pub const POLL_EDGES: u32 = 1;
    /// In `op_flags` of a cancel: cancels all matching requests, not only the first. Since Linux 5.19, as the next.
    pub const CANCEL_ALL: u32 = 1;
    /// In `op_flags` of a cancel: matches every request.
    pub const CANCEL_ANY: u32 = 1 << 2;
    /// In `flags`: the buffer comes from group 0.
    pub const BUFFER_SELECT: u8 = sqe::BUFFER_SELECT;
    /// In `flags`: no CQE on success. Since Linux 5.17.
    pub const SKIP_SUCCESS: u8 = sqe::SKIP_SUCCESS;
    /// In `ioprio`: one CQE per received part until the request ends. Since Linux 6.0.
    pub const RECV_MULTISHOT: u16 = sqe::RECV_MULTISHOT;
    /// In `ioprio`: receive after the readiness poll, not during the submission. For single receives only (trap 62).
    /// Since Linux 5.19.
    pub const POLL_FIRST: u16 = sqe::POLL_FIRST;
}

/// The condition that ends an enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// No wait: the enter does not sleep.
    No,
    /// Any completion.
    One,
    /// This number of completions, or any completion after this time, µs. The enter may end with `ETIME` before its
    /// timeout, and without completions, if the event that woke it produced none (trap 66). Before Linux 6.12 as `One`.
    Several(u32, u32),
}

impl Wait {
    fn wait_for(self) -> WaitFor {
        match self {
            Wait::No => WaitFor::NOTHING,
            Wait::One => WaitFor::ONE,
            Wait::Several(completions, any_after_us) => WaitFor {
                completions,
                any_after_us,
            },
        }
    }

    /// Returns whether it waits for several completions.
    pub fn is_patient(self) -> bool {
        matches!(self, Wait::Several(..))
    }
}

/// `FUTEX2_SIZE_U32`, in memory that processes share.
const FUTEX_U32: i32 = 2;

/// A ring that a server thread sleeps in instead of in `epoll_wait`.
pub struct ServerRing {
    ring: Ring,
    buffers: BufRing,
    incremental: bool,
    polled: bool,
    /// True if enters are refused: see `give_up`.
    stopped: bool,
    /// The number of entries that stay in the kernel until an event occurs, maintained by the holder.
    pub lasting: u64,
}

// SAFETY: One side: a `&mut` is only used under the holder's lock. Only enters are bound to a thread, and the kernel
// refuses those of another thread.
unsafe impl Send for ServerRing {}

impl ServerRing {
    /// Fails if a seccomp filter of the calling thread would end the process for a ring. Creates a child if there are
    /// filters, so remember the result.
    ///
    /// # Errors
    ///
    /// Fails with the reason and the remedy.
    pub fn check_filter() -> Result<(), SetupError> {
        filter_probe::check()
    }

    /// Returns the number of seccomp filters of the calling thread. `None` before Linux 5.9, and without `/proc`.
    pub fn filters() -> Option<u32> {
        probe::seccomp_filters_count()
    }

    /// Creates a ring for the calling thread, with a buffer group of `buffers` buffers. With `sq_poll`, a kernel thread
    /// takes the pushed entries, and any thread may enter. The caller has probed the filters
    /// ([`check_filter`](ServerRing::check_filter)).
    ///
    /// # Errors
    ///
    /// Fails if io_uring is missing, forbidden or out of resources, or if the kernel has no deferred task work (before
    /// Linux 6.1).
    pub fn new(
        entries: u32,
        buffers: u16,
        sq_poll: Option<&SqPoll>,
    ) -> Result<ServerRing, SetupError> {
        let poll = match sq_poll {
            Some(sq_poll) => sq_poll.ring_poll(),
            None => RingPoll::Nothing,
        };
        let polled = sq_poll.is_some();
        let mut ring = Ring::with_probed_filter(RingConfig {
            sq_entries: entries,
            // A program may have a ring for each of many small sets. More completions at once cost another enter.
            cq_entries: entries * 4,
            setup_mode: SetupMode::Deferred,
            workers: [2, 2],
            poll,
        })?;
        if !polled && ring.setup_mode() != SetupMode::Deferred {
            return Err(SetupError::TooOld {
                have: probe::kernel_release(),
                need: "6.1",
                what: "deferred task work (DEFER_TASKRUN)",
            });
        }
        let (buffers, incremental) = match ring.register_incremental_buf_ring(buffers, 0) {
            Ok(ring) => (ring, true),
            Err(_) => (ring.register_buf_ring(buffers, 0)?, false),
        };
        Ok(ServerRing {
            ring,
            buffers,
            incremental,
            polled,
            stopped: false,
            lasting: 0,
        })
    }

    /// Closes a ring with nothing in flight, after unregistering its buffer group. If the ring is dropped instead, the
    /// page of the group stays mapped, because the kernel may still read it.
    pub fn end(self) {
        let ServerRing {
            mut ring, buffers, ..
        } = self;
        // If the kernel refuses, the page stays mapped.
        let _ = ring.unregister_buf_ring(buffers);
    }

    /// Returns whether a receive continues in the buffer where the previous one ended. Since Linux 6.12.
    pub fn is_incremental(&self) -> bool {
        self.incremental
    }

    /// Returns whether a kernel thread takes the pushed entries.
    pub fn is_polled(&self) -> bool {
        self.polled
    }

    /// Returns the ring's descriptors, which no other code may close.
    pub fn descriptors(&self) -> [RawFd; 2] {
        [self.ring.raw(), self.ring.waker().raw()]
    }

    /// Stops entering the kernel: all later enters fail with `EBADFD`. For a process that a seccomp filter could kill
    /// for an enter.
    pub fn give_up(&mut self) {
        self.stopped = true;
    }

    fn check(&self) -> io::Result<()> {
        if self.stopped {
            return Err(io::Error::from_raw_os_error(EBADFD));
        }
        Ok(())
    }

    /// Queues an entry. Returns `false` if the queue is full.
    ///
    /// # Safety
    ///
    /// Lent, Open: the memory of `sqe` stays valid, and its descriptor open, until the kernel has completed it.
    #[inline]
    pub unsafe fn push(&mut self, sqe: Sqe) -> bool {
        self.ring.push(sqe)
    }

    /// Returns the number of entries that the kernel has not taken yet.
    #[inline]
    pub fn unsubmitted(&self) -> u32 {
        self.ring.unsubmitted()
    }

    /// Arms a read of the ring's eventfd: the next write to it posts a completion with `user_data`. Returns `false` if
    /// the queue is full.
    pub fn arm_wake(&mut self, user_data: u64) -> bool {
        self.ring.arm_wake(user_data)
    }

    /// Submits the pushed entries and runs the task work. Sleeps according to `wait`, for at most `timeout_ns`, with
    /// the signal mask `mask`.
    ///
    /// # Errors
    ///
    /// Fails with any error of `io_uring_enter(2)`; pushed entries may still be queued
    /// ([`unsubmitted`](ServerRing::unsubmitted)). Fails with `EBADFD` after [`give_up`](ServerRing::give_up).
    ///
    /// # Safety
    ///
    /// Lent: `mask` is null, or points to the 8 bytes of a kernel signal set until this returns.
    pub unsafe fn enter(
        &mut self,
        wait: Wait,
        timeout_ns: Option<u64>,
        mask: *const u64,
    ) -> io::Result<()> {
        self.check()?;
        let flags = IoringEnterFlags::GETEVENTS.bits() | self.ring.poller_wakes();
        let timeout_ns = timeout_ns.filter(|_| wait != Wait::No);
        // SAFETY: Lent: the caller upholds the contract in `# Safety`.
        unsafe {
            self.ring
                .enter_masked(wait.wait_for(), flags, timeout_ns, mask)
        }
    }

    /// Submits the pushed entries and runs the task work, without a sleep.
    ///
    /// # Errors
    ///
    /// As [`enter`](ServerRing::enter).
    pub fn enter_without_wait(&mut self) -> io::Result<()> {
        // SAFETY: Lent: no mask is passed.
        unsafe { self.enter(Wait::No, None, ptr::null()) }
    }

    /// Submits the pushed entries without checking for completions. If a kernel thread takes them, yields to it.
    pub fn submit(&mut self) -> io::Result<()> {
        self.check()?;
        let flags = self.ring.poller_wakes();
        if self.polled && flags == 0 {
            std::thread::yield_now();
            return Ok(());
        }
        // SAFETY: Lent: no mask is passed.
        unsafe {
            self.ring
                .enter_masked(WaitFor::NOTHING, flags, None, ptr::null())
        }
    }

    /// Returns whether an enter or [`next_completion`](ServerRing::next_completion) would find something. No system
    /// call.
    #[inline]
    pub fn is_ready(&mut self) -> bool {
        self.ring.ready()
    }

    /// Fetches the completions that did not fit into the queue. Returns `false` if there were none or the kernel
    /// failed.
    #[inline]
    pub fn bring_overflow(&mut self) -> bool {
        let flags = IoringEnterFlags::GETEVENTS.bits();
        // SAFETY: Lent: no mask is passed.
        !self.stopped
            && self.ring.overflows()
            && unsafe {
                self.ring
                    .enter_masked(WaitFor::NOTHING, flags, None, ptr::null())
            }
            .is_ok()
    }

    /// Returns the next completion that is available.
    #[inline]
    pub fn next_completion(&mut self) -> Option<Completion> {
        self.ring.pop()
    }

    /// Posts a completion once `word` differs from `expected` and any process has woken the futex. Since Linux 6.7;
    /// before that, the completion has the result `EINVAL`. Returns `false` if the queue is full.
    pub fn arm_change(&mut self, word: &'static AtomicU64, expected: u64, user_data: u64) -> bool {
        self.ring.push(Sqe {
            addr: futex_of(word).expose_provenance() as u64,
            // A futex covers the low half only.
            off: expected & u64::from(u32::MAX),
            addr3: u64::from(u32::MAX),
            user_data,
            ..Sqe::new(opcode::FUTEX_WAIT, FUTEX_U32)
        })
    }

    /// Provides a buffer to the kernel.
    ///
    /// # Safety
    ///
    /// Lent, Still, Once: the memory is valid for writes, and not read, until the kernel has named `id` in a completion
    /// that does not keep the buffer, or until the ring is closed. No other buffer that the kernel has is named `id`.
    pub unsafe fn provide(&mut self, base: *mut u8, bytes: u32, id: u16) {
        // SAFETY: Lent, Still, Once: the caller upholds the contract in `# Safety`.
        unsafe { self.buffers.add(base, bytes, id) };
        self.buffers.publish();
    }
}
