//! # Safety
//!
//! The queues of the simulated kernel: the way of an SQE from push to CQE, and all faults of the queues. There is one
//! instance per driver.
//!
//! An operation's memory is accessed as late as possible, when the operation is due, so that memory that is freed too
//! early is detected. Exceptions are garbage, and data that real kernels copy immediately (paths and vectors).
//! Invariants: Lent (an operation's memory is released before its CQE is posted), One side.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::super::errno::{EAGAIN, EALREADY, EBADFD, EBUSY, EINTR, ENOENT, ETIME};
use super::super::kernel::{Entered, Kernel};
use super::super::ring::REAP_MAX;
use super::super::sqe::{ASYNC_CANCEL_ANY, Cqe, Sqe, opcode};
use super::execute::Fate;
use super::request::{Request, WAKE_FD};
use super::trace::{Event, EventKind};
use super::{SimClock, SimEventFd, World};
use crate::narrow::to_u32;

/// The number of consecutive enter calls without effect, on the virtual clock, after which the driver is assumed to
/// loop. Random refusals do not explain so long a series.
const FRUITLESS_MAX: u32 = 100_000;
/// The duration of an enter call or a check of the queues on the virtual clock, ns.
const STEP_NS: u64 = 1_000;
/// The maximum number of completions per enter call that does not wait, with deferred task work, as in Linux since
/// about 6.13.
const TASK_WORK_MAX: usize = 20;

/// The kernel of one driver.
pub(crate) struct SimKernel {
    world: Arc<World>,
    clock: Arc<SimClock>,
    eventfd: Arc<SimEventFd>,
    sq: VecDeque<Sqe>,
    running: Vec<Running>,
    cq: VecDeque<Cqe>,
    /// Completions that did not fit into `cq`, in order.
    overflow: VecDeque<Cqe>,
    enters: u64,
    waits: u64,
    entries: u64,
    overflows: u64,
    /// Enter calls since the last entry was taken, completed or reaped.
    fruitless: u32,
}

/// An operation between its start and its CQE.
struct Running {
    /// The number of the operation in the world's trace.
    operation: u64,
    sqe: Sqe,
    request: Request,
    due_ns: u64,
    /// True if cancels fail to find it.
    deaf: bool,
    fate: Fate,
}

impl SimKernel {
    pub(crate) fn new(
        world: Arc<World>,
        clock: Arc<SimClock>,
        eventfd: Arc<SimEventFd>,
    ) -> SimKernel {
        SimKernel {
            world,
            clock,
            eventfd,
            sq: VecDeque::new(),
            running: Vec::new(),
            cq: VecDeque::new(),
            overflow: VecDeque::new(),
            enters: 0,
            waits: 0,
            entries: 0,
            overflows: 0,
            fruitless: 0,
        }
    }

    fn tick(&self) {
        self.clock.advance_to(self.clock.now_ns() + STEP_NS);
    }

    /// Takes up to `entries` entries from the submission queue.
    fn take(&mut self, entries: usize) {
        for _ in 0..entries {
            match self.sq.pop_front() {
                Some(sqe) if sqe.opcode == opcode::ASYNC_CANCEL => self.cancel(sqe),
                Some(sqe) => self.start(sqe),
                None => return,
            }
        }
        if entries > 0 {
            self.fruitless = 0;
        }
        self.note_high_water();
    }

    fn start(&mut self, sqe: Sqe) {
        // SAFETY: Lent: the driver pushed the entry, so the memory it points to is valid until its CQE.
        let mut request = unsafe { Request::of(&sqe) };
        let config = self.world.config();
        let now_ns = self.clock.now_ns();
        let mut state = self.world.state();
        state.operations += 1;
        let operation = state.operations;
        let (mut due_ns, mut deaf) = (u64::MAX, false);
        if !matches!(request, Request::Wake) {
            let late = state.dice.hits(config.late_per_mille);
            let most = if late {
                config.late_ns_max
            } else {
                config.delay_ns_max
            };
            let delay_ns = if most == 0 {
                0
            } else {
                state.dice.below(most + 1)
            };
            due_ns = now_ns + delay_ns;
            deaf = late || state.dice.hits(config.uncancellable_per_mille);
            state.counts.late += u64::from(late);
            state.counts.delayed += u64::from(delay_ns > 0);
            state
                .trace
                .note(event(now_ns, EventKind::Started, operation, &sqe, &request));
            if state.dice.hits(config.scribble_per_mille) {
                let garbage = state.dice.byte();
                for target in request.targets() {
                    target.scribble(garbage);
                    state.counts.scribbled += 1;
                }
            }
        }
        drop(state);
        self.running.push(Running {
            operation,
            sqe,
            request,
            due_ns,
            deaf,
            fate: Fate::Runs,
        });
    }

