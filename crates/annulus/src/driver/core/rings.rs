//! A core with a ring: SQEs as tasks ask, one enter per poll, and completions copied out before they are
//! acted upon.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};

use slab::Slab;

use super::shared_ring::{Files, SubmissionPort};
use super::table::{Abandoned, Act, CompletionHandler, CompletionInfo, Table, Token};
use super::{Core, Notifier};
use crate::driver::finish::contain;
use crate::driver::slot::PANICKED;
use crate::driver::uring::Tuning;
use crate::driver::{DriverHandle, Limits, leak};
use crate::fd::Socket;
use crate::metrics::{self, OperationNumber, Times};
use crate::narrow::to_u32;
use crate::op::SocketOp;
use crate::sys::call;
use crate::sys::errno::{EAGAIN, EBADR, EBUSY, ECANCELED, EINTR, EINVAL, ENOBUFS, ENOMEM, ETIME};
use crate::sys::kernel::Kernel;
use crate::sys::ring::Ring;
use crate::sys::sqe::{Cqe, LINKED, Sqe, opcode};

/// The read that a notifier completes.
const WAKE: Token = Token::special(0);
/// CQEs that say nothing: of closes and cancels.
const IGNORED: Token = Token::special(1);
/// From here on, closes that are linked to sends, by their index.
const CLOSES: u32 = 2;
/// Between two looks at what is in flight while a core ends.
const DRAIN_POLL_NS: u64 = 50_000_000;

pub(super) struct Rings {
    port: Rc<SubmissionPort>,
    files: RefCell<Files>,
    table: RefCell<Table>,
    /// What met a full submission queue, in order. Never dropped (trap 7).
    waiting: RefCell<VecDeque<Sqe>>,
    cqes: RefCell<Vec<Cqe>>,
    /// Sockets whose last send has a close linked to it.
    closes: RefCell<Slab<Rc<Socket>>>,
    wake_armed: Cell<bool>,
    notifier: Arc<Notifier>,
    /// Whether the kernel goes on with a send until all is sent or it fails (MSG_WAITALL): Linux 5.19, told by an
    /// operation of 6.0.
    sends_whole: bool,
    /// The errno by which the ring has shown that it is of no more use, or 0.
    failed: Cell<i32>,
    /// When the completions at hand were reaped, ns, if that has been asked; else 0.
    reaped_ns: Cell<u64>,
}

impl Rings {
    pub(super) fn new(
        ring: Ring,
        notifier: Arc<Notifier>,
        handle: Arc<DriverHandle>,
        limits: Limits,
        tuning: Tuning,
    ) -> Rings {
        let sends_whole = ring.supports(opcode::SEND_ZC);
        let port = SubmissionPort::new(ring);
        let files = Files::new(Rc::clone(&port), handle, limits, tuning);
        Rings {
            port,
            files: RefCell::new(files),
            table: RefCell::default(),
            waiting: RefCell::default(),
            cqes: RefCell::default(),
            closes: RefCell::default(),
            wake_armed: Cell::new(false),
            notifier,
            sends_whole,
            failed: Cell::new(0),
            reaped_ns: Cell::new(0),
        }
    }

    pub(super) fn with_ring<T>(&self, act: impl FnOnce(&mut Ring) -> T) -> T {
        act(&mut self.port.ring.borrow_mut())
    }

    // ----- what futures call -----

    #[inline]
    pub(super) fn start<T: SocketOp>(&self, mut op: T, waker: Option<Waker>) -> Token {
        // The buffer is foreign code: it is asked with nothing borrowed.
        let sqe = op.sqe();
        let submitted_ns = metrics::sample();
        let (token, sqe) = self.table.borrow_mut().start(op, sqe, waker, submitted_ns);
        self.push(sqe);
        token
    }

    /// Begins the last send of a socket that nothing else uses, and closes it in the same enter: the close is linked to
    /// the send, so that the kernel runs it when all is sent, and gives it back when that fails (trap 65).
    #[inline]
    pub(super) fn start_last<T: SocketOp>(&self, mut op: T) {
        if !self.has_space_for_two() {
            // Closed when the send is over, by its drop.
            self.start(op, None);
            return;
        }
        let socket = Rc::clone(op.socket());
        let raw = socket.raw();
        socket.close_begins();
        let index = self.closes.borrow_mut().insert(socket);
        let mut sqe = op.sqe();
        sqe.flags |= LINKED;
        let submitted_ns = metrics::sample();
        let (_, sqe) = self.table.borrow_mut().start(op, sqe, None, submitted_ns);
        self.push(sqe);
        self.push(Sqe {
            user_data: Token::special(CLOSES + to_u32(index)).user_data(),
            ..Sqe::new(opcode::CLOSE, raw)
        });
    }

