//! # Safety
//!
//! The completion of an operation, common to all backends: the result is stored in the slot, and the slot goes to its
//! future, to its group, or back to the table. Invariants: Once, Lent.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::task::Waker;

use super::contain::contain;
use super::group::Group;
use super::handle::DriverHandle;
use super::slot::{Slot, Stage};
use super::stack::Pushed;
use crate::narrow::to_u32;
use crate::sync::{Mutation, broken};

/// Work that is left when the current completions have been handled: to wake tasks, and to drop abandoned operations.
/// Wakers and buffers are foreign code, which may do anything, even end the engine. A driver runs it only here, with no
/// lock held and in a consistent state.
#[derive(Default)]
pub(crate) struct Done {
    pub(crate) wakers: Vec<Waker>,
    /// Groups that received completions; each is kept alive until it has been woken.
    groups: Vec<Arc<Group>>,
    /// Finished slots that the driver still has to release.
    releases: Vec<(NonNull<Slot>, Release)>,
}

/// The way in which a driver releases a finished slot.
#[derive(Clone, Copy, Debug)]
enum Release {
    /// The operation is abandoned: the payload is dropped, and the slot freed.
    Discard,
    /// The future returned at its timeout: the payload is dropped, then the slot is released.
    Lapsed,
    /// The future has already taken the payload: the slot is freed.
    Free,
}

// SAFETY: Held: the slots in it belong to the holder, on any thread.
unsafe impl Send for Done {}

impl Done {
    /// Does all of the work.
    pub(crate) fn deliver(&mut self, handle: &DriverHandle) {
        for waker in self.wakers.drain(..) {
            contain(|| waker.wake());
        }
        // Mostly there are only wakers, and to drain an empty list takes 30 instructions.
        if self.groups.is_empty() && self.releases.is_empty() {
            return;
        }
        for group in self.groups.drain(..) {
            contain(|| {
                group.waker.wake();
                drop(group);
            });
        }
        for (slot, release) in self.releases.drain(..) {
            // SAFETY: Once, Lent: `finish` or `discard_later` put the slot here for its release.
            contain(|| unsafe { release_slot(handle, slot.as_ref(), release) });
        }
    }

    /// Notes an abandoned operation to be dropped later.
    ///
    /// # Safety
    ///
    /// Once. As for `discard`, until the next `deliver`.
    pub(crate) unsafe fn discard_later(&mut self, slot: &Slot) {
        self.releases.push((NonNull::from(slot), Release::Discard));
    }

    /// Notes that a task has to be woken. (`Vec::extend` takes 80 instructions for an `Option`.)
    pub(crate) fn wake_later(&mut self, waker: Option<Waker>) {
        if let Some(waker) = waker {
            self.wakers.push(waker);
        }
    }

    pub(crate) fn len(&self) -> u32 {
        to_u32(self.wakers.len())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.wakers.is_empty() && self.groups.is_empty() && self.releases.is_empty()
    }

    /// Notes that `group` has to be woken.
    ///
    /// # Safety
    ///
    /// Lent. An operation of the group has not been passed to it yet, so the group is alive.
    pub(super) unsafe fn note(&mut self, group: NonNull<Group>) {
        if self
            .groups
            .last()
            .is_some_and(|last| Arc::as_ptr(last) == group.as_ptr())
        {
            return;
        }
        // SAFETY: Lent: the caller guarantees that the group is alive. The pointer came from `Arc::into_raw` or
        // `as_ptr`.
        let kept = unsafe {
            Arc::increment_strong_count(group.as_ptr());
            Arc::from_raw(group.as_ptr())
        };
        self.groups.push(kept);
    }
}

/// Stores the result and passes the slot on.
///
/// # Safety
///
/// Once. The caller is the driver that holds the slot, the kernel has released its memory (or never had it), and the
/// slot has not been finished before.
// Its only caller may be compiled in another unit, and a call costs 16 instructions per operation.
#[inline]
pub(crate) unsafe fn finish(slot: &Slot, res: i32, done: &mut Done) {
    // SAFETY: Held: by the driver, which calls this.
    let side = unsafe { slot.driver() };
    let expired = side.stage == Stage::Expired;
    side.res = res;
    side.stage = Stage::Finished;
    if let Some(group) = side.group {
        // SAFETY: Lent: this operation has not been passed to its group yet.
        unsafe { done.note(group) };
        slot.lifecycle.complete_in_group();
        // SAFETY: Lent: slots stay valid; the submission link is free again.
        let pushed = unsafe { group.as_ref().done.push(NonNull::from(slot)) };
        if pushed == Pushed::Closed && !slot.lifecycle.is_claimed() {
            // SAFETY: Once: the group is gone, and the slot is off the list of cancel requests.
            unsafe { done.discard_later(slot) };
        }
        return;
    }
    if expired && !broken(Mutation::ExpiryForgotten) {
        // After an expiry the payload belongs to the driver, and the kernel has released it.
        done.releases.push((NonNull::from(slot), Release::Lapsed));
        return;
    }
    let finish = slot.lifecycle.complete();
    done.wake_later(finish.wake);
    if finish.dispose {
        // SAFETY: Once: an abandoned operation that is on no list.
        unsafe { done.discard_later(slot) };
    } else if finish.free {
        done.releases.push((NonNull::from(slot), Release::Free));
    }
}

/// Releases a finished slot.
///
/// # Safety
///
/// Once. The caller holds the slot in the state that `release` describes.
unsafe fn release_slot(handle: &DriverHandle, slot: &Slot, release: Release) {
    match release {
        // SAFETY: Once: no other code refers to it.
        Release::Discard => unsafe { discard(handle, slot) },
        Release::Lapsed => {
            // SAFETY: Once: the payload stayed with the driver, and the kernel has released it.
            unsafe { dispose(slot) };
            if slot.lifecycle.complete().free {
                // SAFETY: Once: the future is gone, and so is the payload.
                unsafe { handle.table.free(slot) };
            }
        }
        // SAFETY: Once: the payload has been taken, and no other code refers to the slot.
        Release::Free => unsafe { handle.table.free(slot) },
    }
}

/// Disposes of an abandoned operation and frees its slot. Foreign code runs.
///
/// # Safety
///
/// Once. The slot is finished, its payload is in it, and no other code refers to it.
pub(crate) unsafe fn discard(handle: &DriverHandle, slot: &Slot) {
    // SAFETY: Once: the caller upholds the contract in `# Safety`.
    let group = unsafe { slot.driver() }.group.take();
    // SAFETY: Once: the caller upholds the contract in `# Safety`.
    unsafe { dispose(slot) };
    // SAFETY: Once: the caller upholds the contract in `# Safety`: its batch counted it.
    contain(|| unsafe { Group::forget_one(group) });
    // SAFETY: Once: the caller upholds the contract in `# Safety`.
    unsafe { handle.table.free(slot) };
}

/// Drops the op, its buffer included.
///
/// # Safety
///
/// As for `Slot::dispose`.
pub(super) unsafe fn dispose(slot: &Slot) {
    // SAFETY: Once: the caller upholds the contract in `# Safety`. After a panic the payload counts
    // as gone, as in any unwinding drop.
    contain(|| unsafe { slot.dispose() });
}
