//! # Safety
//!
//! Many operations whose results go to one task, as used by `read_many_at`. A `Batch` fills slots, chains them and
//! submits each chain in one step. The driver returns completed slots through the `Group`, in the order of their
//! completion, and wakes the group once per completion batch.
//!
//! The batch holds the group's memory, and slots in flight point to it. A batch that is dropped with slots in flight
//! closes the group and leaves it to them: the last discarded slot frees it (`forget_one`).
//! Invariants: Lent, Once.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::contain::contain;
use super::group::Group;
use super::handle::DriverHandle;
use super::slot::Slot;
use super::submitter::Submitter;
use crate::narrow::to_u32;
use crate::op::FileOp;
use crate::sync::{Mutation, Ordering, broken};
use crate::sys::engine_error::EngineError;
use crate::sys::errno::ECANCELED;

/// Operations added one by one are submitted in chunks of this many, so that the device starts on
/// the first while the rest are prepared.
const SUBMIT_CHUNK: usize = 8;

/// A slot in use, and its driver.
#[derive(Clone, Copy)]
struct InFlight<'a> {
    slot: NonNull<Slot>,
    handle: &'a DriverHandle,
}

/// Operations of type `T`, submitted together. `K` is the caller's key for each.
pub(crate) struct Batch<'a, T: FileOp, K: Copy> {
    submitter: &'a Submitter,
    group: Arc<Group>,
    out: Vec<Option<(InFlight<'a>, K)>>,
    /// Free indices of `out`.
    vacant: Vec<u32>,
    /// The chain being built, and its driver.
    chain: Option<(NonNull<Slot>, NonNull<Slot>)>,
    chained: usize,
    handle: &'a DriverHandle,
    /// Completed slots that were taken from the group but not returned yet.
    done: super::stack::Drained<Slot>,
    /// Results of operations that completed without a driver.
    sync_results: VecDeque<(K, T, i32)>,
}

// SAFETY: Held: the pointers are to slots that this batch owns or has in flight; `T` and `K` move with it.
unsafe impl<T: FileOp, K: Copy + Send> Send for Batch<'_, T, K> {}