    /// Whether the next two go to the kernel together: a link does not outlast an enter.
    fn has_space_for_two(&self) -> bool {
        let has_space = || self.with_ring(|ring| ring.sq_space() >= 2);
        if self.waiting.borrow().is_empty() && has_space() {
            return true;
        }
        self.submit();
        self.push_waiting() && has_space()
    }

    /// Whether a close can be linked to a send, which is all sent then. The submission poller might take the one
    /// before the other is there.
    pub(super) fn closes_behind_sends(&self) -> bool {
        self.sends_whole && !self.with_ring(|ring| ring.is_sq_polled())
    }

    #[inline]
    pub(super) fn poll<T: SocketOp>(
        &self,
        token: Token,
        context: &Context<'_>,
    ) -> Option<(T, i32)> {
        let polled = self.table.borrow_mut().poll(token, context);
        // The waker it had is dropped with nothing borrowed.
        polled.ok()
    }

    pub(super) fn abandon(&self, token: Token, cancels: bool) {
        let (completed, waker) = self.table.borrow_mut().abandon(token);
        let in_flight = completed.is_none();
        drop(waker);
        dispose(completed);
        if in_flight && cancels {
            self.cancel(token);
        }
    }

    pub(super) fn arm(
        &self,
        operation: OperationNumber,
        sqe: Sqe,
        handler: Rc<dyn CompletionHandler>,
    ) -> Token {
        let token = self.table.borrow_mut().arm(operation, handler);
        self.push(Sqe {
            user_data: token.user_data(),
            ..sqe
        });
        token
    }

    pub(super) fn cancel(&self, token: Token) {
        // A child of a fork may drop what its parent has in flight.
        if !self.notifier.is_elsewhere() && self.table.borrow_mut().stop(token) {
            self.notifier.counters.cancels().add(1);
            self.push(Sqe::cancel(token.user_data(), IGNORED.user_data()));
        }
    }

    /// The last user of a socket has gone: nothing of it is in flight (trap 38).
    pub(super) fn close(&self, raw: i32) {
        self.push(Sqe {
            user_data: IGNORED.user_data(),
            ..Sqe::new(opcode::CLOSE, raw)
        });
    }

    #[inline]
    fn push(&self, sqe: Sqe) {
        if !self.waiting.borrow().is_empty() || !self.port.push(sqe) {
            self.push_later(sqe);
        }
    }

    #[cold]
    fn push_later(&self, sqe: Sqe) {
        self.waiting.borrow_mut().push_back(sqe);
        self.submit();
        self.push_waiting();
    }