    fn note_high_water(&self) {
        let stalled = self
            .running
            .iter()
            .filter(|one| !matches!(one.request, Request::Wake));
        let (mut operations, mut bytes) = (0, 0);
        for one in stalled {
            operations += 1;
            bytes += one.request.bytes();
        }
        let mut state = self.world.state();
        state.high_water.operations = state.high_water.operations.max(operations);
        state.high_water.bytes = state.high_water.bytes.max(bytes);
    }

    fn cancel(&mut self, sqe: Sqe) {
        let res = if sqe.op_flags & ASYNC_CANCEL_ANY != 0 {
            let everyone: Vec<u64> = self.running.iter().map(|one| one.sqe.user_data).collect();
            let everyone = everyone.into_iter();
            let stopped = everyone.filter(|&token| self.stop(token, &sqe) == 0);
            i32::try_from(stopped.count()).unwrap_or(i32::MAX)
        } else {
            self.stop(sqe.addr, &sqe)
        };
        self.post(Cqe {
            user_data: sqe.user_data,
            res,
            flags: 0,
        });
    }

    /// Tries to cancel one operation. Returns the result of a cancel of this operation alone.
    fn stop(&mut self, token: u64, sqe: &Sqe) -> i32 {
        let world = Arc::clone(&self.world);
        let now_ns = self.clock.now_ns();
        let mut state = world.state();
        let target = self
            .running
            .iter_mut()
            .find(|one| one.sqe.user_data == token && one.fate == Fate::Runs);
        let Some(target) = target else {
            state.counts.cancels_missed += 1;
            return -ENOENT;
        };
        let wakes = matches!(target.request, Request::Wake);
        let delay_ns = state.dice.below(world.config().delay_ns_max + 1);
        let res = if target.deaf && !wakes {
            state.counts.cancels_missed += 1;
            -ENOENT
        } else if !wakes && state.dice.hits(world.config().slow_cancels_per_mille) {
            state.counts.cancels_too_late += 1;
            if state.dice.coin() {
                target.fate = Fate::Interrupted;
                target.due_ns = target.due_ns.min(now_ns + delay_ns);
            } else {
                target.deaf = true;
            }
            -EALREADY
        } else {
            state.counts.cancels_done += 1;
            target.fate = Fate::Cancelled;
            target.due_ns = now_ns + delay_ns;
            0
        };
        let operation = target.operation;
        state.trace.note(event(
            now_ns,
            EventKind::CancelRequested(res),
            operation,
            sqe,
            &Request::Nop,
        ));
        // The CQE of a stopped operation is posted before that of its cancel, or some time after.
        let before = res == 0 && (wakes || !state.dice.hits(world.config().slow_cancels_per_mille));
        if res == 0 {
            state.counts.cancelled_before += u64::from(before);
            state.counts.cancelled_after += u64::from(!before);
        }
        drop(state);
        let at = self
            .running
            .iter()
            .position(|one| one.operation == operation);
        if let Some(at) = at.filter(|_| before) {
            let stopped = self.running.remove(at);
            self.complete(stopped);
        }
        res
    }

    /// Completes at most `most` operations that are due. Returns whether any were due.
    fn complete_due(&mut self, most: usize) -> bool {
        let now_ns = self.clock.now_ns();
        let signalled = self.eventfd.is_signalled();
        let is_due = |one: &mut Running| {
            one.due_ns <= now_ns || signalled && matches!(one.request, Request::Wake)
        };
        let mut due: Vec<Running> = self.running.extract_if(.., is_due).collect();
        due.sort_by_key(|one| (one.due_ns, one.operation));
        let any_due = !due.is_empty();
        for _ in 0..due.len().min(most) {
            let mut next = 0;
            {
                let mut state = self.world.state();
                if due.len() > 1 && state.dice.hits(self.world.config().reorder_per_mille) {
                    next = state.dice.index(due.len());
                    state.counts.reordered += u64::from(next > 0);
                }
            }
            let one = due.remove(next);
            self.complete(one);
        }
        self.running.append(&mut due);
        any_due
    }

