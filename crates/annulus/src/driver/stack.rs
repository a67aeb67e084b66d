//! # Safety
//!
//! A lock-free list that any thread pushes to and one thread empties in one step. Operations are submitted to a driver
//! through it. Checked by loom (`ci/loom`).
//!
//! There is no pop of a single element, so there is no ABA problem. The elements contain their links. A closed stack
//! accepts no elements: that tells callers that an engine has shut down, and drivers that a batch has been dropped.
#![allow(unsafe_code)]

use std::ptr::{self, NonNull};

use crate::sync::{AtomicPtr, Mutation, Ordering, broken};

/// An element with a link. The implementor determines which link belongs to which stack.
///
/// # Safety
///
/// `link` must return the same atomic each time, and no other code may use it while the element is on a stack.
pub(crate) unsafe trait Linked: Sized {
    fn link(&self) -> &AtomicPtr<Self>;
}

/// The stack. The pusher guarantees that elements stay valid while they are on it.
#[derive(Debug)]
pub(crate) struct Stack<T> {
    head: AtomicPtr<T>,
}

/// The state of the stack before a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// Empty: the consumer may have to be woken.
    First,
    /// Not empty: the thread that pushed first wakes the consumer.
    Behind,
    /// Closed: the element still belongs to the pusher.
    Closed,
}

/// The head of a closed stack; no element has this address.
fn closed<T>() -> *mut T {
    ptr::without_provenance_mut(1)
}

impl<T: Linked> Stack<T> {
    pub(crate) fn new() -> Stack<T> {
        Stack {
            head: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Pushes an element.
    ///
    /// # Safety
    ///
    /// Lent. `element` stays valid, and on no other stack of this link, until it has been drained.
    pub(crate) unsafe fn push(&self, element: NonNull<T>) -> Pushed {
        // SAFETY: Lent: valid, by the caller's promise.
        let link = unsafe { element.as_ref() }.link();
        // Acquire, for `Closed`: a thread that finds the stack closed sees the closer's earlier writes.
        let met = if broken(Mutation::ClosedUnacquired) {
            Ordering::Relaxed
        } else {
            Ordering::Acquire
        };
        let pushed = if broken(Mutation::PushUnreleased) {
            Ordering::Acquire
        } else {
            Ordering::AcqRel
        };
        let mut head = self.head.load(met);
        loop {
            if head == closed() {
                return Pushed::Closed;
            }
            link.store(head, Ordering::Relaxed);
            match self
                .head
                .compare_exchange_weak(head, element.as_ptr(), pushed, met)
            {
                Ok(_) if head.is_null() => return Pushed::First,
                Ok(_) => return Pushed::Behind,
                Err(now) => head = now,
            }
        }
    }

    /// Returns whether there is nothing to drain.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        let head = self.head.load(Ordering::Acquire);
        head.is_null() || head == closed()
    }

    /// Takes all elements, in the order in which they were pushed.
    pub(crate) fn drain(&self) -> Drained<T> {
        let head = self.head.load(Ordering::Relaxed);
        if head.is_null() || head == closed() {
            return Drained {
                next: ptr::null_mut(),
            };
        }
        // Only the draining thread closes, so the stack is not closed meanwhile.
        Drained::reversed(self.head.swap(ptr::null_mut(), Ordering::AcqRel))
    }

    /// Takes all elements and closes the stack. Called by the draining thread.
    pub(crate) fn close(&self) -> Drained<T> {
        match self.head.swap(closed(), Ordering::AcqRel) {
            head if head == closed() => Drained {
                next: ptr::null_mut(),
            },
            head => Drained::reversed(head),
        }
    }
}

impl<T> Stack<T> {
    /// Reopens a closed stack. Called by the thread that drains from now on.
    pub(crate) fn reopen(&self) {
        self.head.store(ptr::null_mut(), Ordering::Release);
    }
}

/// The drained elements, oldest first. They belong to the holder.
pub(crate) struct Drained<T> {
    next: *mut T,
}

impl<T: Linked> Drained<T> {
    fn reversed(mut newest: *mut T) -> Drained<T> {
        let mut oldest = ptr::null_mut();
        while let Some(element) = NonNull::new(newest) {
            // SAFETY: Lent: a drained element belongs to the iterator until it has been returned.
            let link = unsafe { element.as_ref() }.link();
            newest = link.load(Ordering::Relaxed);
            link.store(oldest, Ordering::Relaxed);
            oldest = element.as_ptr();
        }
        Drained { next: oldest }
    }
}

impl<T: Linked> Iterator for Drained<T> {
    type Item = NonNull<T>;

    fn next(&mut self) -> Option<NonNull<T>> {
        let element = NonNull::new(self.next)?;
        // SAFETY: Lent: the receiver does not have the node yet, so it is valid. Read before the receiver reuses the
        // link.
        self.next = unsafe { element.as_ref() }.link().load(Ordering::Relaxed);
        Some(element)
    }
}
