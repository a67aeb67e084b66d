//! # Safety
//!
//! The table against a model of it. The SQEs of the operations are never pushed, so nothing is lent; the test takes the
//! kernel's role. Sequences of CQEs are random with fixed seeds.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use super::core_driver::{Backend, CoreConfig, GroupChoice};
use super::readiness::Readiness;
use super::table::{CompletionHandler, Reaction, SocketTable};
use super::{Core, Notifier, SocketOperation, Token};
use crate::buf::{Group, GroupLayout, ReceiveMode};
use crate::driver::limits::Limits;
use crate::driver::uring::Tuning;
use crate::driver::{DriverHandle, DriverThread, Opcodes, Operation, Submitter, Thread, blocking};
use crate::fd::{CloseSocket, Socket};
use crate::metrics::OperationNumber;
use crate::op::{Interest, Nop, Op, OpInfo, Resume, Returns, Sleep, SocketOp};
use crate::sys::engine_error::EngineError;
use crate::sys::errno::{EAGAIN, ECANCELED, ENOMEM};
use crate::sys::polling::RingPoll;
use crate::sys::ring::{RingConfig, SetupMode};
use crate::sys::sqe::{Cqe, Sqe, opcode};

/// `IORING_CQE_F_MORE` and `IORING_CQE_F_NOTIF`.
const MORE: u32 = 1 << 1;
const NOTICE: u32 = 1 << 3;

/// The outcomes of the operations of one run.
#[derive(Default)]
struct Tally {
    dropped: Cell<u32>,
    abandoned: Cell<u32>,
    noticed: Cell<u32>,
}

/// An operation that knows its number; `PAD` words make it too large to be stored in its entry.
struct Probe<const PAD: usize> {
    number: u64,
    _pad: [u64; PAD],
    socket: Rc<Socket>,
    tally: Rc<Tally>,
}

impl<const PAD: usize> Drop for Probe<PAD> {
    fn drop(&mut self) {
        self.tally.dropped.set(self.tally.dropped.get() + 1);
    }
}

// SAFETY: Lent: points to nothing, and its SQE is never pushed.
unsafe impl<const PAD: usize> Op for Probe<PAD> {
    const INFO: OpInfo = OpInfo::of_test(opcode::NOP);

    fn sqe(&mut self) -> Sqe {
        Sqe {
            off: self.number,
            ..Sqe::new(opcode::NOP, -1)
        }
    }

    fn resume(&mut self, res: i32) -> Resume {
        if res == -EAGAIN {
            Resume::Again
        } else {
            Resume::Done(res)
        }
    }

    fn complete(self, res: i32) -> (u64, i32) {
        (self.number, res)
    }
}

impl<const PAD: usize> Returns for Probe<PAD> {
    /// The number of the operation, and the result.
    type Output = (u64, i32);
}

impl<const PAD: usize> SocketOp for Probe<PAD> {
    fn socket(&self) -> &Rc<Socket> {
        &self.socket
    }

    fn attempt(&mut self) -> i32 {
        -EAGAIN
    }

    fn on_zero_copy_notice(&mut self, _: i32) {
        self.tally.noticed.set(self.tally.noticed.get() + 1);
    }

    fn on_drop(self, _: i32) {
        self.tally.abandoned.set(self.tally.abandoned.get() + 1);
    }
}

struct Ignores;

impl CloseSocket for Ignores {
    fn close(&self, raw: i32, _: Option<u32>) {
        crate::fd::close_now(raw);
    }
}

#[derive(Default)]
struct Woken(AtomicU32);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Hears;

impl CompletionHandler for Hears {
    fn on_completion(self: Rc<Self>, _: &Core, _: Cqe) {}
}

/// An operation of the model.
struct Flying {
    token: Token,
    kind: Kind,
    /// True if its future exists; `false` for detached operations.
    watched: bool,
    stopped: bool,
    /// The result of a zero-copy send whose notification is outstanding.
    first_result: Option<i32>,
    /// The final result.
    result: Option<i32>,
    woken: Arc<Woken>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Small(u64),
    Large(u64),
    Multishot,
}

struct Model {
    table: SocketTable,
    flying: Vec<Flying>,
    /// Tokens of completed operations.
    gone: VecDeque<Token>,
    socket: Rc<Socket>,
    tally: Rc<Tally>,
    hears: Rc<Hears>,
    submitted: u32,
    taken: u32,
    disposed: u32,
    notices: u32,
    random: fastrand::Rng,
}