    /// Executes an operation, releases its memory, and posts its CQE.
    fn complete(&mut self, one: Running) {
        let Running {
            operation,
            sqe,
            request,
            fate,
            ..
        } = one;
        let now_ns = self.clock.now_ns();
        if matches!(request, Request::Wake) && fate == Fate::Runs {
            self.eventfd.clear();
        }
        let world = Arc::clone(&self.world);
        let mut state = world.state();
        let noted = (!matches!(request, Request::Wake))
            .then(|| event(now_ns, EventKind::Completed(0), operation, &sqe, &request));
        let res = state.execute(&world.config(), fate, &sqe, request, now_ns);
        if let Some(event) = noted {
            state.completed += 1;
            state.trace.note(Event {
                what: EventKind::Completed(res),
                ..event
            });
        }
        drop(state);
        self.post(Cqe {
            user_data: sqe.user_data,
            res,
            flags: 0,
        });
    }

    fn post(&mut self, cqe: Cqe) {
        self.fruitless = 0;
        // Later completions must queue behind those that have overflowed.
        if self.overflow.is_empty() && !self.cq_is_full() {
            self.cq.push_back(cqe);
        } else {
            self.overflow.push_back(cqe);
            self.world.state().counts.overflowed += 1;
        }
    }

    fn flush_overflow(&mut self) {
        while !self.cq_is_full() {
            match self.overflow.pop_front() {
                Some(cqe) => self.cq.push_back(cqe),
                None => return,
            }
        }
    }

    /// Panics if a simulation loops without progress.
    fn check_progress(&mut self) {
        self.fruitless += 1;
        if self.fruitless > FRUITLESS_MAX && matches!(*self.clock, SimClock::Virtual(_)) {
            // Reset, so that the drain during the panic can finish.
            self.fruitless = 0;
            self.world.become_calm();
            panic!("the driver repeats enter calls without any progress");
        }
    }

    fn cq_is_full(&self) -> bool {
        self.cq.len() >= self.world.config().cq_entries as usize
    }

    /// Writes garbage to the memory of an operation in flight, as a device may at any moment.
    fn scribble(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let mut state = self.world.state();
        if state.dice.hits(self.world.config().scribble_per_mille) {
            let at = state.dice.index(self.running.len());
            let garbage = state.dice.byte();
            for target in self
                .running
                .get_mut(at)
                .map(|one| one.request.targets())
                .unwrap_or_default()
            {
                target.scribble(garbage);
                state.counts.scribbled += 1;
            }
        }
    }

    /// Executes an enter call without its wait. Returns whether all queued entries were taken.
    fn enter(&mut self, get_events: bool) -> io::Result<bool> {
        self.enters += 1;
        self.overflows += u64::from(!self.overflow.is_empty());
        self.tick();
        self.check_progress();
        self.scribble();
        if get_events {
            self.flush_overflow();
        }
        let config = self.world.config();
        if self.enters > config.dies_after_enters {
            return Err(io::Error::from_raw_os_error(EBADFD));
        }
        let queued = self.sq.len();
        let (taken, broken) = {
            let mut state = self.world.state();
            if config.busy_on_overflow && !self.overflow.is_empty() {
                state.counts.enters_busy += 1;
                return Err(io::Error::from_raw_os_error(EBUSY));
            }
            if state.dice.hits(config.refused_enters_per_mille) {
                state.counts.enters_refused += 1;
                let errno = [EAGAIN, EINTR, EBUSY][state.dice.index(3)];
                return Err(io::Error::from_raw_os_error(errno));
            }
            let broken = queued > 0 && state.dice.hits(config.broken_enters_per_mille);
            let short = queued > 0 && !broken && state.dice.hits(config.short_submits_per_mille);
            state.counts.enters_broken += u64::from(broken);
            state.counts.submits_short += u64::from(short);
            let taken = if broken || short {
                state.dice.index(queued)
            } else {
                queued
            };
            let errno = [EAGAIN, EINTR][state.dice.index(2)];
            (taken, broken.then_some(errno))
        };
        self.entries += taken as u64;
        self.take(taken);
        if let Some(errno) = broken {
            return Err(io::Error::from_raw_os_error(errno));
        }
        if get_events || !config.deferred {
            self.complete_due(TASK_WORK_MAX);
        }
        if get_events {
            self.flush_overflow();
        }
        Ok(taken == queued)
    }