impl<'a, T: FileOp, K: Copy> Batch<'a, T, K> {
    pub(crate) fn new(submitter: &'a Submitter) -> Batch<'a, T, K> {
        let group = Group::new();
        let done = group.done.drain();
        Batch {
            submitter,
            group: Arc::new(group),
            out: Vec::new(),
            vacant: Vec::new(),
            chain: None,
            chained: 0,
            handle: submitter.handle(T::INFO.opcode),
            done,
            sync_results: VecDeque::new(),
        }
    }

    /// Returns the number of operations whose results have not been returned yet.
    pub(crate) fn outstanding(&self) -> usize {
        self.out.len() - self.vacant.len() + self.sync_results.len()
    }

    /// Adds an operation to the chain; `flush` submits it.
    pub(crate) fn add(&mut self, mut op: T, key: K) {
        let submitted_ns = self.submitter.sample();
        if let Some(total) = self.submitter.try_sync(&mut op, submitted_ns) {
            self.sync_results.push_back((key, op, total));
            return;
        }
        // Each chain has its own choice of driver: the batch may have moved to another thread.
        let handle = match self.chain {
            None => self.submitter.handle_for(&op),
            Some(_) => self.handle,
        };
        self.chain_up(op, submitted_ns, key, handle);
    }

    /// Adds an operation to the chain for `handle`; a chain has one driver.
    fn chain_up(&mut self, op: T, submitted_ns: u64, key: K, handle: &'a DriverHandle) {
        self.handle = handle;
        let slot = match handle.fill(op, None, 0, submitted_ns) {
            Ok(slot) => slot,
            Err(op) => {
                let refusal = -EngineError::TooMany.code();
                return self.sync_results.push_back((key, op, refusal));
            }
        };
        let out = InFlight {
            slot: NonNull::from(slot),
            handle,
        };
        let index = match self.vacant.pop() {
            Some(index) => index,
            None => {
                self.out.push(None);
                to_u32(self.out.len() - 1)
            }
        };
        // SAFETY: Lent: the slot belongs to this batch until it is submitted.
        let side = unsafe { slot.driver() };
        side.group = NonNull::new(Arc::as_ptr(&self.group).cast_mut());
        side.group_key = index;
        if let Some(entry) = self.out.get_mut(index as usize) {
            *entry = Some((out, key));
        }
        match &mut self.chain {
            Some((_, last)) => {
                // SAFETY: Lent: chained slots belong to this batch until the chain is submitted.
                unsafe { last.as_ref().driver().chain = Some(out.slot) };
                *last = out.slot;
            }
            None => self.chain = Some((out.slot, out.slot)),
        }
        self.chained += 1;
    }

    /// Submits the chain if it is long enough to be worth it.
    pub(crate) fn flush_chunk(&mut self) {
        if self.chained >= self.handle.chunk().unwrap_or(SUBMIT_CHUNK) {
            self.flush();
        }
    }

    /// Submits the chain if the drivers have no other operation of this batch, or if it is long enough to be worth it.
    pub(crate) fn flush_if_idle(&mut self) {
        if self.chained == self.out.len() - self.vacant.len() {
            self.flush();
        } else {
            self.flush_chunk();
        }
    }

    /// Submits the chain.
    pub(crate) fn flush(&mut self) {
        let Some((first, _)) = self.chain.take() else {
            return;
        };
        let operations = to_u32(std::mem::take(&mut self.chained));
        let handle = self.handle;
        // SAFETY: Lent: filled above, and touched through their life cycles only from here on.
        if unsafe { handle.submit(first, operations) } {
            return;
        }
        let before = self.sync_results.len();
        self.take_back(first, handle.refusal());
        // The driver has ended. If it was the driver of this thread only, there are others.
        if let Some(other) = self.submitter.other_handle(handle, T::INFO.opcode) {
            for (key, op, _) in self.sync_results.split_off(before) {
                self.chain_up(op, 0, key, other);
            }
            self.flush();
        }
    }

    /// Takes back a chain that was not submitted because of `refusal`.
    #[cold]
    fn take_back(&mut self, first: NonNull<Slot>, refusal: i32) {
        let mut next = Some(first);
        while let Some(slot) = next {
            // SAFETY: Lent: never submitted, so it belongs to this batch.
            let slot = unsafe { slot.as_ref() };
            // SAFETY: Lent: never submitted, so it belongs to this batch.
            let side = unsafe { slot.driver() };
            next = side.chain.take();
            side.res = -refusal;
            let taken = self.take_result(NonNull::from(slot));
            self.sync_results.extend(taken);
        }
    }

    /// Takes the result out of a finished slot and frees the slot.
    fn take_result(&mut self, slot: NonNull<Slot>) -> Option<(K, T, i32)> {
        self.take_from(slot).map(|(_, result)| result)
    }

    /// Takes the result out of a finished slot, with the driver that completed it.
    fn take_from(&mut self, slot: NonNull<Slot>) -> Option<(&'a DriverHandle, (K, T, i32))> {
        // SAFETY: Lent: returned by the group, or never submitted.
        let slot = unsafe { slot.as_ref() };
        // SAFETY: Lent: returned by the group, or never submitted.
        let side = unsafe { slot.driver() };
        side.group = None;
        let index = side.group_key;
        let (out, key) = self.out.get_mut(index as usize)?.take()?;
        self.vacant.push(index);
        // SAFETY: Once: `T` is what `add` filled it with, and it is taken here only.
        let (op, res) = unsafe { slot.take::<T>() };
        // SAFETY: Once: the payload is taken, and this batch's entry was the last reference.
        unsafe { out.handle.table.free(slot) };
        Some((out.handle, (key, op, res)))
    }

    fn next_done(&mut self) -> Option<(K, T, i32)> {
        if let Some(result) = self.sync_results.pop_front() {
            return Some(result);
        }
        loop {
            let slot = match self.done.next() {
                Some(slot) => slot,
                None => {
                    self.done = self.group.done.drain();
                    self.done.next()?
                }
            };
            let (handle, (key, op, res)) = self.take_from(slot)?;
            let Some(other) = self.submitter.handle_after(handle, res, T::INFO.opcode) else {
                return Some((key, op, res));
            };
            // A chain has one driver.
            if self.chain.is_some() && !std::ptr::eq(self.handle, other) {
                self.flush();
            }
            self.chain_up(op, 0, key, other);
        }
    }

    /// Returns an available result. If there is none, first submits the chain.
    fn next_or_flush(&mut self) -> Option<(K, T, i32)> {
        loop {
            let result = self.next_done();
            // A submission, or the lack of a driver, may have produced results immediately.
            if result.is_some() || self.chain.is_none() && self.sync_results.is_empty() {
                return result;
            }
            self.flush();
        }
    }

    /// Returns the next result, in the order of completion.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<(K, T, i32)>> {
        if let Some(result) = self.next_or_flush() {
            return Poll::Ready(Some(result));
        }
        if self.outstanding() == 0 {
            return Poll::Ready(None);
        }
        self.group.waker.register(context.waker());
        if broken(Mutation::BatchLookedOnce) {
            return Poll::Pending;
        }
        match self.next_or_flush() {
            Some(result) => Poll::Ready(Some(result)),
            None => Poll::Pending,
        }
    }

