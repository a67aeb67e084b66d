//! The core of the calling thread. One long file, because it has all calls that a core's tasks make, and the loop
//! between them.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use super::closing::Closing;
use super::notifier::Notifier;
#[cfg(feature = "tokio")]
use super::other_runtime::Sleep;
use super::readiness::Readiness;
use super::rings::Rings;
use super::table::CompletionHandler;
use super::token::Token;
use crate::buf::{Group, GroupLayout, ReceiveMode};
use crate::driver::contain::contain;
use crate::driver::coop_budget::PollBudget;
use crate::driver::handle::DriverHandle;
use crate::driver::limits::Limits;
use crate::driver::submitter::{Opcodes, Submitter};
use crate::driver::timers::{Timer, Timers};
use crate::driver::uring::Tuning;
use crate::error::SetupError;
use crate::fd::{AddressShare, Claim, CloseSocket, Plain, Share, Socket, close_now};
use crate::metrics::{Counters, OperationNumber};
use crate::op::{Interest, SocketOp};
use crate::support::group_probe;
use crate::sys::call;
use crate::sys::engine_error::EngineError;
use crate::sys::kernel::Kernel;
#[cfg(feature = "tokio")]
use crate::sys::kernel_quirks;
use crate::sys::net::SocketKind;
use crate::sys::ring::{Ring, RingConfig, SetupMode};
use crate::sys::sqe::Sqe;

/// The configuration of a core.
#[derive(Clone, Debug)]
pub(crate) struct CoreConfig {
    pub(crate) ring: RingConfig,
    /// The core may sleep in another runtime.
    #[cfg(feature = "tokio")]
    pub(crate) may_sleep_outside: bool,
    pub(crate) group: GroupChoice,
    pub(crate) limits: Limits,
    pub(crate) tuning: Tuning,
    /// The time that a dropped stream goes on sending to a peer that takes no data.
    pub(crate) close_timeout: Duration,
}

/// The requested receive buffers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GroupChoice {
    pub(crate) mode: ReceiveMode,
    /// The number of buffers and their size in bytes; `None` is the default of the mode.
    pub(crate) size: Option<(u16, u32)>,
}

impl GroupChoice {
    /// Returns the layout for buffers of `mode`.
    pub(crate) fn layout(self, mode: ReceiveMode) -> GroupLayout {
        match self.size {
            Some((count, bytes)) => GroupLayout { count, bytes, mode },
            None => GroupLayout::of(mode),
        }
    }
}

/// The source of completions or readiness of a core's sockets.
pub(super) enum Backend {
    Rings(Box<Rings>),
    Readiness(Readiness),
}

/// A detached task on a core.
pub(crate) type Background = Pin<Box<dyn Future<Output = ()>>>;

/// The driver of a core.
pub(crate) struct Core {
    pub(super) backend: Backend,
    pub(super) group: RefCell<Option<Group>>,
    /// The reason why the buffers are not in the requested mode.
    pub(super) mode_refused: Option<String>,
    pub(super) timers: RefCell<Timers<Waker>>,
    /// The number of timers ever set, which distinguishes those of the same time.
    pub(super) timers_set: Cell<u64>,
    pub(super) closing: Closing,
    pub(super) notifier: Arc<Notifier>,
    /// The budget of the task that is being polled. Always used up while another runtime runs its tasks.
    pub(super) budget: PollBudget,
    /// True while another runtime runs its tasks, and counts their operations.
    #[cfg(feature = "tokio")]
    pub(super) runs_other: Cell<bool>,
    /// The sleep in another runtime, which may poll its own tasks meanwhile.
    #[cfg(feature = "tokio")]
    pub(super) sleep: Cell<Option<Sleep>>,
    /// True if new operations are refused because the core is ending.
    pub(super) ending: Cell<bool>,
    /// Starts a task on this core; set by the executor.
    pub(super) starter: Cell<Option<fn(Background)>>,
    /// The access to the addresses that the cores of the runtime share.
    pub(super) seat: OnceCell<AddressShare>,
    /// The submitter of the runtime's file operations and blocking calls.
    pub(super) files: OnceCell<Arc<Submitter>>,
    /// A weak reference to itself, for values that need to hold the core.
    pub(super) this: std::rc::Weak<Core>,
}

thread_local! {
    /// The core that runs on this thread.
    static CURRENT: RefCell<Option<Rc<Core>>> = const { RefCell::new(None) };
}

