//! A core with a ring. Its driver has the ring, and the slots of file operations; the operations of sockets are in a
//! table here. SQEs are pushed as tasks submit them, one enter per poll submits all, and completions are copied out
//! before they are handled. Wakers, buffers and handlers run with nothing borrowed.

#[cfg(feature = "tokio")]
mod outside;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

use slab::Slab;

use super::core_driver::Core;
use super::notifier::Notifier;
use super::table::{Abandoned, CompletionHandler, CompletionInfo, Reaction, SocketTable};
use super::token::Token;
use crate::driver::contain::contain;
use crate::driver::finish::Done;
use crate::driver::handle::DriverHandle;
use crate::driver::leak::leak;
use crate::driver::limits::Limits;
use crate::driver::payload::PANICKED;
use crate::driver::uring::{DRAIN_POLL_NS, Driver, Tuning};
use crate::fd::Socket;
use crate::metrics::{self, OperationNumber, Times};
use crate::narrow::to_u32;
use crate::op::SocketOp;
use crate::sys::call;
use crate::sys::engine_error::EngineError;
use crate::sys::errno::{EAGAIN, ECANCELED, EINTR, EINVAL, ENOBUFS};
use crate::sys::kernel::Kernel;
use crate::sys::ring::Ring;
use crate::sys::sqe::{Cqe, LINKED, Sqe, opcode};

/// The token of CQEs without meaning: those of closes and cancels.
const IGNORED: Token = Token::special(0);
/// The token of the poll of another runtime's reactor.
const REACTOR: Token = Token::special(1);
/// The first of the tokens for closes that are linked to sends; each is followed by the index.
const CLOSES: u32 = 2;

