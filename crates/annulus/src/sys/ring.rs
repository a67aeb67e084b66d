//! # Safety
//!
//! One io_uring instance. The queues are the ABI crate's; the enter call is ours, because it carries
//! flags that crate does not (a registered ring descriptor remembered, no false iowait).
//! Invariants: One side (only the owning driver holds `&mut Ring`), Drained (dropped by a driver that
//! has nothing in flight, or leaked).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use io_uring::{IoUring, cqueue};
use rustix::io_uring::{IoringEnterFlags, io_uring_getevents_arg};

use super::errno::{
    EACCES, EAGAIN, EBUSY, EINTR, EINVAL, EMFILE, ENFILE, ENOMEM, ENOSYS, EPERM, ETIME,
};
use super::lent::Lent;
use super::mapping::Mapping;
use super::probe;
use super::sqe::{Cqe, Sqe, opcode, to_entry};
use super::wake::EventFd;
use crate::error::SetupError;

/// What a driver needs of a kernel. Two exist: `Ring`, and the simulated one.
pub(crate) trait Kernel {
    /// Queues an SQE; false when the submission queue is full.
    fn push(&mut self, sqe: Sqe) -> bool;
    /// SQEs pushed that the kernel has not taken yet.
    fn unsubmitted(&self) -> u32;
    /// Hands over what was pushed, without waiting. An error leaves the SQEs queued.
    fn submit(&mut self) -> io::Result<()>;
    /// Hands over what was pushed and sleeps until a CQE is there, `timeout_ns` has passed, or a
    /// waker fired.
    fn wait(&mut self, timeout_ns: Option<u64>) -> io::Result<()>;
    /// Whether CQEs, or work that will turn into CQEs on the next enter, are there. No system call.
    fn ready(&mut self) -> bool;
    /// Takes CQEs out of the completion queue, at most `into.len()`.
    fn reap(&mut self, into: &mut Vec<Cqe>);
    /// Makes the next `waker().wake()` end a `wait`; its CQE carries `token`. False when the
    /// submission queue is full.
    fn arm_wake(&mut self, token: u64) -> bool;
    /// Has a CQE with `token` come after `after_ns`. False: not now, or this kernel can't.
    fn arm_timer(&mut self, _after_ns: u64, _token: u64) -> bool {
        false
    }
    /// Whether this kernel can take `opcode`.
    fn supports(&self, opcode: u8) -> bool;
    /// Enter calls made so far, and those that slept.
    fn enters(&self) -> (u64, u64);
    /// The clock of deadlines, ns: the machine's monotonic one, or the simulation's.
    fn now_ns(&self) -> u64;
    /// Lets `ns` pass on that clock.
    fn pause(&mut self, ns: u64);
    /// Registers a part of `memory` under a place of the kernel's table, and keeps it mapped.
    fn lend(
        &mut self,
        _place: u16,
        _memory: &Arc<Mapping>,
        _from: usize,
        _bytes: usize,
    ) -> Result<(), SetupError> {
        Err(SetupError::Config(
            "a simulated kernel registers nothing".to_owned(),
        ))
    }
    /// Empties that place. False: it can't be used again.
    fn take_back(&mut self, _place: u16) -> bool {
        false
    }
}

/// How far up the ladder of set-up flags a ring came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Rung {
    /// No flag that needs a recent kernel.
    Plain,
    /// `COOP_TASKRUN`. Since Linux 5.19.
    Cooperative,
    /// `SINGLE_ISSUER` and `DEFER_TASKRUN`. Since Linux 6.1.
    Deferred,
}

impl Rung {
    /// In the words `Engine::backend` prints.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Rung::Plain => "plain",
            Rung::Cooperative => "cooperative task work",
            Rung::Deferred => "single issuer, deferred task work",
        }
    }
}

/// What is asked of a new ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingConfig {
    /// Entries of the submission queue; halved until the kernel has memory for them.
    pub(crate) sq_entries: u32,
    /// Entries of the completion queue; never fewer than may be in flight.
    pub(crate) cq_entries: u32,
    /// The highest rung to try.
    pub(crate) rung: Rung,
    /// Most kernel workers (io-wq), bounded and unbounded. Since Linux 5.15.
    pub(crate) workers: [u32; 2],
}

/// The least submission queue worth having; below it the fallback serves better.
const SQ_ENTRIES_MIN: u32 = 8;
/// Un-accounting of a closed ring's memory is asynchronous: ENOMEM is asked again after these.
const ENOMEM_PAUSES_MS: [u64; 3] = [10, 50, 200];
/// What any of the first operations needs, by far.
const ANSWER_NS_MAX: u64 = 1_000_000_000;
/// CQEs copied out at a time.
pub(crate) const REAP_MAX: usize = 256;

