//! # Safety
//!
//! One io_uring instance. The ABI crate manages the queues. The enter call is made here, because it uses flags that the
//! ABI crate lacks (a registered ring descriptor, no iowait accounting).
//!
//! Invariants: One side (only the owning driver has `&mut Ring`), Drained (the driver drops it with nothing in flight,
//! or leaks it), Lent (the in-flight table owns what the pushed entries point to), Open (the descriptor is the ring's).
#![allow(unsafe_code)]

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::io_uring::{IoringEnterFlags, io_uring_getevents_arg};

#[cfg(all(
    feature = "__preload",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
use super::errno::check;
use super::errno::{EAGAIN, EBUSY, EINTR, ETIME};
use super::forked::Queues;
use super::kernel::{Entered, Kernel};
use super::lent::Lent;
use super::mapping::Mapping;
use super::polling::must_wake_poller;
use super::probe;
use super::size_limit::{self, SignalBlocked};
use super::sqe::{Cqe, SKIP_SUCCESS, Sqe, TIMEOUT_UPDATE, opcode, to_entry};
use super::wait_for::WaitFor;
use super::wake::EventFd;
use crate::error::SetupError;
use crate::narrow::to_u32;

mod setup;

pub(crate) use setup::RingConfig;
pub use setup::SetupMode;

/// The size of a kernel signal set, bytes.
const SIGNAL_SET_BYTES: u32 = 8;
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

    /// Registers an eventfd that is written when work arrives for the ring, while it is [on](Ring::set_wake_eventfd).
    #[cfg(all(feature = "net", feature = "tokio"))]
    pub(crate) fn register_wake_eventfd(&mut self, eventfd: BorrowedFd<'_>) -> io::Result<()> {
        self.set_wake_eventfd(false);
        self.submitter().register_eventfd(eventfd.as_raw_fd())
    }

    /// Turns the registered eventfd on or off. When it is on, check for work once more before a sleep.
    #[cfg(all(feature = "net", feature = "tokio"))]
    pub(crate) fn set_wake_eventfd(&mut self, on: bool) {
        let queue = self.ring.completion();
        match on {
            true => queue.enable_eventfd(),
            false => queue.disable_eventfd(),
        }
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }

    /// Returns whether there are completions, or were more than the queue holds.
    #[cfg(all(feature = "net", feature = "tokio"))]
    pub(crate) fn has_completions(&mut self) -> bool {
        !self.ring.completion().is_empty() || self.ring.submission().cq_overflow()
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

    /// Removes the next CQE from the queue.
    #[cfg(feature = "__preload")]
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Cqe> {
        self.ring.completion().next().map(to_cqe)
    }

    /// Returns whether completions did not fit into their queue. The caller then enters, which delivers them.
    #[inline]
    pub(super) fn overflows(&mut self) -> bool {
        let overflows = self.ring.submission().cq_overflow();
        self.entered.overflows += u64::from(overflows);
        overflows
    }
}

#[inline]
fn to_cqe(entry: io_uring::cqueue::Entry) -> Cqe {
    Cqe {
        user_data: entry.user_data(),
        res: entry.result(),
        flags: entry.flags(),
    }
}

/// The enter call.
impl Ring {
    /// Returns the enter flags that the poller of the submission queue requires: to wake it, to wait for space in a
    /// full queue, and to fetch completions that overflowed.
    fn poller_flags(&mut self) -> u32 {
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
    pub(super) fn poller_wakes(&mut self) -> u32 {
        if self.sq_polled {
            self.poller_flags() & IoringEnterFlags::SQ_WAKEUP.bits()
        } else {
            0
        }
    }

    fn enter(&mut self, wait_for: WaitFor, flags: u32, timeout_ns: Option<u64>) -> io::Result<()> {
        // SAFETY: Lent: no mask is passed.
        unsafe { self.enter_masked(wait_for, flags, timeout_ns, ptr::null()) }
    }

    /// Enters like `enter`, with the thread's signal mask set to `mask` while it sleeps, unless `mask` is null.
    ///
    /// # Safety
    ///
    /// Lent: `mask` is null, or points to the 8 bytes of a kernel signal set until this returns.
    pub(super) unsafe fn enter_masked(
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
                let timeout = timeout_ns.map(super::call::timespec);
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
        // `extend` takes 60 instructions more for a single CQE.
        for cqe in queue.take(space) {
            into.push(to_cqe(cqe));
        }
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
    #[cfg(not(all(
        feature = "__preload",
        any(target_arch = "x86_64", target_arch = "aarch64")
    )))]
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
    #[cfg(all(
        feature = "__preload",
        any(target_arch = "x86_64", target_arch = "aarch64")
    ))]
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
#[cfg(all(
    feature = "__preload",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
#[unsafe(naked)]
unsafe extern "C-unwind" fn unwinding_enter(
    fd: i32,
    to_submit: u32,
    min_complete: u32,
    flags: u32,
    arg: *const io_uring_getevents_arg,
    bytes: usize,
) -> i32 {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!(
        ".cfi_startproc",
        "mov eax, {number}",
        "mov r10, rcx",
        "syscall",
        "ret",
        ".cfi_endproc",
        number = const libc::SYS_io_uring_enter,
    );
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!(
        ".cfi_startproc",
        "mov x8, {number}",
        "svc #0",
        "ret",
        ".cfi_endproc",
        number = const libc::SYS_io_uring_enter,
    );
}
