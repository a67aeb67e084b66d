//! The free buffers of an arena, and the tasks that wait for one. One list per arena, behind the arena's lock.
//!
//! A returned buffer goes directly to the task that has waited longest. So no buffer is free while a task waits, and
//! new tasks cannot overtake. Waiters form a linked list within an array, so a wait allocates only if more tasks wait
//! than ever before.

use crate::narrow::to_u32;
use std::task::Waker;

/// No waiter.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct FreeList {
    /// Returned buffers. The last one is taken first, while it is in the processor's caches.
    free: Vec<u32>,
    /// The first buffer that has never been taken; all further ones up to `count` are unused too.
    fresh: u32,
    count: u32,
    waiters: Vec<Waiter>,
    /// Unused indices of `waiters`.
    vacant: Vec<u32>,
    /// The waiters that have waited longest and shortest. Waiters that have received a buffer are no longer on the
    /// list.
    first: u32,
    last: u32,
}

#[derive(Debug)]
struct Waiter {
    before: u32,
    after: u32,
    state: WaiterState,
}

#[derive(Debug)]
enum WaiterState {
    Waiting(Waker),
    /// The waiter has received this buffer, and has not collected it yet.
    Granted(u32),
    Gone,
}

impl FreeList {
    /// Creates a list of the free buffers 0 to `count`, exclusive; 0 is taken first.
    pub(super) fn new(count: u32) -> FreeList {
        FreeList {
            free: Vec::new(),
            fresh: 0,
            count,
            waiters: Vec::new(),
            vacant: Vec::new(),
            first: NONE,
            last: NONE,
        }
    }

    /// Takes a free buffer. If one is free, no task waits.
    pub(super) fn take(&mut self) -> Option<u32> {
        let used = self.free.pop();
        used.or_else(|| {
            let fresh = self.fresh;
            self.fresh += u32::from(fresh < self.count);
            (fresh < self.count).then_some(fresh)
        })
    }

    pub(super) fn free(&self) -> usize {
        self.free.len() + (self.count - self.fresh) as usize
    }

    /// Returns a buffer. Returns the waker of the task that receives it, which the caller must wake.
    #[must_use]
    pub(super) fn give(&mut self, buffer: u32) -> Option<Waker> {
        let first = self.first;
        self.unlink(first);
        let Some(waiter) = self.waiters.get_mut(first as usize) else {
            self.free.push(buffer);
            return None;
        };
        match std::mem::replace(&mut waiter.state, WaiterState::Granted(buffer)) {
            WaiterState::Waiting(waker) => Some(waker),
            WaiterState::Granted(_) | WaiterState::Gone => None,
        }
    }

    /// Joins the end of the queue, and returns the index of the waiter.
    pub(super) fn join(&mut self, waker: Waker) -> u32 {
        let waiter = Waiter {
            before: self.last,
            after: NONE,
            state: WaiterState::Waiting(waker),
        };
        let index = match self.vacant.pop() {
            Some(index) => {
                if let Some(vacant) = self.waiters.get_mut(index as usize) {
                    *vacant = waiter;
                }
                index
            }
            None => {
                self.waiters.push(waiter);
                to_u32(self.waiters.len() - 1)
            }
        };
        match self.waiters.get_mut(self.last as usize) {
            Some(last) => last.after = index,
            None => self.first = index,
        }
        self.last = index;
        index
    }

    /// Returns the buffer that the waiter has received. The index is free afterwards.
    pub(super) fn collect(&mut self, index: u32) -> Option<u32> {
        let waiter = self.waiters.get_mut(index as usize)?;
        let WaiterState::Granted(buffer) = waiter.state else {
            return None;
        };
        waiter.state = WaiterState::Gone;
        self.vacant.push(index);
        Some(buffer)
    }

    /// Returns whether the waiter would wake `waker`.
    pub(super) fn wakes(&self, index: u32, waker: &Waker) -> bool {
        let waiter = self.waiters.get(index as usize);
        waiter.is_some_and(
            |waiter| matches!(&waiter.state, WaiterState::Waiting(known) if known.will_wake(waker)),
        )
    }

    /// Replaces the waker, and returns the one to drop.
    pub(super) fn rewake(&mut self, index: u32, waker: Waker) -> Option<Waker> {
        match self
            .waiters
            .get_mut(index as usize)
            .map(|one| &mut one.state)
        {
            Some(WaiterState::Waiting(known)) => Some(std::mem::replace(known, waker)),
            _ => Some(waker),
        }
    }

    /// Leaves the queue. Returns the waiter's own waker, to drop, and the waker of the task that receives the waiter's
    /// buffer, to wake. Both must happen outside the lock.
    #[must_use]
    pub(super) fn leave(&mut self, index: u32) -> (Option<Waker>, Option<Waker>) {
        if let Some(buffer) = self.collect(index) {
            return (None, self.give(buffer));
        }
        self.unlink(index);
        let Some(waiter) = self.waiters.get_mut(index as usize) else {
            return (None, None);
        };
        let state = std::mem::replace(&mut waiter.state, WaiterState::Gone);
        self.vacant.push(index);
        match state {
            WaiterState::Waiting(waker) => (Some(waker), None),
            WaiterState::Granted(_) | WaiterState::Gone => (None, None),
        }
    }

    /// Removes a waiter from the queue.
    fn unlink(&mut self, index: u32) {
        let Some(waiter) = self.waiters.get_mut(index as usize) else {
            return;
        };
        let (before, after) = (waiter.before, waiter.after);
        waiter.before = NONE;
        waiter.after = NONE;
        match self.waiters.get_mut(before as usize) {
            Some(one) => one.after = after,
            None => self.first = after,
        }
        match self.waiters.get_mut(after as usize) {
            Some(one) => one.before = before,
            None => self.last = before,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn buffers_go_to_the_longest_waiter_when_others_leave_in_between() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut free_list = FreeList::new(3);
        let (mut out, mut queue, mut lent) = (Vec::new(), VecDeque::new(), Vec::new());
        for _ in 0..20_000 {
            match random.u32(0..5) {
                0 | 1 => match free_list.take() {
                    Some(buffer) => {
                        assert!(queue.is_empty() && !out.contains(&buffer));
                        out.push(buffer);
                    }
                    None => queue.push_back(free_list.join(Waker::noop().clone())),
                },
                2 if !out.is_empty() => {
                    let buffer = out.swap_remove(random.usize(0..out.len()));
                    let woken = free_list.give(buffer).is_some();
                    assert_eq!(woken, !queue.is_empty());
                    lent.extend(queue.pop_front().map(|index| (index, buffer)));
                }
                3 if !lent.is_empty() => {
                    let (index, buffer) = lent.swap_remove(random.usize(0..lent.len()));
                    assert_eq!(free_list.collect(index), Some(buffer));
                    out.push(buffer);
                }
                4 if random.bool() && !queue.is_empty() => {
                    let index = queue.remove(random.usize(0..queue.len())).unwrap();
                    assert_eq!(free_list.collect(index), None);
                    assert!(free_list.leave(index).0.is_some());
                }
                4 if !lent.is_empty() => {
                    let (index, buffer) = lent.swap_remove(0);
                    assert_eq!(free_list.leave(index).1.is_some(), !queue.is_empty());
                    lent.extend(queue.pop_front().map(|index| (index, buffer)));
                }
                _ => {}
            }
            assert_eq!(free_list.free() + out.len() + lent.len(), 3);
            assert!(free_list.waiters.len() <= 64 || queue.len() > 32);
        }
    }
}