/// A ring and its wake-up.
pub(crate) struct Ring {
    ring: IoUring,
    probe: io_uring::Probe,
    rung: Rung,
    /// Where the ring's own descriptor is registered; saves a table look-up per enter.
    registered: Option<i32>,
    /// Most kernel workers of a thread that submits.
    workers: [u32; 2],
    flags_enter: u32,
    wake: Arc<EventFd>,
    /// What the kernel reads the eventfd into; boxed, so that it is Still.
    wake_count: Box<u64>,
    /// What the kernel reads a timer from, while it takes the SQE; seconds and ns.
    timer: Box<[i64; 2]>,
    enters: u64,
    waits: u64,
    /// Below `ring`, so that it is dropped after it.
    lent: Lent,
}

impl Ring {
    /// Makes a ring, from the highest rung down, shrinking where memory is short.
    pub(crate) fn new(config: RingConfig) -> Result<Ring, SetupError> {
        let mut config = config;
        let (ring, rung) = loop {
            match Ring::climb(config) {
                Ok(made) => break made,
                Err(error) if error.raw_os_error() == Some(ENOMEM) => {
                    if config.sq_entries / 2 < SQ_ENTRIES_MIN {
                        return Err(setup_error(error));
                    }
                    config.sq_entries /= 2;
                    config.cq_entries = (config.cq_entries / 2).max(config.sq_entries * 2);
                }
                Err(error) => return Err(setup_error(error)),
            }
        };
        for (has, need, what) in [
            (
                ring.params().is_feature_nodrop(),
                "5.5",
                "a completion queue that drops nothing (NODROP)",
            ),
            (
                ring.params().is_feature_submit_stable(),
                "5.5",
                "SUBMIT_STABLE",
            ),
            (
                ring.params().is_feature_ext_arg(),
                "5.11",
                "a timeout on enter (EXT_ARG)",
            ),
        ] {
            if !has {
                return Err(SetupError::TooOld {
                    have: probe::kernel_release(),
                    need,
                    what,
                });
            }
        }
        Ring::furnish(ring, rung, config)
    }

    fn climb(config: RingConfig) -> io::Result<(IoUring, Rung)> {
        let mut refused = io::Error::from_raw_os_error(EINVAL);
        for rung in [Rung::Deferred, Rung::Cooperative, Rung::Plain] {
            if rung > config.rung {
                continue;
            }
            // The newest flag first: a kernel says EINVAL to the whole set.
            for no_sqarray in [true, false] {
                match Ring::build(config, rung, no_sqarray) {
                    Ok(ring) => return Ok((ring, rung)),
                    Err(error) if error.raw_os_error() == Some(EINVAL) => refused = error,
                    Err(error) => return Err(error),
                }
            }
        }
        Err(refused)
    }

    fn build(config: RingConfig, rung: Rung, no_sqarray: bool) -> io::Result<IoUring> {
        let mut builder = IoUring::builder();
        // Trap 54: a forked child must not share the mappings.
        builder
            .dontfork()
            .setup_clamp()
            .setup_cqsize(config.cq_entries);
        if no_sqarray {
            builder.setup_no_sqarray();
        }
        match rung {
            Rung::Deferred => {
                builder
                    .setup_single_issuer()
                    .setup_defer_taskrun()
                    .setup_taskrun_flag()
                    .setup_submit_all();
            }
            Rung::Cooperative => {
                builder
                    .setup_coop_taskrun()
                    .setup_taskrun_flag()
                    .setup_submit_all();
            }
            Rung::Plain => {}
        }
        let mut pauses = ENOMEM_PAUSES_MS.iter();
        loop {
            match builder.build(config.sq_entries) {
                Err(error) if error.raw_os_error() == Some(ENOMEM) => match pauses.next() {
                    Some(&ms) if config.sq_entries / 2 < SQ_ENTRIES_MIN => {
                        thread::sleep(Duration::from_millis(ms));
                    }
                    _ => return Err(error),
                },
                other => return other,
            }
        }
    }

    /// Probes, and tries a round trip.
    fn furnish(ring: IoUring, rung: Rung, config: RingConfig) -> Result<Ring, SetupError> {
        let mut probe = io_uring::Probe::new();
        match ring.submitter().register_probe(&mut probe) {
            // Only a filter answers so. Without the probe every opcode would go to blocking threads,
            // and the engine would call itself a ring (trap 52).
            Err(error) if matches!(error.raw_os_error(), Some(EPERM | EACCES | ENOSYS)) => {
                return Err(setup_error(error));
            }
            // Since Linux 5.6; before that, every opcode looks unsupported and goes to blocking threads.
            _ => {}
        }
        let flags_enter = if ring.params().is_feature_no_iowait() {
            ENTER_NO_IOWAIT
        } else {
            0
        };
        let wake = EventFd::new().map_err(setup_error)?;
        let mut ring = Ring {
            ring,
            probe,
            rung,
            registered: None,
            workers: config.workers,
            flags_enter,
            wake: Arc::new(wake),
            wake_count: Box::new(0),
            timer: Box::new([0; 2]),
            enters: 0,
            waits: 0,
            lent: Lent::default(),
        };
        ring.workers = config.workers;
        ring.round_trip()?;
        Ok(ring)
    }

