//! # Safety
//!
//! The way of completed slots to the task that submitted them together. Slots in flight point to their group, so it
//! stays alive until the last of them is discarded (`forget_one`). Invariants: Lent, Once.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicI32;

use super::slot::Slot;
use super::stack::Stack;
use crate::sync::{AtomicUsize, AtomicWaker, Ordering};

/// The destination of a batch's completed slots.
pub(crate) struct Group {
    pub(super) done: Stack<Slot>,
    pub(super) waker: AtomicWaker,
    /// The number of slots in flight when the batch was dropped.
    pub(super) left: AtomicUsize,
    /// The errno that ended the kernel of one of the batch's drivers, or 0.
    pub(super) failed: AtomicI32,
    /// A group that is never freed fails the model.
    #[cfg(annulus_loom)]
    _freed: loom::alloc::Track<()>,
}

impl Group {
    pub(super) fn new() -> Group {
        Group {
            done: Stack::new(),
            waker: AtomicWaker::new(),
            left: AtomicUsize::new(0),
            failed: AtomicI32::new(0),
            #[cfg(annulus_loom)]
            _freed: loom::alloc::Track::new(()),
        }
    }

    /// A slot of a dropped batch has been discarded.
    ///
    /// # Safety
    ///
    /// Once per slot that was in flight when its batch was dropped.
    pub(super) unsafe fn forget_one(group: Option<NonNull<Group>>) {
        let Some(group) = group else { return };
        // SAFETY: Lent: alive until the last such slot, and this one is not counted off yet.
        if unsafe { group.as_ref() }
            .left
            .fetch_sub(1, Ordering::AcqRel)
            == 1
        {
            // SAFETY: Once: the batch leaked this reference when it counted the slots.
            drop(unsafe { Arc::from_raw(group.as_ptr()) });
        }
    }
}
