//! # Safety
//!
//! The ring of `annulus-preload`: one thread enters it, and between two enters nothing in it changes, because
//! its task work is deferred. What the entries point to is the holder's affair (Lent, Open: `push` and `provide`
//! are unsafe); all calls on one value are made under a lock of the holder's (One side).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::AtomicU64;

use rustix::io_uring::IoringEnterFlags;

use super::counter_storage::futex_of;
use super::errno::EBADFD;
use super::kernel::Kernel;
use super::polling::RingPoll;
use super::probe;
use super::register::BufRing;
use super::ring::{Ring, RingConfig, SetupMode};
use super::sq_poll::SqPoll;
use super::sqe::Cqe;
pub use super::sqe::Sqe;
use super::sqe::opcode;
use super::wait_for::WaitFor;
use crate::error::SetupError;

/// The opcodes of a server, and the flags that go with them.
pub mod request {
    #![allow(missing_docs, reason = "the kernel's names")]
    use crate::sys::sqe;

    pub const RECV: u8 = sqe::opcode::RECV;
    pub const SEND: u8 = sqe::opcode::SEND;
    pub const POLL_ADD: u8 = sqe::opcode::POLL_ADD;
    pub const ASYNC_CANCEL: u8 = sqe::opcode::ASYNC_CANCEL;
    /// In `len` of a poll: an answer immediately, and one for each event after it, not for what has been there before.
    pub const POLL_EDGES: u32 = 1;
    /// In `op_flags` of a cancel: all that it names, not the first. Since Linux 5.19, as the next.
    pub const CANCEL_ALL: u32 = 1;
    /// In `op_flags` of a cancel: it names everything.
    pub const CANCEL_ANY: u32 = 1 << 2;
    /// In `flags`: the buffer is of the group 0.
    pub const BUFFER_SELECT: u8 = sqe::BUFFER_SELECT;
    /// In `flags`: no CQE if it succeeds. Since Linux 5.17.
    pub const SKIP_SUCCESS: u8 = sqe::SKIP_SUCCESS;
    /// In `ioprio`: one CQE per receive until it ends. Since Linux 6.0.
    pub const RECV_MULTISHOT: u16 = sqe::RECV_MULTISHOT;
    /// In `ioprio`: receive after the readiness poll, not while it is submitted. For single receives (trap 62). Since
    /// Linux 5.19.
    pub const POLL_FIRST: u16 = sqe::POLL_FIRST;
}

/// A completion of an entry.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The `user_data` of the completed entry.
    pub user_data: u64,
    /// A count, or minus an errno.
    pub res: i32,
    /// Another completion follows for the same entry.
    pub more: bool,
    /// The buffer that was taken; an error may name one, too.
    pub buffer: Option<u16>,
    /// A receive left something behind, be it the end. Since Linux 5.19.
    pub has_more: bool,
    /// The kernel goes on in that buffer.
    pub keeps_buffer: bool,
}

impl From<&Cqe> for Completion {
    #[inline]
    fn from(cqe: &Cqe) -> Completion {
        Completion {
            user_data: cqe.user_data,
            res: cqe.res,
            more: cqe.more(),
            buffer: cqe.buffer_id(),
            has_more: cqe.leaves_more(),
            keeps_buffer: cqe.keeps_buffer(),
        }
    }
}

/// What an enter waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Nothing: it does not sleep.
    No,
    /// Any answer.
    One,
    /// This number, or any after this time, µs. It may end with `ETIME` and nothing before its time is up, if what it
    /// was woken for came to nothing (trap 66). Before Linux 6.12 as `One`.
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

    /// Whether it is for several.
    pub fn is_patient(self) -> bool {
        matches!(self, Wait::Several(..))
    }
}

/// `FUTEX2_SIZE_U32`, of memory that processes share.
const FUTEX_U32: i32 = 2;

/// A ring that a server's thread sleeps in instead of in `epoll_wait`.
pub struct ServerRing {
    ring: Ring,
    buffers: BufRing,
    incremental: bool,
    polled: bool,
    /// It is not entered any more.
    stopped: bool,
    cqes: Vec<Cqe>,
    /// Entries that stay with the kernel until something happens, as the holder counts them.
    pub lasting: u64,
}

// SAFETY: One side: the holder of a `&mut` of it holds the lock; only enters are bound to a thread, and the kernel
// refuses those of another.
unsafe impl Send for ServerRing {}