    /// Called by a thread that is going to submit: what the kernel keeps by thread is set for it.
    pub(crate) fn prepare_thread(&mut self) {
        // Trap 44: without a limit, thousands of worker threads have been seen.
        let _ = self.limit_workers(self.workers);
    }

    /// Called by the one thread that will ever enter this ring from now on, and ends with it.
    pub(crate) fn settle(&mut self) {
        self.prepare_thread();
        self.registered = self.register_ring_fd().ok();
    }

    /// A second descriptor of the ring, to be polled: readable when there is something to reap. Not
    /// with deferred task work (trap 13).
    pub(crate) fn pollable(&self) -> io::Result<OwnedFd> {
        // SAFETY: Open: the ring's own descriptor.
        unsafe { BorrowedFd::borrow_raw(self.raw()) }.try_clone_to_owned()
    }

    /// A NOP there and back: a filter may allow set-up and forbid enter (trap 52).
    fn round_trip(&mut self) -> Result<(), SetupError> {
        let cqe = self.ask(Sqe {
            user_data: 1,
            ..Sqe::new(opcode::NOP, -1)
        })?;
        if cqe.res == 0 {
            Ok(())
        } else {
            Err(setup_error(io::Error::from_raw_os_error(-cqe.res)))
        }
    }

    /// One operation there and back, where nothing else is in flight. After an error the kernel may
    /// still use what `sqe` points to: it has to be leaked.
    pub(super) fn ask(&mut self, sqe: Sqe) -> Result<Cqe, SetupError> {
        self.push(sqe);
        let deadline_ns = super::call::now_ns() + ANSWER_NS_MAX;
        let mut cqes = Vec::with_capacity(1);
        loop {
            let left_ns = deadline_ns.saturating_sub(super::call::now_ns());
            match self.wait(Some(left_ns)) {
                Err(error)
                    if !matches!(error.raw_os_error(), Some(EINTR | EAGAIN | EBUSY | ETIME)) =>
                {
                    return Err(setup_error(error));
                }
                _ => self.reap(&mut cqes),
            }
            if let Some(cqe) = cqes.pop() {
                return Ok(cqe);
            }
            if left_ns == 0 {
                let error =
                    io::Error::new(io::ErrorKind::TimedOut, "no completion within a second");
                return Err(SetupError::Os {
                    what: "an operation through the ring",
                    error,
                });
            }
        }
    }

    /// The memory that it has registered.
    pub(super) fn lent(&mut self) -> &mut Lent {
        &mut self.lent
    }

    /// For what is registered with the ring.
    pub(super) fn submitter(&self) -> io_uring::Submitter<'_> {
        self.ring.submitter()
    }

    pub(super) fn raw(&self) -> i32 {
        self.ring.as_raw_fd()
    }

    pub(crate) fn rung(&self) -> Rung {
        self.rung
    }

    pub(crate) fn sq_entries(&self) -> u32 {
        self.ring.params().sq_entries()
    }

    pub(crate) fn cq_entries(&self) -> u32 {
        self.ring.params().cq_entries()
    }

    /// The handle other threads wake this ring's driver with.
    pub(crate) fn waker(&self) -> Arc<EventFd> {
        Arc::clone(&self.wake)
    }

    fn enter(&mut self, min_complete: u32, flags: u32, timeout_ns: Option<u64>) -> io::Result<()> {
        self.enters += 1;
        let to_submit = self.unsubmitted();
        let mut flags = flags | self.flags_enter;
        let fd = match self.registered {
            Some(index) => {
                flags |= IoringEnterFlags::REGISTERED_RING.bits();
                index
            }
            None => self.ring.as_raw_fd(),
        };
        // SAFETY: Open. Our own ring, or its index in this thread's table of registered rings, for
        // which the call takes the same type.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let result = match timeout_ns {
            None => {
                let flags = IoringEnterFlags::from_bits_retain(flags);
                // SAFETY: Lent. Every SQE pushed points to memory that the in-flight table owns.
                unsafe { rustix::io_uring::io_uring_enter(fd, to_submit, min_complete, flags) }
            }
            Some(ns) => {
                let timeout = rustix::io_uring::Timespec {
                    tv_sec: (ns / 1_000_000_000) as i64,
                    tv_nsec: (ns % 1_000_000_000) as _,
                };
                let ts = (&raw const timeout).cast_mut().cast();
                let arg = io_uring_getevents_arg {
                    ts: rustix::io_uring::io_uring_ptr::new(ts),
                    ..Default::default()
                };
                let flags = IoringEnterFlags::from_bits_retain(flags) | IoringEnterFlags::EXT_ARG;
                // SAFETY: Lent, as above; `timeout` outlives the call.
                unsafe {
                    rustix::io_uring::io_uring_enter_arg(
                        fd,
                        to_submit,
                        min_complete,
                        flags,
                        Some(&arg),
                    )
                }
            }
        };
        result?;
        Ok(())
    }
}