impl Model {
    fn new(seed: u64) -> Model {
        let (fd, _) = std::io::pipe().unwrap();
        Model {
            table: SocketTable::default(),
            flying: Vec::new(),
            gone: VecDeque::new(),
            socket: Socket::new(OwnedFd::from(fd), Rc::new(Ignores)),
            tally: Rc::default(),
            hears: Rc::new(Hears),
            submitted: 0,
            taken: 0,
            disposed: 0,
            notices: 0,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    fn begin<const PAD: usize>(&mut self, number: u64, waker: Option<Waker>) -> Token {
        let mut op = Probe::<PAD> {
            number,
            _pad: [number; PAD],
            socket: Rc::clone(&self.socket),
            tally: Rc::clone(&self.tally),
        };
        let sqe = op.sqe();
        let (token, sqe) = self.table.start(op, sqe, waker, 0);
        assert_eq!((sqe.user_data, sqe.off), (token.user_data(), number));
        token
    }

    fn start(&mut self) {
        let woken = Arc::<Woken>::default();
        let watched = self.random.u8(0..4) > 0;
        let waker = watched.then(|| Waker::from(Arc::clone(&woken)));
        let number = self.random.u64(..);
        let (kind, token) = match self.random.u8(0..3) {
            0 => (
                Kind::Multishot,
                self.table.arm(
                    OperationNumber::RECV,
                    Rc::clone(&self.hears) as Rc<dyn CompletionHandler>,
                ),
            ),
            1 => (Kind::Small(number), self.begin::<1>(number, waker)),
            _ => (Kind::Large(number), self.begin::<16>(number, waker)),
        };
        self.submitted += u32::from(kind != Kind::Multishot);
        assert_eq!(Token::of(token.user_data()), Some(token));
        assert!(self.flying.iter().all(|flying| flying.token != token));
        assert!(
            !self.gone.contains(&token),
            "a token names one operation and none after it"
        );
        self.flying.push(Flying {
            token,
            watched: watched && kind != Kind::Multishot,
            kind,
            stopped: false,
            first_result: None,
            result: None,
            woken,
        });
    }

    fn over(&mut self, nth: usize) {
        let over = self.flying.swap_remove(nth);
        self.gone.push_back(over.token);
        if self.gone.len() > 64 {
            self.gone.pop_front();
        }
    }

    /// Posts a CQE of the `nth` operation.
    fn complete(&mut self, nth: usize, ending: bool) {
        let flying = &mut self.flying[nth];
        if flying.result.is_some() {
            return;
        }
        let token = flying.token;
        let res = [5, 0, -EAGAIN, -ECANCELED][self.random.usize(0..4)];
        let cqe = |res, flags| Cqe {
            user_data: token.user_data(),
            res,
            flags,
        };
        let more = self.random.bool();
        if flying.kind == Kind::Multishot {
            let flags = if more { MORE } else { 0 };
            let act = self.table.react(token, &cqe(res, flags), ending, |_| {});
            assert!(matches!(act, Reaction::Handle(_)));
            if !more {
                self.over(nth);
            }
            return;
        }
        if flying.first_result.is_none() && more {
            flying.first_result = Some(res);
            let act = self.table.react(token, &cqe(res, MORE), ending, |_| {});
            assert!(
                matches!(act, Reaction::Nothing),
                "the kernel still has its memory"
            );
            assert_eq!(flying.woken.0.load(Ordering::Relaxed), 0);
            return;
        }
        // The notification's own result is not the result of the send.
        let act = match flying.first_result {
            Some(_) => self
                .table
                .react(token, &cqe(1 << 20, NOTICE), ending, |_| {}),
            None => self.table.react(token, &cqe(res, 0), ending, |_| {}),
        };
        self.notices += u32::from(flying.first_result.is_some());
        let res = flying.first_result.take().unwrap_or(res);
        let expected = match res {
            res if res == -EAGAIN && (flying.stopped || ending) => -ECANCELED,
            res => res,
        };
        match act {
            Reaction::Again => {
                assert_eq!(expected, -EAGAIN);
                let sqe = self.table.sqe(token).expect("it is there");
                assert_eq!(sqe.user_data, token.user_data());
            }
            Reaction::Wake(waker) => {
                assert!(flying.watched);
                // The kernel's shortage is not retried forever: after that many refusals it is the result.
                flying.result = Some(expected);
                waker.wake();
            }
            Reaction::Dispose(res) => {
                assert!(!flying.watched);
                assert_eq!(res, expected);
                drop(self.table.give_up(token, res));
                self.disposed += 1;
                self.over(nth);
            }
            Reaction::Nothing | Reaction::Handle(_) => panic!("a result is acted upon"),
        }
    }

    fn poll(&mut self, nth: usize) {
        let flying = &self.flying[nth];
        if !flying.watched {
            return;
        }
        let waker = Waker::from(Arc::clone(&flying.woken));
        let context = Context::from_waker(&waker);
        let (token, result) = (flying.token, flying.result);
        let polled = match flying.kind {
            Kind::Small(number) => (self.table.poll::<Probe<1>>(token, &context))
                .map(|(op, res)| (number, op.complete(res))),
            Kind::Large(number) => (self.table.poll::<Probe<16>>(token, &context))
                .map(|(op, res)| (number, op.complete(res))),
            Kind::Multishot => unreachable!("no test submits it"),
        };
        match (polled, result) {
            (Ok((number, got)), Some(result)) => {
                assert_eq!(got, (number, result));
                assert_eq!(flying.woken.0.load(Ordering::Relaxed), 1, "woken once");
                self.taken += 1;
                self.over(nth);
            }
            (Err(_), None) => {}
            _ => panic!("an operation can be taken exactly when it has completed"),
        }
    }

    /// Drops the future of an operation.
    fn abandon(&mut self, nth: usize) {
        let flying = &mut self.flying[nth];
        if !std::mem::take(&mut flying.watched) {
            return;
        }
        let (completed, waker) = self.table.abandon(flying.token);
        assert_eq!(completed.is_some(), flying.result.is_some());
        assert_eq!(waker.is_some(), flying.result.is_none());
        if completed.is_some() {
            drop(completed);
            self.disposed += 1;
            self.over(nth);
        }
    }

    fn stop(&mut self, nth: usize) {
        let flying = &mut self.flying[nth];
        let in_flight = self.table.stop(flying.token);
        assert_eq!(in_flight, flying.result.is_none());
        flying.stopped = true;
    }

    /// CQEs and calls for a completed operation have no effect.
    fn stale(&mut self) {
        let Some(&token) = self.gone.get(self.random.usize(0..64)) else {
            return;
        };
        let cqe = Cqe {
            user_data: token.user_data(),
            res: 1,
            flags: [0, MORE, NOTICE][self.random.usize(0..3)],
        };
        assert!(matches!(
            self.table.react(token, &cqe, false, |_| {}),
            Reaction::Nothing
        ));
        assert!(!self.table.stop(token));
        assert!(self.table.sqe(token).is_none());
        let (completed, waker) = self.table.abandon(token);
        assert!(completed.is_none() && waker.is_none());
    }

    fn check(&self) {
        let in_flight = self.flying.iter().filter(|flying| flying.result.is_none());
        assert_eq!(self.table.in_flight() as usize, in_flight.count());
        assert_eq!(self.table.tokens().len(), self.flying.len());
        assert_eq!(
            self.tally.dropped.get(),
            self.taken + self.disposed,
            "once each"
        );
        assert_eq!(self.tally.abandoned.get(), self.disposed);
        assert_eq!(self.tally.noticed.get(), self.notices);
    }
}

#[test]
fn each_operation_ends_once_in_any_order_of_completion_drop_and_cancel() {
    for seed in 0..300 {
        let mut model = Model::new(seed);
        for _ in 0..600 {
            let count = model.flying.len();
            match model.random.u8(0..16) {
                0..4 => model.start(),
                4 => model.stale(),
                _ if count == 0 => {}
                5..11 => {
                    let nth = model.random.usize(0..count);
                    model.complete(nth, false);
                }
                11..13 => {
                    let nth = model.random.usize(0..count);
                    model.poll(nth);
                }
                13..15 => {
                    let nth = model.random.usize(0..count);
                    model.abandon(nth);
                }
                _ => {
                    let nth = model.random.usize(0..count);
                    model.stop(nth);
                }
            }
            model.check();
        }
        // At the end all operations are cancelled, completed, and dropped.
        while !model.flying.is_empty() {
            model.complete(0, true);
            if !model.flying.is_empty() {
                model.abandon(0);
            }
            model.check();
        }
        assert_eq!(
            model.tally.dropped.get(),
            model.submitted,
            "nothing is left behind"
        );
        assert_eq!(Rc::strong_count(&model.hears), 1);
        assert_eq!(Rc::strong_count(&model.socket), 1);
    }
}

#[test]
fn a_refusal_that_comes_again_and_again_is_the_answer_in_the_end() {
    let mut model = Model::new(0);
    let woken = Arc::<Woken>::default();
    let token = model.begin::<1>(1, Some(Waker::from(Arc::clone(&woken))));
    let cqe = Cqe {
        user_data: token.user_data(),
        res: -EAGAIN,
        flags: 0,
    };
    let mut again = 0;
    while let Reaction::Again = model.table.react(token, &cqe, false, |_| {}) {
        again += 1;
        assert!(again < 1000, "it would be retried forever");
    }
    let waker = Waker::from(woken);
    let polled = model
        .table
        .poll::<Probe<1>>(token, &Context::from_waker(&waker));
    assert_eq!(polled.ok().map(|(_, res)| res), Some(-EAGAIN));
    assert_eq!(model.table.in_flight(), 0);
}

/// A system call that always fails for lack of memory.
struct Starved(Rc<Socket>, Rc<Cell<u32>>);

// SAFETY: Lent: points to nothing, and its SQE is never pushed.
unsafe impl Op for Starved {
    const INFO: OpInfo = Probe::<0>::INFO;

    fn sqe(&mut self) -> Sqe {
        Sqe::new(opcode::NOP, -1)
    }

    fn complete(self, res: i32) -> i32 {
        res
    }
}

impl Returns for Starved {
    type Output = i32;
}

impl SocketOp for Starved {
    const INTEREST: Interest = Interest::Write;
    const CONTINUES_AFTER_DROP: bool = true;

    fn socket(&self) -> &Rc<Socket> {
        &self.0
    }

    fn attempt(&mut self) -> i32 {
        self.1.set(self.1.get() + 1);
        assert!(self.1.get() < 1000, "it would be retried forever");
        -ENOMEM
    }
}

#[test]
fn a_socket_call_that_lacks_memory_is_made_twice_more_and_then_fails() {
    let notifier = Notifier::new().unwrap();
    let readiness = Readiness::new(Arc::clone(&notifier)).unwrap();
    let group = Group::new(None, GroupLayout::of(ReceiveMode::Whole)).unwrap();
    let backend = Backend::Readiness(readiness);
    let core = Core::new(backend, (group, None), notifier, Duration::ZERO);
    let (_, fd) = std::io::pipe().unwrap();
    let socket = core.socket(OwnedFd::from(fd));
    let calls = Rc::<Cell<u32>>::default();
    let starved = || Starved(Rc::clone(&socket), Rc::clone(&calls));

    let mut operation = SocketOperation::new(Rc::clone(&core), starved());
    core.refill();
    let polled = Pin::new(&mut operation).poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(polled, Poll::Ready(-ENOMEM));
    assert_eq!(calls.replace(0), 3);
    // The same for a detached operation.
    assert!(core.start_detached(starved()).is_ok());
    assert_eq!(calls.get(), 3);
    core.end(0);
}

/// Sockets keep their core, so none has an operation in flight here.
#[test]
fn a_core_that_is_dropped_without_its_end_ends_its_file_operations() {
    for is_asked_to_stop in [false, true] {
        drop_without_end(is_asked_to_stop);
    }
}

fn drop_without_end(is_asked_to_stop: bool) {
    let notifier = Notifier::new().unwrap();
    let handle = Arc::new(DriverHandle::new(Box::new(Arc::clone(&notifier))));
    let limits = Limits {
        in_flight: 64,
        in_flight_bytes: 1 << 20,
    };
    let config = CoreConfig {
        ring: RingConfig {
            sq_entries: 8,
            cq_entries: 128,
            setup_mode: SetupMode::Cooperative,
            workers: [1, 1],
            poll: RingPoll::Nothing,
        },
        #[cfg(feature = "tokio")]
        may_sleep_outside: false,
        group: GroupChoice::default(),
        limits,
        tuning: Tuning {
            chunk: None,
            alone: true,
            batch_delay_ns: 0,
            busy_poll_ns: 0,
            drain_timeout: Duration::from_secs(60),
        },
        close_timeout: Duration::ZERO,
    };
    let core = match Core::with_ring(config, notifier, Arc::clone(&handle)) {
        Ok(core) => core,
        Err(error) => return println!("skip: {error}"),
    };
    let thread = Thread::None;
    let handles = vec![DriverThread {
        handle: Arc::clone(&handle),
        thread,
    }];
    let threads = blocking::Config {
        threads: 1,
        limits,
        drain_timeout: Duration::from_secs(60),
        affinity: None,
    };
    let submitter = Submitter::new(handles, Opcodes::of(|_| true), threads);
    let mut context = Context::from_waker(Waker::noop());

    let hour = Duration::from_secs(3600);
    let mut sleeping = Operation::new(&submitter, Sleep::new(hour)).timeout(hour);
    assert!(Pin::new(&mut sleeping).poll(&mut context).is_pending());
    let mut queued = Operation::new(&submitter, Nop);
    core.drive(|| true);
    assert!(Pin::new(&mut queued).poll(&mut context).is_pending());
    assert_eq!(Rc::strong_count(&core), 1);
    // Nothing receives here, so its memory need not be kept.
    let (Backend::Rings(rings), Some(group)) = (&core.backend, core.group.take()) else {
        unreachable!("made with a ring")
    };
    rings.with_ring(|ring| group.end(Some(ring)));
    if is_asked_to_stop {
        handle.request_stop();
    }
    drop(core);
    let ended = |result: std::io::Result<()>| EngineError::of(&result.unwrap_err());
    let polled = Pin::new(&mut sleeping).poll(&mut context).map(ended);
    assert_eq!(polled, Poll::Ready(Some(EngineError::Ended)));
    // It may have been submitted in the meantime.
    assert!(Pin::new(&mut queued).poll(&mut context).is_ready());
}
