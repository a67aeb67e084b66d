//! # Safety
//!
//! One io_uring instance. The ABI crate manages the queues. The enter call is made here, because it uses flags that the
//! ABI crate lacks (a registered ring descriptor, no iowait accounting).
//!
//! Invariants: One side (only the owning driver has `&mut Ring`), Drained (the driver drops it with nothing in flight,
//! or leaks it).
#![allow(unsafe_code)]

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use io_uring::{IoUring, cqueue};
use rustix::io_uring::IoringEnterFlags;

use super::errno::{EACCES, EAGAIN, EBUSY, EINTR, EINVAL, ENOMEM, ENOSYS, EPERM, ETIME};
use super::filter_probe;
use super::forked::Queues;
use super::kernel::{Entered, Kernel};
use super::lent::Lent;
use super::mapping::Mapping;
use super::polling::RingPoll;
use super::probe;
use super::size_limit;
use super::sqe::{Cqe, SKIP_SUCCESS, Sqe, TIMEOUT_UPDATE, opcode, to_entry};
use super::wait_for::WaitFor;
use super::wake::EventFd;
use crate::error::SetupError;
use crate::narrow::to_u32;

mod enter;

/// The set of flags that a ring was set up with. A ring uses the newest mode that the kernel accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum SetupMode {
    /// No flag that needs a recent kernel.
    Plain,
    /// `COOP_TASKRUN`. Since Linux 5.19.
    Cooperative,
    /// `SINGLE_ISSUER` and `DEFER_TASKRUN`. Since Linux 6.1.
    Deferred,
}

impl SetupMode {
    /// Returns the description that `Engine::backend` prints.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            SetupMode::Plain => "plain",
            SetupMode::Cooperative => "cooperative task work",
            SetupMode::Deferred => "single issuer, deferred task work",
        }
    }
}

/// The configuration of a new ring.
#[derive(Clone, Debug)]
pub(crate) struct RingConfig {
    /// The entries of the submission queue, halved until the kernel has memory for them.
    pub(crate) sq_entries: u32,
    /// The entries of the completion queue; at least the number of operations that may be in flight.
    pub(crate) cq_entries: u32,
    /// The newest set-up mode to try.
    pub(crate) setup_mode: SetupMode,
    /// The maximum number of kernel workers (io-wq), bounded and unbounded. Since Linux 5.15.
    pub(crate) workers: [u32; 2],
    pub(crate) poll: RingPoll,
}

/// The smallest useful submission queue. Below it the fallback performs better.
const SQ_ENTRIES_MIN: u32 = 8;
/// Pauses before retries after ENOMEM: the kernel uncharges the memory of a closed ring asynchronously.
const ENOMEM_PAUSES_MS: [u64; 3] = [10, 50, 200];
/// The time limit for an operation of `execute`, ns. Such an operation takes far less.
const ANSWER_NS_MAX: u64 = 1_000_000_000;
/// The maximum number of CQEs copied per reap.
pub(crate) const REAP_MAX: usize = 256;

/// A ring and its eventfd for wake-ups.
pub(crate) struct Ring {
    ring: Queues,
    probe: io_uring::Probe,
    setup_mode: SetupMode,
    /// The index of the ring's registered descriptor, which saves a table look-up per enter.
    registered: Option<i32>,
    /// The maximum number of kernel workers per submitting thread.
    workers: [u32; 2],
    flags_enter: u32,
    /// True if a kernel thread takes the pushed entries.
    sq_polled: bool,
    /// True if the kernel can wait for several completions, or for any one after a minimum time. Since Linux 6.12.
    is_patient: bool,
    /// True if SIGXFSZ is blocked during enters: the threads are not the library's, and the size of files is limited.
    blocks_signal: bool,
    wake: Arc<EventFd>,
    /// The memory that the kernel reads the eventfd into; boxed, so that it is Still.
    wake_count: Box<u64>,
    /// The time of a timer in seconds and ns, which the kernel reads while it takes the SQE.
    timer: Box<[i64; 2]>,
    entered: Entered,
    /// Declared after `ring`, so that it is dropped after it.
    lent: Lent,
}