/// `IORING_ENTER_NO_IOWAIT`: a sleeping driver does not look like a busy disk. Since Linux 6.15.
const ENTER_NO_IOWAIT: u32 = 1 << 7;

impl Kernel for Ring {
    #[inline]
    fn push(&mut self, sqe: Sqe) -> bool {
        let entry = to_entry(sqe);
        // SAFETY: Lent and Open. The caller has put the op that owns what `sqe` points to into the
        // in-flight table before this.
        unsafe { self.ring.submission().push(&entry).is_ok() }
    }

    #[inline]
    fn unsubmitted(&self) -> u32 {
        // SAFETY: One side. `&self` of the only owner; no other view of the queue is alive.
        unsafe { self.ring.submission_shared() }.len() as u32
    }

    fn submit(&mut self) -> io::Result<()> {
        // With deferred task work CQEs appear only in an enter that asks for them.
        let get = self.rung == Rung::Deferred || self.ring.submission().cq_overflow();
        let flags = if get {
            IoringEnterFlags::GETEVENTS.bits()
        } else {
            0
        };
        self.enter(0, flags, None)
    }

    fn wait(&mut self, timeout_ns: Option<u64>) -> io::Result<()> {
        self.waits += 1;
        self.enter(1, IoringEnterFlags::GETEVENTS.bits(), timeout_ns)
    }

    #[inline]
    fn ready(&mut self) -> bool {
        if !self.ring.completion().is_empty() {
            return true;
        }
        let queue = self.ring.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    fn reap(&mut self, into: &mut Vec<Cqe>) {
        let queue = self.ring.completion();
        let room = REAP_MAX.saturating_sub(into.len());
        into.extend(queue.take(room).map(|cqe: cqueue::Entry| Cqe {
            user_data: cqe.user_data(),
            res: cqe.result(),
            flags: cqe.flags(),
        }));
    }

    fn arm_wake(&mut self, token: u64) -> bool {
        let addr = (&raw mut *self.wake_count).addr() as u64;
        // Trap 14: exactly 8 bytes. Trap 15: a oneshot read, never a multishot poll.
        let read = Sqe {
            addr,
            len: 8,
            user_data: token,
            ..Sqe::new(opcode::READ, self.wake.raw())
        };
        self.push(read)
    }

    fn arm_timer(&mut self, after_ns: u64, token: u64) -> bool {
        *self.timer = [
            (after_ns / 1_000_000_000) as i64,
            (after_ns % 1_000_000_000) as i64,
        ];
        // Read while the SQE is taken (SUBMIT_STABLE); one that was not taken yet shows the new time.
        let timer = Sqe {
            addr: (&raw const *self.timer).addr() as u64,
            len: 1,
            user_data: token,
            ..Sqe::new(opcode::TIMEOUT, -1)
        };
        self.push(timer)
    }

    fn supports(&self, opcode: u8) -> bool {
        self.probe.is_supported(opcode)
    }

    fn enters(&self) -> (u64, u64) {
        (self.enters, self.waits)
    }

    #[inline]
    fn now_ns(&self) -> u64 {
        super::call::now_ns()
    }

    fn pause(&mut self, ns: u64) {
        thread::sleep(Duration::from_nanos(ns));
    }

    fn lend(
        &mut self,
        place: u16,
        memory: &Arc<Mapping>,
        from: usize,
        bytes: usize,
    ) -> Result<(), SetupError> {
        Ring::lend(self, place, memory, from, bytes)
    }

    fn take_back(&mut self, place: u16) -> bool {
        Ring::take_back(self, place)
    }
}

/// Turns what set-up answered into something a person can act upon.
fn setup_error(error: io::Error) -> SetupError {
    match error.raw_os_error() {
        Some(ENOSYS) => probe::explain_enosys(),
        Some(EPERM | EACCES) => probe::explain_eperm(),
        Some(ENOMEM) => probe::explain_enomem(probe::A_RING),
        Some(EINVAL) => SetupError::TooOld {
            have: probe::kernel_release(),
            need: "5.11",
            what: "the set-up flags CQSIZE and CLAMP",
        },
        Some(EMFILE) => SetupError::Descriptors {
            have: probe::nofile(),
        },
        Some(ENFILE) => SetupError::Descriptors { have: None },
        _ => SetupError::Os {
            what: "io_uring_setup",
            error,
        },
    }
}