    /// Advances time until an operation is due, or to `until_ns`. Returns `false` if nothing will ever be due.
    fn let_time_pass(&mut self, until_ns: Option<u64>) -> bool {
        let next_ns = self
            .running
            .iter()
            .map(|one| one.due_ns)
            .filter(|&due| due < u64::MAX)
            .min();
        let wake_at = next_ns.into_iter().chain(until_ns).min();
        match &*self.clock {
            SimClock::Virtual(_) => match wake_at {
                Some(at) => {
                    self.fruitless = 0;
                    self.clock.advance_to(at);
                }
                None => return false,
            },
            SimClock::Real => {
                let listens = self
                    .running
                    .iter()
                    .any(|one| matches!(one.request, Request::Wake));
                let most =
                    wake_at.map(|at| Duration::from_nanos(at.saturating_sub(self.clock.now_ns())));
                self.eventfd.wait(listens, most);
            }
        }
        true
    }
}

fn event(at_ns: u64, what: EventKind, operation: u64, sqe: &Sqe, request: &Request) -> Event {
    Event {
        at_ns,
        what,
        operation,
        kind: request.kind(),
        fd: sqe.fd,
        offset: sqe.off,
        bytes: request.bytes(),
    }
}

impl Kernel for SimKernel {
    fn push(&mut self, sqe: Sqe) -> bool {
        if self.sq.len() >= self.world.config().sq_entries as usize {
            self.world.state().counts.pushes_refused += 1;
            return false;
        }
        self.sq.push_back(sqe);
        true
    }

    fn unsubmitted(&self) -> u32 {
        to_u32(self.sq.len())
    }

    fn submit(&mut self) -> io::Result<()> {
        // As in the ring: completions are requested unless they appear without a request.
        let get_events = self.world.config().deferred || !self.overflow.is_empty();
        self.enter(get_events).map(drop)
    }

    fn wait(&mut self, timeout_ns: Option<u64>) -> io::Result<()> {
        self.waits += 1;
        let until_ns = timeout_ns.map(|ns| self.clock.now_ns().saturating_add(ns));
        if !self.enter(true)? {
            return Ok(());
        }
        loop {
            self.complete_due(usize::MAX);
            self.flush_overflow();
            if !self.cq.is_empty() {
                return Ok(());
            }
            if until_ns.is_some_and(|until| until <= self.clock.now_ns()) {
                return Err(io::Error::from_raw_os_error(ETIME));
            }
            if !self.let_time_pass(until_ns) {
                self.world.stuck.store(true, Ordering::Relaxed);
                return Err(io::Error::from_raw_os_error(EINTR));
            }
        }
    }

    fn ready(&mut self) -> bool {
        self.tick();
        if !self.world.config().deferred {
            self.complete_due(usize::MAX);
        }
        let (now_ns, signalled) = (self.clock.now_ns(), self.eventfd.is_signalled());
        let is_due = |one: &Running| {
            one.due_ns <= now_ns || signalled && matches!(one.request, Request::Wake)
        };
        !self.cq.is_empty() || !self.overflow.is_empty() || self.running.iter().any(is_due)
    }

    fn reap(&mut self, into: &mut Vec<Cqe>) {
        let space = REAP_MAX.saturating_sub(into.len()).min(self.cq.len());
        if space > 0 {
            self.fruitless = 0;
        }
        into.extend(self.cq.drain(..space));
    }

    fn arm_wake(&mut self, token: u64) -> bool {
        self.push(Sqe {
            len: 8,
            user_data: token,
            ..Sqe::new(opcode::READ, WAKE_FD)
        })
    }

    fn supports(&self, _: u8) -> bool {
        true
    }

    fn entered(&self) -> Entered {
        Entered {
            enters: self.enters,
            waits: self.waits,
            entries: self.entries,
            overflows: self.overflows,
            ..Entered::default()
        }
    }

    fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    fn pause(&mut self, ns: u64) {
        match &*self.clock {
            SimClock::Virtual(_) => self.clock.advance_to(self.clock.now_ns() + ns),
            SimClock::Real => std::thread::sleep(Duration::from_nanos(ns)),
        }
    }
}