    /// False: the queue is full.
    fn push_waiting(&self) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        while let Some(&sqe) = waiting.front() {
            if !self.port.push(sqe) {
                return false;
            }
            waiting.pop_front();
        }
        true
    }

    // ----- the loop -----

    pub(super) fn drive(&self, core: &Core, next_ns: Option<u64>, busy: impl Fn() -> bool) {
        let worked = self.files.borrow_mut().work();
        let waits = !self.push_waiting();
        self.publish();
        if waits || worked || busy() {
            self.submit();
        } else {
            self.sleep(next_ns, busy);
        }
        self.reap(core);
    }

    /// Submits the pushed entries, and sees what has completed, without waiting.
    fn submit(&self) {
        let mut ring = self.port.ring.borrow_mut();
        if ring.unsubmitted() > 0 || ring.ready() {
            self.table.borrow_mut().note_begun();
            let result = ring.submit();
            drop(ring);
            self.judge(result);
        }
    }

    fn sleep(&self, next_ns: Option<u64>, busy: impl Fn() -> bool) {
        if !self.wake_armed.get() {
            let armed = self.with_ring(|ring| ring.arm_wake(WAKE.user_data()));
            self.wake_armed.set(armed);
            if !armed {
                return self.submit();
            }
        }
        self.notifier.about_to_sleep();
        if !self.files.borrow().prepare_sleep() || busy() {
            self.wake_up();
            return self.submit();
        }
        let files_ns = self.files.borrow().next_ns();
        let next_ns = next_ns.into_iter().chain(files_ns).min();
        self.table.borrow_mut().note_begun();
        let result = self.with_ring(|ring| {
            let timeout_ns = next_ns.map(|at| at.saturating_sub(ring.now_ns()));
            ring.wait(timeout_ns)
        });
        self.wake_up();
        self.judge(result);
    }

    fn wake_up(&self) {
        self.files.borrow().wake_up();
        self.notifier.awake();
    }

    /// What an enter's answer means. It never touches an operation (traps 1, 5, 6).
    fn judge(&self, result: io::Result<()>) {
        let Err(error) = result else { return };
        match error.raw_os_error() {
            // A signal, the time is up; short of memory, or completions are to be reaped first.
            Some(EINTR | ETIME | EAGAIN | EBUSY | ENOMEM) => {}
            // EBADR: a completion was dropped, and it can't be known whose. EBADFD, ENXIO: it is gone.
            errno => self.failed.set(errno.unwrap_or(EBADR)),
        }
    }

    /// The errno by which the ring has shown that it is of no more use, or 0.
    pub(super) fn failed(&self) -> i32 {
        self.failed.get()
    }

    /// Copies completions out, then acts upon them, until there are no more at hand.
    fn reap(&self, core: &Core) {
        let mut cqes = self.cqes.take();
        self.port.take_for_core(&mut cqes);
        let entered = self.with_ring(|ring| {
            ring.reap(&mut cqes);
            ring.entered()
        });
        let counters = &self.notifier.counters;
        counters.enters().set(entered.enters);
        counters.waits().set(entered.waits);
        counters.entries().set(entered.entries);
        counters.sq_wakeups().set(entered.sq_wakeups);
        counters.cq_overflows().set(entered.overflows);
        counters.sqes().set(self.port.pushed());
        counters.cqes().add(cqes.len() as u64);
        self.reaped_ns.set(0);
        for cqe in cqes.drain(..) {
            self.react(core, cqe);
        }
        self.cqes.replace(cqes);
        self.publish();
    }

    #[inline]
    fn react(&self, core: &Core, cqe: Cqe) {
        let Some(token) = Token::of(cqe.user_data) else {
            return self.port.pass_on(cqe);
        };
        if let Some(number) = token.special_number() {
            return self.react_to_special(number, cqe.res);
        }
        let note = |completion| self.count(completion);
        let mut table = self.table.borrow_mut();
        let act = table.react(token, &cqe, core.ending.get(), note);
        drop(table);
        self.act(core, token, cqe, act);
    }

    fn react_to_special(&self, number: u32, res: i32) {
        if number >= CLOSES {
            let socket = self
                .closes
                .borrow_mut()
                .try_remove((number - CLOSES) as usize);
            return (socket.into_iter()).for_each(|socket| socket.close_ended(res != -ECANCELED));
        }
        if Token::special(number) == WAKE {
            self.wake_armed.set(false);
            self.files.borrow_mut().follow_arenas();
        }
    }

    #[inline]
    fn act(&self, core: &Core, token: Token, cqe: Cqe, act: Act) {
        match act {
            Act::Nothing => {}
            Act::Wake(waker) => contain(|| waker.wake()),
            Act::Again => {
                self.notifier.counters.resubmitted().add(1);
                self.notifier.counters.short().add(u64::from(cqe.res > 0));
                self.ask_again(core, token, cqe);
            }
            Act::Dispose(res) => {
                let completed = self.table.borrow_mut().give_up(token, res);
                dispose(completed);
            }
            Act::Handle(handler) => contain(|| handler.on_completion(core, cqe)),
        }
    }

    /// Asks for the rest of a transfer; a buffer that panics when it is asked where it is fails its operation.
    #[cold]
    fn ask_again(&self, core: &Core, token: Token, cqe: Cqe) {
        let sqe = self.table.borrow_mut().sqe(token);
        if let Some(sqe) = sqe {
            return self.push(sqe);
        }
        let act = self.table.borrow_mut().fail(token, PANICKED);
        self.act(core, token, cqe, act);
    }

    /// Makes known what the table has counted.
    fn publish(&self) {
        let (submitted, flying) = self.table.borrow().tally();
        self.notifier.counters.submitted().set(submitted);
        self.notifier.counters.flying().set(flying);
    }

    #[inline]
    fn count(&self, completion: CompletionInfo) {
        let counters = &self.notifier.counters;
        let CompletionInfo {
            operation, times, ..
        } = completion;
        if completion.res < 0 {
            return self.count_error(completion);
        }
        counters.complete(operation);
        if let Some((submitted, begun)) = times {
            self.time(operation, submitted, begun);
        }
    }

    #[cold]
    fn count_error(&self, completion: CompletionInfo) {
        let counters = &self.notifier.counters;
        let CompletionInfo { operation, res, .. } = completion;
        match -res {
            ECANCELED if completion.stopped && completion.is_multishot => {
                return counters.cancelled().add(1);
            }
            ENOBUFS if completion.is_multishot => return counters.no_buffers().add(1),
            // It is asked again; singly, where the kernel has no multishot form (EINVAL).
            EAGAIN | EINTR | EINVAL if completion.is_multishot => return,
            ECANCELED if completion.stopped => counters.cancelled().add(1),
            errno => counters.fail(operation, errno),
        }
        counters.complete(operation);
        if let Some((submitted, begun)) = completion.times {
            self.time(operation, submitted, begun);
        }
    }

    #[cold]
    fn time(&self, operation: OperationNumber, submitted: u64, begun: u64) {
        if self.reaped_ns.get() == 0 {
            self.reaped_ns.set(call::now_ns());
        }
        let times = Times {
            submitted,
            begun: begun.max(submitted),
            completed: self.reaped_ns.get(),
        };
        self.notifier.counters.time(operation, times);
    }

    // ----- the end -----

    /// Cancels what is in flight and sees it out. Returns what is left at `until_ns`, and leaks it.
    pub(super) fn drain(&self, core: &Core, until_ns: u64) -> u32 {
        self.files.borrow_mut().begin_end(until_ns);
        let tokens = self.table.borrow().tokens();
        tokens.into_iter().for_each(|token| self.cancel(token));
        // Completes the read of the eventfd.
        self.notifier.eventfd().wake();
        let in_flight = || self.table.borrow().in_flight() + u32::from(self.wake_armed.get());
        while self.failed.get() == 0
            && (in_flight() > 0
                || !self.closes.borrow().is_empty()
                || !self.waiting.borrow().is_empty()
                || self.with_ring(|ring| ring.unsubmitted()) > 0)
            && core.now_ns() < until_ns
        {
            self.push_waiting();
            self.table.borrow_mut().abort_unconfirmed();
            let result = self.with_ring(|ring| ring.wait(Some(DRAIN_POLL_NS)));
            self.judge(result);
            self.reap(core);
            // Its own are seen out meanwhile.
            self.files.borrow_mut().work();
        }
        self.publish();
        for (_, socket) in self.closes.take() {
            // The ring has failed: nobody says whether the number is still its own, so that it is closed by nobody.
            socket.close_ended(true);
        }
        let left = in_flight();
        let leaked = self.table.borrow().in_flight();
        self.notifier.counters.leaked().add(u64::from(leaked));
        let files_left = self.files.borrow_mut().end();
        if left + files_left > 0 {
            self.keep();
        }
        left + files_left
    }
}

impl Rings {
    pub(super) fn is_sending(&self) -> bool {
        self.table.borrow().is_sending()
    }

    /// Memory that the kernel may still touch is leaked.
    fn keep(&self) {
        let mut table = self.table.take();
        table.leave_behind();
        leak(table);
        leak(Rc::clone(&self.port));
    }
}

/// A core whose thread was unwound has not been drained.
impl Drop for Rings {
    fn drop(&mut self) {
        if self.notifier.is_elsewhere() {
            self.files.get_mut().forsake();
            leak(self.table.take());
            return;
        }
        self.files.get_mut().end();
        if self.wake_armed.get() || self.table.get_mut().in_flight() > 0 {
            self.keep();
        }
    }
}

/// The op's buffer is foreign code.
fn dispose(completed: Option<Abandoned>) {
    if completed.is_some() {
        contain(|| drop(completed));
    }
}