impl Ring {
    /// Creates a ring with the newest set-up mode that works, and smaller if memory is short. Fails if a seccomp filter
    /// would end the process for it.
    pub(crate) fn new(config: RingConfig) -> Result<Ring, SetupError> {
        filter_probe::check()?;
        Ring::with_probed_filter(config)
    }

    /// Creates a ring after [`filter_probe::check`].
    pub(crate) fn with_probed_filter(config: RingConfig) -> Result<Ring, SetupError> {
        match &config.poll {
            RingPoll::Submissions(poller) => {
                poller.share(|attach| Ring::make(config.clone(), attach))
            }
            RingPoll::Nothing | RingPoll::Completions => Ring::make(config, None),
        }
    }

    /// Creates a ring. `attach` is the ring whose poller of the submission queue is shared.
    fn make(mut config: RingConfig, attach: Option<RawFd>) -> Result<Ring, SetupError> {
        let (ring, setup_mode) = loop {
            match Ring::build_newest(&config, attach) {
                Ok(made) => break made,
                Err(error) if error.raw_os_error() == Some(ENOMEM) => {
                    if config.sq_entries / 2 < SQ_ENTRIES_MIN {
                        return Err(probe::explain_setup(error));
                    }
                    config.sq_entries /= 2;
                    config.cq_entries = (config.cq_entries / 2).max(config.sq_entries * 2);
                }
                Err(error) => return Err(Ring::refused(&config, error)),
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
        Ring::furnish(ring, setup_mode, config)
    }

    /// Explains a refusal. Distinguishes a refusal of the ring from one of the poller of its submission queue.
    fn refused(config: &RingConfig, error: io::Error) -> SetupError {
        if let RingPoll::Submissions(poller) = &config.poll
            && matches!(error.raw_os_error(), Some(EPERM | EACCES | EINVAL))
        {
            let unpolled = RingConfig {
                poll: RingPoll::Nothing,
                ..config.clone()
            };
            if Ring::build_newest(&unpolled, None).is_ok() {
                return poller.explain(&error);
            }
        }
        probe::explain_setup(error)
    }

    fn build_newest(
        config: &RingConfig,
        attach: Option<RawFd>,
    ) -> io::Result<(IoUring, SetupMode)> {
        let mut refused = io::Error::from_raw_os_error(EINVAL);
        let highest = match config.poll {
            // SQPOLL excludes the flags of the newer modes: they concern threads that enter.
            RingPoll::Submissions(_) => SetupMode::Plain,
            RingPoll::Nothing | RingPoll::Completions => config.setup_mode,
        };
        for setup_mode in [
            SetupMode::Deferred,
            SetupMode::Cooperative,
            SetupMode::Plain,
        ] {
            if setup_mode > highest {
                continue;
            }
            // The newest flag first: the kernel rejects the whole set with EINVAL.
            for no_sqarray in [true, false] {
                match Ring::build(config, attach, setup_mode, no_sqarray) {
                    Ok(ring) => return Ok((ring, setup_mode)),
                    Err(error) if error.raw_os_error() == Some(EINVAL) => refused = error,
                    Err(error) => return Err(error),
                }
            }
        }
        Err(refused)
    }

    fn build(
        config: &RingConfig,
        attach: Option<RawFd>,
        setup_mode: SetupMode,
        no_sqarray: bool,
    ) -> io::Result<IoUring> {
        let mut builder = IoUring::builder();
        // Trap 54: a forked child must not share the mappings.
        builder
            .dontfork()
            .setup_clamp()
            .setup_cqsize(config.cq_entries);
        if no_sqarray {
            builder.setup_no_sqarray();
        }
        match setup_mode {
            SetupMode::Deferred => {
                builder
                    .setup_single_issuer()
                    .setup_defer_taskrun()
                    .setup_taskrun_flag()
                    .setup_submit_all();
            }
            SetupMode::Cooperative => {
                builder
                    .setup_coop_taskrun()
                    .setup_taskrun_flag()
                    .setup_submit_all();
            }
            SetupMode::Plain => {}
        }
        match &config.poll {
            RingPoll::Nothing => {}
            RingPoll::Completions => _ = builder.setup_iopoll(),
            RingPoll::Submissions(poller) => {
                builder.setup_sqpoll(poller.idle_ms);
                poller.cpu.map(|cpu| builder.setup_sqpoll_cpu(cpu));
                attach.map(|ring| builder.setup_attach_wq(ring));
            }
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

    /// Probes the opcodes and tries a round trip.
    fn furnish(
        ring: IoUring,
        setup_mode: SetupMode,
        config: RingConfig,
    ) -> Result<Ring, SetupError> {
        let mut probe = io_uring::Probe::new();
        match ring.submitter().register_probe(&mut probe) {
            // Only a filter returns these. Without the probe every opcode would go to blocking threads, while the
            // engine would report that it uses a ring (trap 52).
            Err(error) if matches!(error.raw_os_error(), Some(EPERM | EACCES | ENOSYS)) => {
                return Err(probe::explain_setup(error));
            }
            // Since Linux 5.6. Without the probe every opcode counts as unsupported and goes to blocking threads.
            _ => {}
        }
        let flags_enter = if ring.params().is_feature_no_iowait() {
            ENTER_NO_IOWAIT
        } else {
            0
        };
        let wake = EventFd::new().map_err(probe::explain_setup)?;
        let is_patient = ring.params().is_feature_min_timeout();
        let mut ring = Ring {
            ring: Queues::new(ring),
            probe,
            setup_mode,
            registered: None,
            workers: config.workers,
            flags_enter,
            sq_polled: matches!(config.poll, RingPoll::Submissions(_)),
            blocks_signal: false,
            is_patient,
            wake: Arc::new(wake),
            wake_count: Box::new(0),
            timer: Box::new([0; 2]),
            entered: Entered::default(),
            lent: Lent::default(),
        };
        ring.round_trip(&config.poll)?;
        Ok(ring)
    }

    /// Applies the settings that the kernel keeps per thread. Called by each thread that is going to submit.
    pub(crate) fn prepare_thread(&mut self) {
        // Trap 44: without a limit, thousands of worker threads have been observed.
        let _ = self.limit_workers(self.workers);
    }

    /// Marks the ring as entered by threads that are not the library's. SIGXFSZ is then blocked during enters, because
    /// a write inside the call could otherwise kill such a thread.
    pub(crate) fn enter_on_foreign_threads(&mut self) {
        self.blocks_signal = size_limit::is_limited();
    }

    /// Called by the only thread that will enter this ring until it is closed.
    pub(crate) fn bind_to_thread(&mut self) {
        self.prepare_thread();
        self.registered = self.register_ring_fd().ok();
    }

    /// Returns a second descriptor of the ring for polling. It is readable when there are completions to reap. Not
    /// usable with deferred task work (trap 13).
    pub(crate) fn pollable(&self) -> io::Result<OwnedFd> {
        // SAFETY: Open: the ring's own descriptor.
        unsafe { BorrowedFd::borrow_raw(self.raw()) }.try_clone_to_owned()
    }

    /// Executes a NOP. A filter may allow set-up and forbid enter (trap 52).
    fn round_trip(&mut self, poll: &RingPoll) -> Result<(), SetupError> {
        let cqe = self.execute(Sqe {
            user_data: 1,
            ..Sqe::new(opcode::NOP, -1)
        })?;
        // Rings that poll devices did not always accept a NOP. A refusal also proves that the round trip works.
        let no_nop = cqe.res == -EINVAL && matches!(poll, RingPoll::Completions);
        if cqe.res == 0 || no_nop {
            Ok(())
        } else {
            Err(probe::explain_setup(io::Error::from_raw_os_error(-cqe.res)))
        }
    }

    /// Executes one operation while nothing else is in flight. After an error the kernel may still use the memory that
    /// `sqe` points to, so the caller has to leak it.
    pub(super) fn execute(&mut self, sqe: Sqe) -> Result<Cqe, SetupError> {
        self.push(sqe);
        let deadline_ns = super::call::now_ns() + ANSWER_NS_MAX;
        let mut cqes = Vec::with_capacity(1);
        loop {
            let left_ns = deadline_ns.saturating_sub(super::call::now_ns());
            match self.wait(Some(left_ns)) {
                Err(error)
                    if !matches!(error.raw_os_error(), Some(EINTR | EAGAIN | EBUSY | ETIME)) =>
                {
                    return Err(probe::explain_setup(error));
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
                    what: "a test operation on the ring",
                    error,
                });
            }
        }
    }

    /// Stores the time of a timer and returns its address. The kernel reads it while it takes the SQE (SUBMIT_STABLE),
    /// so an SQE that is still queued gets the newer time as well.
    fn set_timer_span(&mut self, after_ns: u64) -> u64 {
        *self.timer = [
            (after_ns / 1_000_000_000).cast_signed(),
            (after_ns % 1_000_000_000).cast_signed(),
        ];
        (&raw const *self.timer).addr() as u64
    }

    /// Returns the memory that is registered with the ring.
    pub(super) fn lent(&mut self) -> &mut Lent {
        &mut self.lent
    }

    /// Returns the interface for registrations.
    pub(super) fn submitter(&self) -> io_uring::Submitter<'_> {
        self.ring.submitter()
    }

    pub(super) fn raw(&self) -> i32 {
        self.ring.as_raw_fd()
    }

    pub(crate) fn setup_mode(&self) -> SetupMode {
        self.setup_mode
    }

    /// Returns whether polled requests always complete: see `PolledRing::new`.
    pub(super) fn polls_reliably(&self) -> bool {
        self.ring.params().is_feature_linked_file()
    }

    pub(crate) fn sq_entries(&self) -> u32 {
        self.ring.params().sq_entries()
    }

    pub(crate) fn cq_entries(&self) -> u32 {
        self.ring.params().cq_entries()
    }

    /// Returns the eventfd that other threads wake this ring's driver with.
    pub(crate) fn waker(&self) -> Arc<EventFd> {
        Arc::clone(&self.wake)
    }

    /// Submits the pushed entries and checks once for completions, without waiting.
    pub(super) fn look_for_completions(&mut self) -> io::Result<()> {
        self.enter(WaitFor::NOTHING, IoringEnterFlags::GETEVENTS.bits(), None)
    }

    /// Returns whether completions did not fit into their queue. The caller then enters, which delivers them.
    pub(super) fn overflows(&mut self) -> bool {
        let overflows = self.ring.submission().cq_overflow();
        self.entered.overflows += u64::from(overflows);
        overflows
    }
}

/// `IORING_ENTER_NO_IOWAIT`: a sleeping driver does not count as waiting for a disk. Since Linux 6.15.
const ENTER_NO_IOWAIT: u32 = 1 << 7;

/// Methods for the cores of a runtime.
#[cfg(feature = "net")]
impl Ring {
    /// Returns the number of entries that can be pushed before the next enter.
    pub(crate) fn sq_space(&self) -> u32 {
        self.sq_entries().saturating_sub(self.unsubmitted())
    }

    /// Returns whether a kernel thread polls the submission queue.
    pub(crate) fn is_sq_polled(&self) -> bool {
        self.sq_polled
    }

    /// Replaces the eventfd by `wake`, which other threads already use to wake the driver. Called before the first
    /// `arm_wake`.
    pub(crate) fn wake_by(&mut self, wake: Arc<EventFd>) {
        self.wake = wake;
    }
}

impl Kernel for Ring {
    #[inline]
    fn push(&mut self, sqe: Sqe) -> bool {
        let entry = to_entry(sqe);
        // SAFETY: Lent and Open. The caller has already put the operation that owns the memory and descriptor of `sqe`
        // into the in-flight table.
        let pushed = unsafe { self.ring.submission().push(&entry).is_ok() };
        // Enter does not report the entries that the poller takes, so they are counted here.
        self.entered.entries += u64::from(self.sq_polled && pushed);
        pushed
    }

    #[inline]
    fn unsubmitted(&self) -> u32 {
        // Dropping a view writes the tail back, but a signal handler of the preload library may have pushed in between.
        // SAFETY: One side. `&self` of the only owner; no other view of the queue is alive.
        let queue = ManuallyDrop::new(unsafe { self.ring.submission_shared() });
        to_u32(queue.len())
    }

    fn submit(&mut self) -> io::Result<()> {
        if self.sq_polled {
            return match self.poller_flags() {
                0 => Ok(()),
                flags => self.enter(WaitFor::NOTHING, flags, None),
            };
        }
        // With deferred task work CQEs appear only in an enter that asks for them.
        let get = self.overflows() || self.setup_mode == SetupMode::Deferred;
        let flags = if get {
            IoringEnterFlags::GETEVENTS.bits()
        } else {
            0
        };
        self.enter(WaitFor::NOTHING, flags, None)
    }

    fn wait(&mut self, timeout_ns: Option<u64>) -> io::Result<()> {
        self.entered.waits += 1;
        self.overflows();
        let mut flags = IoringEnterFlags::GETEVENTS.bits();
        if self.sq_polled {
            // Without SQ_WAIT: this wait is for a completion, not for space in the queue.
            flags |= self.poller_flags() & IoringEnterFlags::SQ_WAKEUP.bits();
        }
        self.enter(WaitFor::ONE, flags, timeout_ns)
    }

    /// A futex costs less than a read of the eventfd, which the kernel's task work completes.
    fn can_park(&self) -> bool {
        true
    }

    fn park(&mut self, timeout_ns: Option<u64>) {
        self.wake.park(timeout_ns);
    }

    fn note_awake(&mut self) {
        self.wake.note_awake();
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
        let space = REAP_MAX.saturating_sub(into.len());
        into.extend(queue.take(space).map(|cqe: cqueue::Entry| Cqe {
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
        let timer = Sqe {
            addr: self.set_timer_span(after_ns),
            len: 1,
            user_data: token,
            ..Sqe::new(opcode::TIMEOUT, -1)
        };
        self.push(timer)
    }

    fn move_timer(&mut self, after_ns: u64, token: u64, user_data: u64) -> bool {
        // Threadless drivers are polled, and an unnecessary CQE would wake the polling thread.
        let skips = self.ring.params().is_feature_skip_cqe_on_success();
        let timer = Sqe {
            flags: if skips { SKIP_SUCCESS } else { 0 },
            addr: token,
            off: self.set_timer_span(after_ns),
            op_flags: TIMEOUT_UPDATE,
            user_data,
            ..Sqe::new(opcode::TIMEOUT_REMOVE, -1)
        };
        self.push(timer)
    }

    fn supports(&self, opcode: u8) -> bool {
        self.probe.is_supported(opcode)
    }

    fn entered(&self) -> Entered {
        self.entered
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
        index: u16,
        memory: &Arc<Mapping>,
        from: usize,
        bytes: usize,
    ) -> Result<(), SetupError> {
        Ring::lend(self, index, memory, from, bytes)
    }

    fn take_back(&mut self, index: u16) -> bool {
        Ring::take_back(self, index)
    }
}
