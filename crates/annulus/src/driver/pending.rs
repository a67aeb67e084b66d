//! # Safety
//!
//! The queue of submitted operations that have not started: chains of slots, served in turn with one slot each, so that
//! a batch of thousands does not delay a single read. It belongs to one driver. A chain links slots through their
//! driver side, which belongs to this driver (slot.rs, rule 2). Invariant: Lent.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ptr::NonNull;

use super::slot::Slot;

/// The chains in the order of their turns.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    chains: VecDeque<NonNull<Slot>>,
}

impl Pending {
    /// Adds a chain at the end of the queue.
    pub(crate) fn push(&mut self, chain: NonNull<Slot>) {
        self.chains.push_back(chain);
    }

    /// Returns the next slot.
    pub(crate) fn peek(&self) -> Option<NonNull<Slot>> {
        self.chains.front().copied()
    }

    /// Takes the next slot. The rest of its chain is queued again at the end.
    pub(crate) fn pop(&mut self) -> Option<NonNull<Slot>> {
        let slot = self.chains.pop_front()?;
        if let Some(rest) = unchain(slot) {
            self.chains.push_back(rest);
        }
        Some(slot)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.chains.is_empty()
    }

    /// Removes and returns every slot for which `leaves` returns `true`.
    pub(crate) fn remove(&mut self, mut leaves: impl FnMut(&Slot) -> bool) -> Vec<NonNull<Slot>> {
        let mut removed = Vec::new();
        for _ in 0..self.chains.len() {
            let mut next = self.chains.pop_front();
            let (mut first, mut last): (Option<NonNull<Slot>>, Option<NonNull<Slot>>) =
                (None, None);
            while let Some(slot) = next {
                next = unchain(slot);
                // SAFETY: Lent: waiting slots are this driver's.
                if leaves(unsafe { slot.as_ref() }) {
                    removed.push(slot);
                    continue;
                }
                match last {
                    // SAFETY: Lent: waiting slots are this driver's.
                    Some(last) => unsafe { last.as_ref().driver().chain = Some(slot) },
                    None => first = Some(slot),
                }
                last = Some(slot);
            }
            self.chains.extend(first);
        }
        removed
    }
}

/// Cuts a slot off its chain and returns the rest.
fn unchain(slot: NonNull<Slot>) -> Option<NonNull<Slot>> {
    // SAFETY: Lent: waiting slots are this driver's.
    unsafe { slot.as_ref().driver().chain.take() }
}