pub(super) struct Rings {
    driver: Rc<RefCell<Driver<Ring>>>,
    /// The driver's handle, for file operations.
    handle: Arc<DriverHandle>,
    table: RefCell<SocketTable>,
    /// Empty lists to handle completions and deliver results from, so that a round allocates nothing.
    cqes: RefCell<Vec<Cqe>>,
    done: RefCell<Done>,
    /// Sockets whose last send has a close linked to it.
    closes: RefCell<Slab<Rc<Socket>>>,
    /// The reactor that is polled has had an event.
    reactor_ready: Cell<bool>,
    /// The number of enters since the last completion that were to run task work.
    fruitless_enters: Cell<u32>,
    /// Called at the next push, while the core sleeps in another runtime.
    #[cfg(feature = "tokio")]
    on_push: Cell<Option<fn()>>,
    notifier: Arc<Notifier>,
    /// True if the kernel continues a send until all of it is sent or it fails (MSG_WAITALL). Since Linux 5.19,
    /// detected by an operation of 6.0.
    sends_whole: bool,
    /// The time when the current completions were reaped, ns; 0 if no operation needed it.
    reaped_ns: Cell<u64>,
    /// True if the driver has run to its end.
    has_ended: Cell<bool>,
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
        let mut driver = Driver::new(Arc::clone(&handle), ring, limits, tuning);
        // Entries that do not fill a chunk are submitted with the core's next enter.
        driver.keep_rest(true);
        Rings {
            driver: Rc::new(RefCell::new(driver)),
            handle,
            table: RefCell::default(),
            cqes: RefCell::default(),
            done: RefCell::default(),
            closes: RefCell::default(),
            reactor_ready: Cell::new(false),
            fruitless_enters: Cell::new(0),
            #[cfg(feature = "tokio")]
            on_push: Cell::new(None),
            notifier,
            sends_whole,
            reaped_ns: Cell::new(0),
            has_ended: Cell::new(false),
        }
    }

    pub(super) fn with_ring<T>(&self, act: impl FnOnce(&mut Ring) -> T) -> T {
        act(self.driver.borrow_mut().kernel())
    }

    // ----- interface for futures -----

    #[inline]
    pub(super) fn start<T: SocketOp>(&self, mut op: T, waker: Option<Waker>) -> Token {
        // The buffer is foreign code and runs with nothing borrowed.
        let sqe = op.sqe();
        let submitted_ns = metrics::sample();
        let (token, sqe) = self.table.borrow_mut().start(op, sqe, waker, submitted_ns);
        self.push(sqe);
        token
    }

    /// Starts the last send of a socket that has no other user, and closes the socket in the same enter. The close is
    /// linked to the send: the kernel runs it when all is sent, and cancels it when the send fails (trap 65).
    #[inline]
    pub(super) fn start_last<T: SocketOp>(&self, mut op: T) {
        if !self.has_space_for_two() {
            // The socket is closed by its drop when the send has completed.
            self.start(op, None);
            return;
        }
        // As in `start`. After a panic the socket is closed by its drop.
        let mut sqe = op.sqe();
        let socket = Rc::clone(op.socket());
        let raw = socket.raw();
        socket.close_begins();
        let index = self.closes.borrow_mut().insert(socket);
        sqe.flags |= LINKED;
        let submitted_ns = metrics::sample();
        let (_, sqe) = self.table.borrow_mut().start(op, sqe, None, submitted_ns);
        self.push(sqe);
        self.push(Sqe {
            user_data: Token::special(CLOSES + to_u32(index)).user_data(),
            ..Sqe::new(opcode::CLOSE, raw)
        });
    }

    /// Returns whether the next two SQEs go to the kernel together. A link does not extend beyond one enter.
    fn has_space_for_two(&self) -> bool {
        let mut driver = self.driver.borrow_mut();
        if !driver.has_space(2) {
            driver.make_space();
        }
        driver.has_space(2)
    }

    /// Returns whether a close can be linked to a send. That requires that the kernel sends everything (`sends_whole`),
    /// and no submission poller, which might take the send before the close is pushed.
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
        // The previous waker is dropped with nothing borrowed.
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
        // A child of a fork may drop operations that its parent has in flight.
        if !self.notifier.is_elsewhere() && self.table.borrow_mut().stop(token) {
            self.notifier.counters.cancels().add(1);
            self.push(Sqe::cancel(token.user_data(), IGNORED.user_data()));
        }
    }

    /// Handles the drop of a socket's last user: no operation of it is in flight (trap 38).
    pub(super) fn close(&self, raw: i32) {
        self.push(Sqe {
            user_data: IGNORED.user_data(),
            ..Sqe::new(opcode::CLOSE, raw)
        });
    }

    #[inline]
    fn push(&self, sqe: Sqe) {
        self.driver.borrow_mut().push_local(sqe);
        #[cfg(feature = "tokio")]
        if let Some(tell) = self.on_push.take() {
            tell();
        }
    }

    pub(super) fn is_sending(&self) -> bool {
        self.table.borrow().is_sending()
    }

    // ----- the loop -----

    #[inline]
    pub(super) fn drive(&self, core: &Core, next_ns: Option<u64>, busy: impl Fn() -> bool) {
        let has_work = self.driver.borrow_mut().begin_round();
        self.publish();
        if has_work || busy() {
            self.submit();
        } else {
            self.sleep(core, next_ns, busy);
        }
        self.reap(core);
    }

    /// Submits the pushed entries and fetches completions, without waiting.
    fn submit(&self) {
        self.table.borrow_mut().note_begun();
        self.driver.borrow_mut().enter();
    }

    fn sleep(&self, core: &Core, next_ns: Option<u64>, busy: impl Fn() -> bool) {
        let is_armed = self.driver.borrow_mut().arm_wake();
        if !is_armed || !core.may_sleep(busy) {
            return self.submit();
        }
        self.table.borrow_mut().note_begun();
        self.driver.borrow_mut().wait(next_ns);
        core.stay_awake();
    }

    /// Returns whether other threads have queued something, and makes each later file operation and cancel end the
    /// sleep.
    #[inline]
    pub(super) fn is_called(&self) -> bool {
        !self.handle.may_sleep() || self.driver.borrow().is_changed()
    }

    /// Returns the time of the next deadline of a file operation, ns.
    #[cfg(feature = "tokio")]
    pub(super) fn files_ns(&self) -> Option<u64> {
        self.driver.borrow().next_deadline_ns()
    }

    /// Takes back what `is_called` has armed.
    #[inline]
    pub(super) fn stay_awake(&self) {
        self.handle.sleeper.awake();
    }

    /// Returns the errno with which the ring has failed, or 0.
    #[inline]
    pub(super) fn failed(&self) -> i32 {
        let code = self.handle.failed.load(Ordering::Acquire);
        EngineError::of_code(code).map_or(0, EngineError::errno)
    }

    /// Copies completions out and handles them.
    fn reap(&self, core: &Core) {
        let mut cqes = self.cqes.take();
        let mut driver = self.driver.borrow_mut();
        driver.fetch(&mut cqes);
        driver.publish_to(&self.notifier.counters);
        drop(driver);
        self.notifier.counters.cqes().add(cqes.len() as u64);
        self.reaped_ns.set(0);
        if !cqes.is_empty() {
            self.fruitless_enters.set(0);
        }
        let mut others = false;
        for cqe in cqes.drain(..) {
            match Token::of(cqe.user_data) {
                Some(token) => self.react(core, token, cqe),
                None => {
                    others = true;
                    self.driver.borrow_mut().handle(cqe);
                }
            }
        }
        self.cqes.replace(cqes);
        if others {
            self.driver.borrow_mut().end_round();
        }
        if self.driver.borrow().has_done() {
            self.deliver();
        }
        self.publish();
    }

    /// Delivers the results of file operations.
    fn deliver(&self) {
        let mut done = self.done.take();
        self.driver.borrow_mut().swap_done(&mut done);
        done.deliver(&self.handle);
        self.done.replace(done);
    }

    #[inline]
    fn react(&self, core: &Core, token: Token, cqe: Cqe) {
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
        if Token::special(number) == REACTOR {
            self.reactor_ready.set(true);
        }
    }

    #[inline]
    fn act(&self, core: &Core, token: Token, cqe: Cqe, act: Reaction) {
        match act {
            Reaction::Nothing => {}
            Reaction::Wake(waker) => contain(|| waker.wake()),
            Reaction::Again => {
                self.notifier.counters.resubmitted().add(1);
                self.notifier.counters.short().add(u64::from(cqe.res > 0));
                self.ask_again(core, token, cqe);
            }
            Reaction::Dispose(res) => {
                let completed = self.table.borrow_mut().give_up(token, res);
                dispose(completed);
            }
            Reaction::Handle(handler) => contain(|| handler.on_completion(core, cqe)),
        }
    }

    /// Submits the rest of a transfer. If the buffer panics when it is asked for its address, the operation fails.
    #[cold]
    fn ask_again(&self, core: &Core, token: Token, cqe: Cqe) {
        let sqe = self.table.borrow_mut().sqe(token);
        if let Some(sqe) = sqe {
            return self.push(sqe);
        }
        let act = self.table.borrow_mut().fail(token, PANICKED);
        self.act(core, token, cqe, act);
    }

    /// Publishes the counts of the table.
    fn publish(&self) {
        let (submitted, flying) = self.table.borrow().tally();
        self.notifier.counters.submitted().set(submitted);
        self.notifier.counters.flying().set(flying);
    }

    #[inline]
    fn count(&self, completion: CompletionInfo) {
        if completion.res < 0 && !self.count_error(completion) {
            return;
        }
        self.notifier.counters.complete(completion.operation);
        if let Some((submitted, begun)) = completion.times {
            self.time(completion.operation, submitted, begun);
        }
    }

    /// Counts an error. Returns `false` if the operation goes on, or is counted as cancelled only.
    #[cold]
    fn count_error(&self, completion: CompletionInfo) -> bool {
        let counters = &self.notifier.counters;
        match -completion.res {
            ECANCELED if completion.stopped => counters.cancelled().add(1),
            ENOBUFS if completion.is_multishot => counters.no_buffers().add(1),
            // The request is repeated; as a single-shot one if the kernel has no multishot form (EINVAL).
            EAGAIN | EINTR | EINVAL if completion.is_multishot => {}
            errno => {
                counters.fail(completion.operation, errno);
                return true;
            }
        }
        !completion.is_multishot
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

    /// Cancels all operations and waits for them. Returns the number that is left at `until_ns`, and leaks those.
    pub(super) fn drain(&self, core: &Core, until_ns: u64) -> u32 {
        self.driver.borrow_mut().drain_by(until_ns);
        // Also completes the read of the eventfd.
        self.handle.request_stop();
        let tokens = self.table.borrow().tokens();
        tokens.into_iter().for_each(|token| self.cancel(token));
        loop {
            self.driver.borrow_mut().begin_round();
            let is_empty = self.table.borrow().in_flight() == 0 && self.closes.borrow().is_empty();
            let mut driver = self.driver.borrow_mut();
            if is_empty && driver.drained() || self.failed() != 0 || core.now_ns() >= until_ns {
                break;
            }
            self.table.borrow_mut().abort_unconfirmed();
            driver.wait(Some(core.now_ns().saturating_add(DRAIN_POLL_NS)));
            drop(driver);
            self.reap(core);
        }
        for (_, socket) in self.closes.take() {
            // The ring has failed. The kernel may or may not have closed the descriptor, so it is left open.
            socket.close_ended(true);
        }
        let leaked = self.table.borrow().in_flight();
        self.notifier.counters.leaked().add(u64::from(leaked));
        self.end() + leaked
    }

    /// Runs the driver to its end. Leaks memory that the kernel may still use. Returns the number of file operations
    /// that are left; 1 if there are none, but the kernel may still use the driver's own memory.
    fn end(&self) -> u32 {
        self.has_ended.set(true);
        let left = loop {
            // Completions of sockets are stale for it: the core has handled its own, or can't do so any more.
            let ended = self.driver.borrow_mut().drive_without_delivery();
            self.deliver();
            if let Some(left) = ended {
                break left;
            }
        };
        self.handle.counters.leaked().add(u64::from(left));
        let has_lent = self.driver.borrow().has_lent(left);
        if has_lent || self.table.borrow().in_flight() > 0 {
            let mut table = self.table.take();
            table.leave_behind();
            leak(table);
            leak(Rc::clone(&self.driver));
        }
        left.max(u32::from(has_lent))
    }
}

/// A core whose thread panicked has not been drained.
impl Drop for Rings {
    fn drop(&mut self) {
        if self.notifier.is_elsewhere() {
            // The ring and the operations in flight belong to the parent.
            leak(self.table.take());
            leak(Rc::clone(&self.driver));
        } else if !self.has_ended.get() {
            // The engine may have asked for the end already.
            self.handle.request_stop();
            self.end();
        }
    }
}

/// Disposes of an operation. Its buffer is foreign code.
fn dispose(completed: Option<Abandoned>) {
    if completed.is_some() {
        contain(|| drop(completed));
    }
}
