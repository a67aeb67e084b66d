//! # Safety
//!
//! The lists that threads share, each alone under the model checker, as in `loom_models.rs`: the stack of submissions,
//! the sleep flag beside it, the mailbox of a core, and the table of slots. The models uphold the invariants Lent, Once
//! and Held.
#![allow(unsafe_code)]

use std::sync::Arc;

use loom::sync::Notify;
use loom::thread;

use crate::driver::mailbox::Mailbox;
use crate::driver::sleeper::Sleeper;
use crate::driver::stack::{Linked, Pushed, Stack};
use crate::driver::table::SlotTable;
use crate::sync::{AtomicPtr, ExclusiveCell};

/// An element of a stack, and what its pusher wrote before the push.
struct Element {
    link: AtomicPtr<Element>,
    written: ExclusiveCell<u32>,
}

// SAFETY: Held: `written` is the pusher's, then the drainer's.
unsafe impl Send for Element {}
// SAFETY: Held: `written` is the pusher's, then the drainer's.
unsafe impl Sync for Element {}

// SAFETY: Lent: one fixed field, on one stack.
unsafe impl Linked for Element {
    fn link(&self) -> &AtomicPtr<Element> {
        &self.link
    }
}

impl Element {
    fn new() -> Arc<Element> {
        Arc::new(Element {
            link: AtomicPtr::new(std::ptr::null_mut()),
            written: ExclusiveCell::new(0),
        })
    }

    fn write(&self, value: u32) {
        // SAFETY: Held: the model checker verifies it.
        self.written.with_mut(|written| unsafe { *written = value });
    }

    fn read(&self) -> u32 {
        // SAFETY: Held: the model checker verifies it.
        self.written.with(|written| unsafe { *written })
    }
}

/// Finds: a push that does not release earlier writes, or a drain that does not acquire them; a closed stack detected
/// without an acquire; an element lost or drained twice.
#[test]
fn a_stack_passes_each_element_on_once() {
    loom::model(|| {
        let stack = Arc::new(Stack::<Element>::new());
        let closer = Arc::new((Element::new(), [Element::new(), Element::new()]));
        let pushers: Vec<_> = (0..2)
            .map(|n| {
                let (stack, shared) = (Arc::clone(&stack), Arc::clone(&closer));
                thread::spawn(move || {
                    let element = &shared.1[n];
                    element.write(1);
                    // SAFETY: Lent: `shared` is alive to the end of the model.
                    let pushed = unsafe { stack.push((&**element).into()) };
                    if pushed == Pushed::Closed {
                        // The closer's earlier writes are visible.
                        assert_eq!(shared.0.read(), 7);
                        element.write(2);
                    }
                    pushed
                })
            })
            .collect();
        // SAFETY: Lent: `shared` is alive to the end of the model; drained elements belong to this thread.
        let read = |element: std::ptr::NonNull<Element>| unsafe { element.as_ref() }.read();
        let mut drained: u32 = stack.drain().map(read).sum();
        closer.0.write(7);
        drained += stack.close().map(read).sum::<u32>();
        let pushed = pushers.into_iter().map(|pusher| pusher.join().unwrap());
        let taken = pushed.filter(|&pushed| pushed != Pushed::Closed).count();
        assert_eq!(drained as usize, taken);
    });
}

/// Finds the mistakes of `a_caller_alone_is_not_forgotten` between two callers of which one wakes for both, and a
/// `must_wake` that returns `true` to neither.
#[test]
fn two_callers_are_not_forgotten() {
    loom::model(|| {
        let handle = Arc::new((Stack::<Element>::new(), Sleeper::new(), Notify::new()));
        let elements = Arc::new([Element::new(), Element::new()]);
        for n in 0..2 {
            let (handle, elements) = (Arc::clone(&handle), Arc::clone(&elements));
            thread::spawn(move || {
                // SAFETY: Lent: `elements` is alive to the end of the model.
                let pushed = unsafe { handle.0.push((&*elements[n]).into()) };
                if pushed == Pushed::First && handle.1.must_wake() {
                    handle.2.notify();
                }
            });
        }
        let mut left = 2;
        while left > 0 {
            left -= handle.0.drain().count();
            handle.1.about_to_sleep();
            if left > 0 && handle.0.is_empty() {
                handle.2.wait();
            }
            handle.1.awake();
        }
    });
}

/// Finds: a core that checks its mailbox before it marks itself as asleep, or whose flag is lowered after the messages
/// are taken; a message left in a mailbox that has been closed.
#[test]
fn a_message_for_a_core_is_not_forgotten() {
    // The core ends after the first message, when the other thread may find it closed, or after both.
    loom::model(|| receives_messages(1));
    loom::model(|| receives_messages(2));
}

fn receives_messages(awaited: u32) {
    let core = Arc::new((Mailbox::<u32>::new(), Sleeper::new(), Notify::new()));
    let senders: Vec<_> = (0..2)
        .map(|_| {
            let core = Arc::clone(&core);
            thread::spawn(move || {
                let put = core.0.put(1).is_ok();
                if put && core.1.must_wake() {
                    core.2.notify();
                }
                u32::from(put)
            })
        })
        .collect();
    let mut taken = 0;
    while taken < awaited {
        taken += core.0.take().into_iter().sum::<u32>();
        core.1.about_to_sleep();
        if taken < awaited && !core.0.is_called() {
            core.2.wait();
        }
        core.1.awake();
    }
    taken += core.0.close().into_iter().flatten().sum::<u32>();
    let put: u32 = senders
        .into_iter()
        .map(|sender| sender.join().unwrap())
        .sum();
    assert_eq!(taken, put);
}

/// Finds: a free list without a tag, whose head was restored in between (ABA), so that a slot is given out twice.
#[test]
fn a_free_slot_is_given_to_one_thread() {
    loom::model(|| {
        let table = Arc::new(SlotTable::new());
        // SAFETY: Once: taken, so it belongs to this thread until it is freed; the model checker verifies it.
        let touch = |slot: &crate::driver::slot::Slot| unsafe { slot.driver().res += 1 };
        let take = move |table: &SlotTable| {
            let slot = table.take().unwrap();
            touch(slot);
            std::ptr::NonNull::from(slot)
        };
        // SAFETY: Once: taken above, and never filled.
        let free = move |table: &SlotTable, slot: std::ptr::NonNull<crate::driver::slot::Slot>| unsafe {
            touch(slot.as_ref());
            table.free(slot.as_ref());
        };
        // Two chunks are created before, so that the lock is not part of the model.
        let slots = [take(&table), take(&table), take(&table)];
        for slot in slots {
            free(&table, slot);
        }
        let other = Arc::clone(&table);
        let thread = thread::spawn(move || {
            let (first, second) = (take(&other), take(&other));
            free(&other, first);
            free(&other, second);
        });
        let (first, second) = (take(&table), take(&table));
        free(&table, first);
        free(&table, second);
        thread.join().unwrap();
    });
}
