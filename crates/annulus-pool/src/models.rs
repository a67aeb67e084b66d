//! # Safety
//!
//! The protocol under the model checker, as it is and with each mutation, which a model must find. The
//! frame is a cell of the model checker, which finds accesses at the same time (Guarded).
#![allow(unsafe_code)]

use std::panic::catch_unwind;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::entry::{
    Entry, State, announce, is_free, protect, protect_pinned, protected, release_and_look,
};
use crate::mutation::Mutation;
use crate::mutation::selected::BROKEN;
use crate::one_at_a_time::OneAtATime;
use crate::sync::{AtomicBool, AtomicUsize, Ordering};

const FRAME: usize = 4096;
const GONE: State = State::Absent { evicted: Some(1) };

/// A page, its frame, a reader's slot.
struct Shared {
    entry: Entry,
    slot: AtomicUsize,
    bytes: UnsafeCell<u8>,
    pins: AtomicUsize,
    waiting: AtomicUsize,
}

impl Shared {
    fn new(slot: usize, pins: usize) -> Arc<Shared> {
        Arc::new(Shared {
            entry: Entry::new(),
            slot: AtomicUsize::new(slot),
            bytes: UnsafeCell::new(0),
            pins: AtomicUsize::new(pins),
            waiting: AtomicUsize::new(0),
        })
    }

    fn fill(&self, byte: u8) {
        // SAFETY: Guarded: what is being checked.
        self.bytes.with_mut(|bytes| unsafe { *bytes = byte });
    }

    fn read(&self) -> u8 {
        // SAFETY: Guarded: what is being checked.
        self.bytes.with(|bytes| unsafe { *bytes })
    }

    fn end(&self) -> bool {
        release_and_look(&self.slot, &self.waiting)
    }

    /// Evicts the page, and fills its frame again if that is allowed.
    fn evict(&self) {
        if self.entry.change(State::Resident(0), GONE) && crate::barrier::heavy() {
            let pinned = || self.pins.load(Ordering::Acquire) > 0;
            if is_free(pinned, || protected(&self.slot) == FRAME) {
                self.fill(2);
            }
        }
    }
}

fn a_page_is_never_read_while_its_frame_is_filled_again() {
    loom::model(|| {
        let shared = Shared::new(0, 0);
        let reader = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                for _ in 0..2 {
                    if protect(&shared.entry, &shared.slot, |_| FRAME, false).is_some() {
                        assert_eq!(shared.read(), 1);
                        shared.end();
                    }
                }
            }
        });
        shared.fill(1);
        shared.entry.set(State::Resident(0));
        shared.evict();
        reader.join().unwrap();
    });
}

fn a_page_that_is_passed_on_stays() {
    loom::model(|| {
        let shared = Shared::new(0, 1);
        shared.fill(1);
        shared.entry.set(State::Resident(0));
        let waiter = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                protect_pinned(&shared.slot, FRAME);
                // As the lock of the frame.
                shared.pins.store(0, Ordering::Release);
                assert_eq!(shared.read(), 1);
                shared.end();
            }
        });
        shared.evict();
        waiter.join().unwrap();
    });
}

fn a_guard_that_is_dropped_is_noticed_by_one_who_waits_for_a_frame() {
    loom::model(|| {
        let shared = Shared::new(FRAME, 0);
        let guard = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.end()
        });
        announce(&shared.waiting);
        let is_free = protected(&shared.slot) == 0;
        let told = guard.join().unwrap();
        assert!(is_free || told);
    });
}

/// The operation of a load, and a task that waits for it.
struct Operation {
    work: OneAtATime<()>,
    is_done: AtomicBool,
    /// The waker of the task, until it is woken.
    waker: AtomicBool,
    woken: AtomicBool,
}

impl Operation {
    fn poll(&self) -> bool {
        let look = |_: &mut ()| self.is_done.load(Ordering::Acquire).then_some(());
        self.work.work(look, || self.wake()).is_some()
    }

    fn wake(&self) {
        if self.waker.swap(false, Ordering::AcqRel) {
            self.woken.store(true, Ordering::Release);
        }
    }
}

fn a_task_that_could_not_go_on_with_a_load_is_woken() {
    loom::model(|| {
        let operation = Arc::new(Operation {
            work: OneAtATime::new(()),
            is_done: AtomicBool::new(false),
            waker: AtomicBool::new(false),
            woken: AtomicBool::new(false),
        });
        let polled_once = thread::spawn({
            let operation = Arc::clone(&operation);
            move || operation.poll()
        });
        let kernel = thread::spawn({
            let operation = Arc::clone(&operation);
            move || {
                operation.is_done.store(true, Ordering::Release);
                operation.wake();
            }
        });
        // As the lock of the load's state.
        operation.waker.swap(true, Ordering::AcqRel);
        let has_result = operation.poll();
        let other_has = polled_once.join().unwrap();
        kernel.join().unwrap();
        assert!(has_result || other_has || operation.woken.load(Ordering::Acquire));
    });
}

const MODELS: &[(fn(), &[Mutation])] = &[
    (
        a_page_is_never_read_while_its_frame_is_filled_again,
        &[
            Mutation::LightForgotten,
            Mutation::HeavyForgotten,
            Mutation::EntryReadOnce,
            Mutation::SlotUnreleased,
            Mutation::PublishedUnreleased,
        ],
    ),
    (a_page_that_is_passed_on_stays, &[Mutation::SlotsBeforePins]),
    (
        a_guard_that_is_dropped_is_noticed_by_one_who_waits_for_a_frame,
        &[Mutation::WaitersForgotten, Mutation::WaitUnfenced],
    ),
    (
        a_task_that_could_not_go_on_with_a_load_is_woken,
        &[
            Mutation::MissForgotten,
            Mutation::MissWithoutSecondTry,
            Mutation::MissUnseen,
        ],
    ),
];

#[test]
fn loom_the_protocol_holds() {
    MODELS.iter().for_each(|(model, _)| model());
}

#[test]
fn loom_each_mutation_is_found() {
    for (model, mutations) in MODELS {
        for mutation in *mutations {
            BROKEN.set(Some(*mutation));
            let found = catch_unwind(model).is_err();
            BROKEN.set(None);
            assert!(found, "{mutation:?} is not found");
        }
    }
}