impl ServerRing {
    /// For the calling thread, with a buffer group of `buffers`. `sq_poll`: a kernel thread takes what is
    /// pushed, and any thread may enter.
    ///
    /// # Errors
    ///
    /// io_uring is missing, refused or starved; or the kernel has no deferred task work (before Linux 6.1).
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
        let mut ring = Ring::new(RingConfig {
            sq_entries: entries,
            cq_entries: entries * 8,
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
            cqes: Vec::with_capacity(super::ring::REAP_MAX),
            lasting: 0,
        })
    }

    /// Ends it where nothing is with the kernel: its buffer group is given back first. Dropped instead, the group's
    /// page stays mapped, as the kernel may still look at it.
    pub fn end(self) {
        let ServerRing {
            mut ring, buffers, ..
        } = self;
        // Refused, the page stays.
        let _ = ring.unregister_buf_ring(buffers);
    }

    /// Whether receives go on in the buffer where the one before ended (since Linux 6.12).
    pub fn is_incremental(&self) -> bool {
        self.incremental
    }

    /// Whether a kernel thread takes what is pushed.
    pub fn is_polled(&self) -> bool {
        self.polled
    }

    /// The descriptors that it has: nobody else may close them.
    pub fn descriptors(&self) -> [RawFd; 2] {
        [self.ring.raw(), self.ring.waker().raw()]
    }

    /// Stops entering the kernel: all later enters fail with `EBADFD`. For a process that a seccomp filter may end for
    /// an enter.
    pub fn give_up(&mut self) {
        self.stopped = true;
    }

    fn check(&self) -> io::Result<()> {
        if self.stopped {
            return Err(io::Error::from_raw_os_error(EBADFD));
        }
        Ok(())
    }

    /// Queues an entry; false when the queue is full.
    ///
    /// # Safety
    ///
    /// Lent, Open: what `sqe` points to stays, and its descriptor is open, until the kernel is through with it.
    #[inline]
    pub unsafe fn push(&mut self, sqe: Sqe) -> bool {
        self.ring.push(sqe)
    }

    /// Entries that the kernel has not taken.
    #[inline]
    pub fn unsubmitted(&self) -> u32 {
        self.ring.unsubmitted()
    }

    /// Has the kernel answer the next [`wake`](ServerRing::wake) with `user_data`. False when the queue is full.
    pub fn arm_wake(&mut self, user_data: u64) -> bool {
        self.ring.arm_wake(user_data)
    }

    /// Submits the pushed entries and does what is due; sleeps as `wait` says, for at most `timeout_ns`, with
    /// the signal mask `mask` meanwhile.
    ///
    /// # Errors
    ///
    /// The kernel's; what was pushed may still be queued ([`unsubmitted`](ServerRing::unsubmitted)).
    ///
    /// # Safety
    ///
    /// Lent: `mask` is null, or the 8 bytes of a kernel's signal set until this returns.
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

    /// Submits the pushed entries, and looks for nothing. Where a kernel thread takes it, that thread is given time.
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

    /// Whether an enter, or [`reap`](ServerRing::reap), would bring something. No system call.
    #[inline]
    pub fn is_ready(&mut self) -> bool {
        self.ring.ready()
    }

    /// Has the kernel bring the completions that its queue had no room for; false: there were none, or it does not.
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

    /// Takes the completions that are there, at most 256, into `completions`.
    pub fn reap(&mut self, completions: &mut Vec<Completion>) {
        self.cqes.clear();
        self.ring.reap(&mut self.cqes);
        completions.extend(self.cqes.iter().map(Completion::from));
    }

    /// Posts a completion once `word` differs from `expected` and any process has woken the futex. Since Linux 6.7; before that, EINVAL. False when the queue is full.
    pub fn arm_change(&mut self, word: &'static AtomicU64, expected: u64, user_data: u64) -> bool {
        self.ring.push(Sqe {
            addr: futex_of(word).expose_provenance() as u64,
            // The low half.
            off: expected & u64::from(u32::MAX),
            addr3: u64::from(u32::MAX),
            user_data,
            ..Sqe::new(opcode::FUTEX_WAIT, FUTEX_U32)
        })
    }

    /// Gives a buffer to the kernel.
    ///
    /// # Safety
    ///
    /// Lent, Still, Once: the memory is valid for writes until the kernel has named `id` in an answer and does not
    /// keep it, or the ring has ended; nobody reads it, and no other that the kernel has is called `id`.
    pub unsafe fn provide(&mut self, base: *mut u8, bytes: u32, id: u16) {
        // SAFETY: Lent, Still, Once: the caller upholds the contract in `# Safety`.
        unsafe { self.buffers.add(base, bytes, id) };
        self.buffers.publish();
    }
}