    /// Returns the error number that ended one of the drivers, or that of a forked child, whose parent has them: some
    /// operations will never complete.
    pub(crate) fn failed(&self) -> Option<i32> {
        if self.handle.is_elsewhere() {
            return Some(EngineError::Forked.code());
        }
        match self.group.failed.load(Ordering::Acquire) {
            0 => None,
            errno => Some(errno),
        }
    }

    /// Gives up all operations without a result because of `errno`, and returns their keys. Available results can still
    /// be taken.
    pub(crate) fn abandon(&mut self, errno: i32) -> Vec<K> {
        let before = self.sync_results.len();
        self.leave_to_driver(errno);
        // A driver that processed one between its claim and the close of the group has cancelled it.
        for (_, _, res) in self.sync_results.iter_mut().skip(before) {
            if *res == -ECANCELED {
                *res = -errno;
            }
        }
        let keys = self.out.iter().flatten().map(|&(_, key)| key).collect();
        self.out.clear();
        self.vacant.clear();
        self.group = Arc::new(Group::new());
        keys
    }

    /// Leaves the operations in flight to the drivers. The order matters:
    ///
    /// 1. claim every slot, so that no driver frees one before its cancel request has been processed;
    /// 2. close the group, and take back the slots returned to it until then;
    /// 3. count the remaining slots, so that the last of them frees the group;
    /// 4. request the cancels.
    ///
    /// Operations that were never submitted complete with minus `errno`.
    fn leave_to_driver(&mut self, errno: i32) {
        self.flush_for_drop(errno);
        let claimed = !broken(Mutation::BatchUnclaimed);
        for (out, _) in self.out.iter().flatten().filter(|_| claimed) {
            // SAFETY: Lent: in flight for this batch, so not freed.
            unsafe { out.slot.as_ref() }.lifecycle.claim();
        }
        let group = Arc::clone(&self.group);
        let returned: Vec<NonNull<Slot>> = (&mut self.done).chain(group.done.close()).collect();
        for slot in returned {
            // SAFETY: Lent: returned by the group.
            unsafe { slot.as_ref() }.lifecycle.unclaim();
            let result = self.take_result(slot);
            self.sync_results.extend(result);
        }
        let left = self.out.iter().flatten().count();
        if left == 0 {
            return;
        }
        let counted = !broken(Mutation::BatchCountedLate);
        if counted {
            group.left.store(left, Ordering::Release);
        }
        // `forget_one` takes this reference back.
        let group = Arc::into_raw(group);
        for (out, _) in self.out.iter().flatten() {
            // SAFETY: Once: claimed in step 1, and requested here only; the submitter keeps the driver handle.
            unsafe { out.handle.request_cancel(out.slot) };
        }
        if !counted {
            // SAFETY: Lent: broken on purpose, for the model checker to find.
            unsafe { &*group }.left.store(left, Ordering::Release);
        }
    }

    /// Takes apart a chain that was never submitted.
    fn flush_for_drop(&mut self, errno: i32) {
        if let Some((first, _)) = self.chain.take() {
            self.chained = 0;
            self.take_back(first, errno);
        }
    }
}

impl<T: FileOp, K: Copy> Drop for Batch<'_, T, K> {
    fn drop(&mut self) {
        if self.outstanding() > 0 || self.chain.is_some() {
            self.leave_to_driver(ECANCELED);
        }
        for (_, op, res) in self.sync_results.drain(..) {
            // A second panic, of another buffer, would end the process.
            contain(|| drop(op.complete(res)));
        }
    }
}