impl Core {
    /// Creates a core on a ring for the calling thread, with the driver of its file operations.
    pub(crate) fn with_ring(
        #[cfg_attr(not(feature = "tokio"), expect(unused_mut))] mut config: CoreConfig,
        notifier: Arc<Notifier>,
        handle: Arc<DriverHandle>,
    ) -> Result<Rc<Core>, SetupError> {
        // Trap 68. Task work that is not deferred ends a sleep in any system call.
        #[cfg(feature = "tokio")]
        if config.may_sleep_outside && kernel_quirks::eventfd_is_late() {
            config.ring.setup_mode = config.ring.setup_mode.min(SetupMode::Cooperative);
        }
        let mut ring = Ring::new(config.ring)?;
        ring.bind_to_thread();
        ring.wake_by(Arc::clone(notifier.eventfd()));
        // Only modes that passed the probe are used (traps 29, 30).
        let probed = group_probe::verdict(config.group.mode);
        let mode = match &probed {
            Ok(()) => config.group.mode,
            Err(_) => ReceiveMode::Whole,
        };
        let group = Group::new(Some(&mut ring), config.group.layout(mode))?;
        let limits = config.limits.within(ring.cq_entries());
        let rings = Rings::new(ring, Arc::clone(&notifier), handle, limits, config.tuning);
        Ok(Core::new(
            Backend::Rings(Box::new(rings)),
            (group, probed.err()),
            notifier,
            config.close_timeout,
        ))
    }

    /// Creates a core without a ring for the calling thread.
    pub(crate) fn with_readiness(
        config: &CoreConfig,
        notifier: Arc<Notifier>,
    ) -> Result<Rc<Core>, SetupError> {
        let os = |error| SetupError::Os {
            what: "an epoll instance",
            error,
        };
        let readiness = Readiness::new(Arc::clone(&notifier)).map_err(os)?;
        let layout = config.group.layout(ReceiveMode::Whole);
        let group = Group::new(None, layout)?;
        Ok(Core::new(
            Backend::Readiness(readiness),
            (group, None),
            notifier,
            config.close_timeout,
        ))
    }

    pub(super) fn new(
        backend: Backend,
        (group, mode_refused): (Group, Option<String>),
        notifier: Arc<Notifier>,
        close_timeout: Duration,
    ) -> Rc<Core> {
        Rc::new_cyclic(|this| Core {
            backend,
            group: RefCell::new(Some(group)),
            mode_refused,
            timers: RefCell::default(),
            timers_set: Cell::new(0),
            closing: Closing::new(close_timeout),
            notifier,
            budget: PollBudget::new(),
            #[cfg(feature = "tokio")]
            runs_other: Cell::new(false),
            #[cfg(feature = "tokio")]
            sleep: Cell::new(None),
            ending: Cell::new(false),
            starter: Cell::new(None),
            seat: OnceCell::new(),
            files: OnceCell::new(),
            this: this.clone(),
        })
    }

    /// Returns the calling thread's core.
    pub(crate) fn current() -> Option<Rc<Core>> {
        // Also `None` while the thread's cells are being dropped.
        let existing = CURRENT.try_with(|current| current.borrow().clone());
        existing.ok().flatten()
    }

    /// Returns whether the calling thread can have a core. It cannot while its cells are being dropped.
    pub(crate) fn can_be_current() -> bool {
        CURRENT.try_with(|_| ()).is_ok()
    }

    /// Sets or removes the calling thread's core.
    pub(crate) fn set_current(core: Option<Rc<Core>>) {
        let before = CURRENT.with(|current| current.replace(core));
        drop(before);
    }

    /// Returns whether new sockets must be non-blocking.
    pub(crate) fn wants_nonblocking(&self) -> bool {
        matches!(self.backend, Backend::Readiness(_))
    }

    /// Returns whether the core has a ring, through which the kernel receives on its own.
    pub(crate) fn has_ring(&self) -> bool {
        matches!(self.backend, Backend::Rings(_))
    }

    /// Takes over a socket, and sets the mode according to `wants_nonblocking`.
    pub(crate) fn socket(&self, fd: OwnedFd) -> Rc<Socket> {
        let closer: Rc<dyn CloseSocket> = match self.this.upgrade() {
            Some(core) => core,
            None => Rc::new(Plain),
        };
        Socket::new(fd, closer)
    }

    /// Takes one operation from the budget of the task that is being polled. Returns `false` if the budget is used up:
    /// the task must yield, and is polled again.
    #[inline]
    pub(crate) fn spend(&self, context: &mut Context<'_>) -> bool {
        self.budget.take() || self.spend_of_other(context)
    }

    /// Takes one operation from the budget of a task of another runtime, if it is one.
    #[cold]
    pub(super) fn spend_of_other(&self, context: &mut Context<'_>) -> bool {
        #[cfg(feature = "tokio")]
        if self.runs_other.get() {
            // Tokio polls a task without a budget only after its reactor and the core had their turns.
            let taken = tokio::task::coop::poll_proceed(context);
            return taken.map(|taken| taken.made_progress()).is_ready();
        }
        context.waker().wake_by_ref();
        false
    }

    /// Takes the share of `bytes` bytes from the budget. Tokio's budgets count operations only.
    #[inline]
    pub(crate) fn charge(&self, bytes: usize) {
        self.budget.charge(bytes);
    }

    /// Returns whether the task that was polled last has used up its budget.
    #[inline]
    pub(crate) fn has_used_up(&self) -> bool {
        self.budget.is_used_up()
    }

    /// Resets the budget before a task is polled.
    #[inline]
    pub(crate) fn refill(&self) {
        self.budget.reset();
    }

    /// Sets whether another runtime runs its tasks on this thread.
    #[cfg(feature = "tokio")]
    pub(crate) fn set_runs_other(&self, runs_other: bool) {
        self.runs_other.set(runs_other);
        self.budget.use_up();
    }

    /// Delivers completions while another runtime runs its tasks on this thread. A waker may poll a future in
    /// `deliver`. That future takes from the budget of the core: the other runtime would wake it at its next sleep, and
    /// forget it if it ends its round before.
    #[cfg(feature = "tokio")]
    pub(crate) fn with_own_budget<T>(&self, deliver: impl FnOnce() -> T) -> T {
        self.runs_other.set(false);
        self.budget.reset();
        let delivered = deliver();
        self.set_runs_other(true);
        delivered
    }

    /// Sets the function that starts tasks on this core.
    pub(crate) fn set_starter(&self, starter: fn(Background)) {
        self.starter.set(Some(starter));
    }

    /// Starts `future` as a detached task on this core, or drops it if the core runs no tasks any more.
    pub(crate) fn start_background(&self, future: Background) {
        if let Some(starter) = self.starter.get() {
            starter(future);
        }
    }

    /// Sets the submitter of file operations and blocking calls.
    pub(crate) fn set_files(&self, files: &Arc<Submitter>) {
        let _ = self.files.set(Arc::clone(files));
    }

    /// Returns the submitter of file operations and blocking calls; `None` before the core has started.
    pub(crate) fn files(&self) -> Option<Arc<Submitter>> {
        self.files.get().map(Arc::clone)
    }

    /// Sets the access to the addresses that the runtime's cores share.
    pub(crate) fn set_address_share(&self, seat: AddressShare) {
        let _ = self.seat.set(seat);
    }

    /// Binds a socket with `bind`, to an address that the other cores may share.
    pub(crate) fn claim(
        &self,
        kind: SocketKind,
        address: SocketAddr,
        bind: impl FnOnce(Share) -> std::io::Result<SocketAddr>,
    ) -> std::io::Result<Option<Claim>> {
        match self.seat.get() {
            Some(seat) => seat.claim(kind, address, bind),
            None => bind(Share::Alone).map(|_| None),
        }
    }

    /// Returns whether operations are refused. In a child of a fork they always are.
    #[inline]
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.get() || self.is_elsewhere()
    }

    /// Returns the reason why operations are refused.
    #[cold]
    pub(crate) fn refusal(&self) -> EngineError {
        if self.is_elsewhere() {
            EngineError::Forked
        } else {
            EngineError::Ended
        }
    }

    /// Returns whether this is a child of the process that the core runs in.
    #[inline]
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.notifier.is_elsewhere()
    }

    /// Returns the ring's set-up mode, its entries, and its opcodes; for a core that has a ring.
    pub(crate) fn ring_facts(&self) -> (SetupMode, u32, Opcodes) {
        match &self.backend {
            Backend::Rings(rings) => rings.with_ring(|ring| {
                let opcodes = Opcodes::of(|opcode| ring.supports(opcode));
                (ring.setup_mode(), ring.sq_entries(), opcodes)
            }),
            Backend::Readiness(_) => (SetupMode::Plain, 0, Opcodes::NONE),
        }
    }

    /// Counts a system call that was made in place of an operation.
    #[inline]
    pub(crate) fn count_call(&self, operation: OperationNumber, res: i32) {
        count_call(&self.notifier.counters, operation, res);
    }

    // ----- multishot receives and accepts -----

    /// Submits `sqe`, a multishot `operation`. Its completions go to `handler` until one reports that no more follow.
    /// Returns `None` without a ring, or when the core is ending.
    pub(crate) fn arm(
        &self,
        operation: OperationNumber,
        sqe: Sqe,
        handler: Rc<dyn CompletionHandler>,
    ) -> Option<Token> {
        match &self.backend {
            Backend::Rings(rings) if !self.is_ending() => Some(rings.arm(operation, sqe, handler)),
            _ => None,
        }
    }

    /// Starts a detached operation. It is returned when the core is ending.
    #[inline]
    pub(crate) fn start_detached<T: SocketOp>(&self, op: T) -> Result<(), T> {
        if self.is_ending() {
            return Err(op);
        }
        match &self.backend {
            Backend::Rings(rings) => drop(rings.start(op, None)),
            Backend::Readiness(readiness) => readiness.start_detached(op),
        }
        Ok(())
    }

    /// Returns whether a socket's last send and its close can be submitted together.
    pub(crate) fn closes_behind_sends(&self) -> bool {
        match &self.backend {
            Backend::Rings(rings) => rings.closes_behind_sends(),
            Backend::Readiness(_) => true,
        }
    }

    /// Starts the last send of a socket that has no other user, and closes the socket after it. Requires
    /// [`closes_behind_sends`](Core::closes_behind_sends), and a core that is not ending.
    #[inline]
    pub(crate) fn start_last<T: SocketOp>(&self, op: T) {
        match &self.backend {
            Backend::Rings(rings) => rings.start_last(op),
            Backend::Readiness(readiness) => readiness.start_detached(op),
        }
    }

    /// Requests the cancel of an operation. Its final completion still arrives.
    pub(crate) fn cancel(&self, token: Token) {
        if let Backend::Rings(rings) = &self.backend {
            rings.cancel(token);
        }
    }

    /// Registers `waker` to be woken when `socket` may have become ready, on a core without a ring.
    pub(crate) fn watch(
        &self,
        socket: &Socket,
        interest: Interest,
        waker: &Waker,
    ) -> std::io::Result<()> {
        match &self.backend {
            Backend::Readiness(readiness) => readiness.watch(socket, interest, waker),
            Backend::Rings(_) => Ok(()),
        }
    }

    /// Returns whether an attempt can succeed: the socket is not known to be unready.
    #[inline]
    pub(crate) fn may_be_ready(&self, socket: &Socket, interest: Interest) -> bool {
        match &self.backend {
            Backend::Readiness(readiness) => readiness.may_be_ready(socket, interest),
            Backend::Rings(_) => true,
        }
    }

    /// Notes that the last attempt exhausted the socket, so that only a readiness event makes another useful.
    #[inline]
    pub(crate) fn not_ready(&self, socket: &Socket, interest: Interest) {
        if let Backend::Readiness(readiness) = &self.backend {
            readiness.not_ready(socket, interest);
        }
    }

    /// Notes that the last receive got less than its buffer holds.
    #[inline]
    pub(crate) fn emptied(&self, socket: &Socket) {
        if let Backend::Readiness(readiness) = &self.backend {
            readiness.emptied(socket);
        }
    }

    // ----- time -----

    /// Returns the current time on the clock of timers, ns.
    pub(crate) fn now_ns(&self) -> u64 {
        call::now_ns()
    }

    /// Arms a timer that wakes `waker` at `at_ns`. `timer` is the caller's previous timer, if it has one.
    pub(crate) fn set_timer(&self, timer: Option<Timer>, at_ns: u64, waker: &Waker) -> Timer {
        let waker = waker.clone();
        let timer = timer.unwrap_or_else(|| {
            self.timers_set.set(self.timers_set.get() + 1);
            let key = self.timers_set.get();
            Timer { at_ns, key }
        });
        let before = self.timers.borrow_mut().set(timer, waker);
        drop(before);
        self.note_time(Some(at_ns));
        timer
    }

    pub(crate) fn clear_timer(&self, timer: Timer) {
        let waker = self.timers.borrow_mut().clear(timer);
        drop(waker);
    }

    /// Returns the notifier, by which other threads reach this core.
    pub(crate) fn notifier(&self) -> Arc<Notifier> {
        Arc::clone(&self.notifier)
    }

    /// Returns whether `notifier` is this core's.
    pub(crate) fn is_of(&self, notifier: &Arc<Notifier>) -> bool {
        Arc::ptr_eq(&self.notifier, notifier)
    }

    pub(super) fn expire(&self) {
        if self.timers.borrow().next_ns().is_none() {
            return;
        }
        for timer in self.notifier.cleared_timers() {
            self.clear_timer(timer);
        }
        let now_ns = self.now_ns();
        loop {
            let passed = self.timers.borrow_mut().pop_passed(now_ns);
            match passed {
                Some((_, waker)) => contain(|| waker.wake()),
                None => return,
            }
        }
    }

    // ----- the loop -----

    /// Returns whether no operation completes any more: the ring has failed, or this is a child of a fork.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.is_elsewhere() || matches!(&self.backend, Backend::Rings(rings) if rings.failed() != 0)
    }

    /// Returns the error if the core has failed.
    pub(crate) fn failure(&self) -> Option<std::io::Error> {
        match &self.backend {
            _ if self.is_elsewhere() => Some(std::io::Error::other(
                "this process is a child of a fork, and the core belongs to its parent; a child may call exec or \
                 _exit, or start a new runtime",
            )),
            Backend::Rings(rings) if rings.failed() != 0 => {
                Some(std::io::Error::from_raw_os_error(rings.failed()))
            }
            _ => None,
        }
    }

    /// Submits the operations of the tasks and handles completions, with one enter. Sleeps until there is an event
    /// unless `busy` returns `true`. `busy` covers work that the notifier does not announce; it is called after the
    /// notifier has been armed.
    pub(crate) fn drive(&self, busy: impl Fn() -> bool) {
        if self.is_elsewhere() {
            return;
        }
        let next_ns = self.next_ns();
        self.with_group(Group::fetch);
        match &self.backend {
            Backend::Rings(rings) => rings.drive(self, next_ns, busy),
            Backend::Readiness(readiness) => readiness.drive(self, next_ns, busy),
        }
        self.notifier.counters.ring_polls().add(1);
        self.expire();
        if self.closing.must_check() {
            self.abort_stuck();
        }
    }

    /// Resets the closing streams whose peer takes no data.
    #[cold]
    fn abort_stuck(&self) {
        for socket in self.closing.stuck() {
            self.notifier.counters.close_timeouts().add(1);
            socket.abort();
        }
    }

    /// Returns the time of the next timer, ns.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        let next_ns = self.timers.borrow().next_ns();
        next_ns.into_iter().chain(self.closing.next_ns()).min()
    }

    /// Returns whether a detached send is in flight. Checks all operations in flight.
    pub(crate) fn is_sending(&self) -> bool {
        match &self.backend {
            Backend::Rings(rings) => rings.is_sending(),
            Backend::Readiness(readiness) => readiness.is_sending(),
        }
    }

    /// Refuses new operations, and cancels and waits for those in flight, at most until `until_ns`. After that, memory
    /// that the kernel may still use is leaked. Returns the number of leaked operations.
    pub(crate) fn end(&self, until_ns: u64) -> u32 {
        self.ending.set(true);
        if self.is_elsewhere() {
            // The kernel uses the parent's memory. The child never touches the ring again.
            let group = self.group.take();
            group.into_iter().for_each(Group::leak);
            std::mem::forget(self.this.upgrade());
            return 0;
        }
        self.notifier.end_timers();
        let left = match &self.backend {
            Backend::Rings(rings) => rings.drain(self, until_ns),
            Backend::Readiness(readiness) => {
                readiness.end();
                0
            }
        };
        if left > 0 {
            // The kernel may still take a buffer of the group.
            let group = self.group.take();
            group.into_iter().for_each(Group::leak);
            std::mem::forget(self.this.upgrade());
            return left;
        }
        if let Some(group) = self.group.take() {
            match &self.backend {
                Backend::Rings(rings) => rings.with_ring(|ring| group.end(Some(ring))),
                Backend::Readiness(_) => group.end(None),
            }
        }
        0
    }
}

impl CloseSocket for Core {
    fn close(&self, raw: i32, watched: Option<u32>) {
        match &self.backend {
            Backend::Rings(rings) if !self.is_ending() && rings.failed() == 0 => rings.close(raw),
            Backend::Readiness(readiness) => readiness.close(raw, watched),
            Backend::Rings(_) => close_now(raw),
        }
    }

    fn is_over(&self) -> bool {
        self.is_ending()
    }

    fn watch_closing(&self, socket: &Rc<Socket>) -> Option<usize> {
        let index = self.closing.add(socket);
        self.note_time(self.closing.next_ns());
        index
    }

    fn forget_closing(&self, index: usize) {
        self.closing.remove(index);
    }

    fn wake(&self, task: Waker) {
        contain(|| task.wake());
    }
}

/// Counts a system call that was made in place of an operation.
#[inline]
pub(super) fn count_call(counters: &Counters, operation: OperationNumber, res: i32) {
    counters.submitted().add(1);
    counters.complete(operation);
    if res < 0 {
        counters.fail(operation, -res);
    }
}
