//! # Safety
//!
//! A driver made of blocking threads: the fallback without a ring, and, beside a ring, the driver for operations that
//! the kernel has no opcode for. Threads are started as operations wait, and end after some time without work. They
//! share the driver's state under one lock, which no thread holds while it runs an operation, a waker or a buffer's
//! `Drop`.
//!
//! Invariants: Lent (an operation taken by a thread belongs to that thread until it has finished it), Once, Held (the
//! thread that holds the lock is the driver), Drained.
#![allow(unsafe_code)]

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use super::finish::Done;
use super::handle::{DriverHandle, Wake, Why};
use super::limits::Limits;
use super::queue::{self, Queue};
use super::slot::{Slot, Stage};
use crate::idle_threads::IdleThreads;
use crate::metrics::{Counters, SourceKind};
use crate::narrow::to_ns;
use crate::op::Resume;
use crate::sys::affinity::Affinity;
use crate::sys::call::now_ns;
use crate::sys::engine_error::EngineError;
use crate::sys::errno::{EAGAIN, ECANCELED};
use crate::sys::size_limit;

/// The time without work after which a thread ends.
const IDLE_MAX: Duration = if cfg!(test) {
    Duration::from_millis(50)
} else {
    Duration::from_secs(10)
};

/// The limits of a pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    /// The maximum number of threads; at least one.
    pub(crate) threads: usize,
    pub(crate) limits: Limits,
    pub(crate) drain_timeout: Duration,
    /// The processors of the threads; `None` is those of the thread that starts them.
    pub(crate) affinity: Option<Affinity>,
}

/// The driver handle and the threads behind it.
pub(crate) struct Pool {
    shared: Arc<PoolShared>,
}

struct PoolShared {
    handle: DriverHandle,
    config: Config,
    state: Mutex<PoolState>,
    /// Signals a new deadline to the timer thread.
    clock: Condvar,
    /// Signals that a thread or an operation has ended.
    ended: Condvar,
}

#[derive(Default)]
struct PoolState {
    queue: Queue,
    threads: usize,
    idle: IdleThreads,
    clock_runs: bool,
    in_flight: u32,
    in_flight_bytes: u64,
    closed: bool,
    /// The deadline of the drain, ns; the first call sets it.
    drain_until_ns: Option<u64>,
    /// True if the deadline has passed: operations in flight are leaked, and have been counted.
    is_leaked: bool,
}

// SAFETY: Held: the slots that it points to belong to the handle; the thread that holds the lock is the driver.
unsafe impl Send for PoolState {}

impl Wake for Weak<PoolShared> {
    fn wake(&self, why: Why) {
        let Some(shared) = self.upgrade() else { return };
        // The lock is held so that a thread between its last check and its wait is not missed.
        let mut state = lock(&shared.state);
        match why {
            // An idle thread is awake already, or about to be.
            Why::Deadline if state.idle.coming() > 0 || !state.idle.is_empty() => {}
            Why::Deadline => shared.clock.notify_one(),
            Why::Work if state.threads == 0 => shared.start_first(state),
            Why::Work | Why::Arenas | Why::Stop => _ = state.idle.wake_one(),
        }
    }
}

/// The task of one of a pool's threads.
#[derive(Clone, Copy, PartialEq)]
enum Duty {
    Serve,
    KeepTime,
}

thread_local! {
    /// The task of this thread, and the pool that it belongs to (the address of its `PoolShared`).
    static DUTY: Cell<Option<(Duty, usize)>> = const { Cell::new(None) };
}

impl Pool {
    /// Creates a pool, whose first thread starts with the first operation.
    pub(crate) fn new(config: Config) -> Pool {
        let shared = Arc::new_cyclic(|this: &Weak<PoolShared>| PoolShared {
            handle: DriverHandle::new(Box::new(Weak::clone(this))),
            config,
            state: Mutex::default(),
            clock: Condvar::new(),
            ended: Condvar::new(),
        });
        shared.handle.counters.set_kind(SourceKind::Threads);
        shared.handle.sleeper.about_to_sleep();
        Pool { shared }
    }

    pub(crate) fn handle(&self) -> &DriverHandle {
        &self.shared.handle
    }

    /// Refuses waiting operations and waits for running ones, at most until `until_ns`, or for the drain timeout if
    /// that is `None`. A second call does not wait longer than the first.
    pub(crate) fn drain(&self, until_ns: Option<u64>) {
        self.shared.drain(until_ns);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.drain(None);
    }
}

impl PoolShared {
    /// Starts the first thread. If that is not possible, the operations so far fail with the reason, and the next one
    /// makes another attempt.
    #[cold]
    fn start_first(self: &Arc<Self>, mut state: MutexGuard<'_, PoolState>) {
        if state.closed {
            return;
        }
        let Err(error) = self.start_thread(&mut state) else {
            return;
        };
        let errno = error.raw_os_error().unwrap_or(EAGAIN);
        let mut done = Done::default();
        // First, so that an operation that is submitted after these wakes the pool, too.
        self.handle.sleeper.about_to_sleep();
        self.take_in(&mut state, &mut done);
        let refusal = EngineError::NoThread { errno }.code();
        state.queue.refuse(&self.handle, refusal, &mut done);
        drop(state);
        done.deliver(&self.handle);
    }

    fn start_thread(self: &Arc<Self>, state: &mut PoolState) -> io::Result<()> {
        let shared = Arc::clone(self);
        thread::Builder::new()
            .name("annulus-block".to_owned())
            .spawn(move || shared.serve())?;
        state.threads += 1;
        state.idle.expect_one();
        Ok(())
    }

    fn start_clock(self: &Arc<Self>, state: &mut PoolState) {
        let shared = Arc::clone(self);
        let thread = thread::Builder::new()
            .name("annulus-clock".to_owned())
            .spawn(move || shared.keep_time());
        state.clock_runs = thread.is_ok();
    }

    /// Sets the task of this thread.
    fn take_duty(self: &Arc<Self>, duty: Duty) {
        DUTY.set(Some((duty, Arc::as_ptr(self).addr())));
    }

    /// Returns whether the calling thread belongs to this pool and has this task.
    fn has_duty(self: &Arc<Self>, duty: Duty) -> bool {
        DUTY.get() == Some((duty, Arc::as_ptr(self).addr()))
    }

    /// The loop of a blocking thread.
    fn serve(self: Arc<Self>) {
        self.take_duty(Duty::Serve);
        size_limit::block_signal();
        self.config.affinity.iter().for_each(Affinity::apply);
        let mut done = Done::default();
        let wake_up = Arc::new(Condvar::new());
        let mut state = lock(&self.state);
        state.idle.came();
        loop {
            self.take_in(&mut state, &mut done);
            // Delivered before another operation is taken: a waker may end the pool, which would then wait for an
            // operation that this thread holds.
            if !done.is_empty() {
                drop(state);
                done.deliver(&self.handle);
                state = lock(&self.state);
                continue;
            }
            if let Some(slot) = self.next(&mut state) {
                self.call_others(&mut state);
                drop(state);
                let res = run(slot, &self.handle.counters);
                state = lock(&self.state);
                self.complete(&mut state, slot, res, &mut done);
                continue;
            }
            if state.closed {
                self.close_cancels(&mut state, &mut done);
                if done.is_empty() {
                    break;
                }
                continue;
            }
            let (guard, keep) = self.idle(state, &wake_up);
            state = guard;
            if !keep {
                break;
            }
        }
        state.threads -= 1;
        self.ended.notify_all();
    }

    /// Waits for work. Returns `false` if there was none for so long that the thread may end.
    fn idle<'a>(
        &'a self,
        state: MutexGuard<'a, PoolState>,
        wake_up: &Arc<Condvar>,
    ) -> (MutexGuard<'a, PoolState>, bool) {
        if !self.handle.may_sleep() {
            return (state, true);
        }
        let (state, is_woken) =
            IdleThreads::wait(state, |state| &mut state.idle, wake_up, IDLE_MAX);
        // The last idle thread stays: submissions wake it, and the others may be busy indefinitely.
        let keep = is_woken || state.idle.is_empty() || !state.queue.pending.is_empty();
        (state, keep)
    }

    /// Makes sure that another thread handles waiting operations and the next submission. Called before this thread
    /// runs an operation.
    fn call_others(self: &Arc<Self>, state: &mut PoolState) {
        if state.idle.is_empty() {
            self.call_one_more(state);
        } else if !state.queue.pending.is_empty() || !self.handle.may_sleep() {
            state.idle.wake_one();
        }
    }

    /// Starts a thread if none is idle. If the limit is reached, submissions wait until a thread has finished; the
    /// timer thread looks for those with a deadline (`wake_for_deadline`).
    fn call_one_more(self: &Arc<Self>, state: &mut PoolState) {
        if state.closed || state.idle.coming() > 0 {
            return;
        }
        let added = state.threads < self.config.threads && self.start_thread(state).is_ok();
        if !added && !state.clock_runs {
            self.start_clock(state);
        }
    }

    /// Takes the submitted operations.
    fn take_in(self: &Arc<Self>, state: &mut PoolState, done: &mut Done) {
        let inbox = if state.closed {
            self.handle.inbox.close()
        } else {
            self.handle.inbox.drain()
        };
        for chain in inbox {
            if state.queue.accept(chain) {
                if !state.clock_runs {
                    self.start_clock(state);
                }
                self.clock.notify_one();
            }
        }
        for link in self.handle.cancels.drain() {
            self.cancel_abandoned(state, Slot::of_cancel(link), done);
        }
    }

    fn cancel_abandoned(&self, state: &mut PoolState, slot: NonNull<Slot>, done: &mut Done) {
        // SAFETY: Lent: an abandoned operation on the cancel list is not freed before `unqueue`.
        let slot = unsafe { slot.as_ref() };
        // A running system call cannot be interrupted.
        state.queue.cancel_abandoned(slot, done);
    }

    /// Closes the list of cancel requests of a closed pool, if every operation is finished. A thread that drops a
    /// future afterwards disposes of the operation itself.
    fn close_cancels(&self, state: &mut PoolState, done: &mut Done) {
        if state.in_flight == 0 {
            for link in self.handle.cancels.close() {
                self.cancel_abandoned(state, Slot::of_cancel(link), done);
            }
        }
    }

    /// Takes the next operation if the limits allow it to run.
    fn next(&self, state: &mut PoolState) -> Option<NonNull<Slot>> {
        let next = state.queue.pending.peek()?;
        // SAFETY: Lent: waiting slots are the driver's.
        let bytes = u64::from(unsafe { next.as_ref().driver() }.bytes);
        let limits = self.config.limits;
        if !limits.admit(state.in_flight, state.in_flight_bytes, bytes) {
            return None;
        }
        let slot = state.queue.pending.pop()?;
        // SAFETY: Lent: waiting slots are the driver's.
        let side = unsafe { slot.as_ref().driver() };
        side.stage = Stage::InFlight;
        if side.submitted_ns > 0 {
            side.begun_ns = now_ns();
        }
        state.in_flight += 1;
        state.in_flight_bytes += bytes;
        self.handle.counters.submitted().add(1);
        Some(slot)
    }

    fn complete(&self, state: &mut PoolState, slot: NonNull<Slot>, res: i32, done: &mut Done) {
        // SAFETY: Lent: taken by this thread and not finished.
        let slot = unsafe { slot.as_ref() };
        // SAFETY: Lent: taken by this thread and not finished.
        let side = unsafe { slot.driver() };
        state.in_flight -= 1;
        state.in_flight_bytes -= u64::from(side.bytes);
        // SAFETY: Lent: taken by this thread and not finished.
        let operation = unsafe { slot.operation() };
        let counters = &self.handle.counters;
        let is_live = !slot.lifecycle.is_abandoned();
        let res = queue::count(counters, operation, side, res, is_live, now_ns);
        state.queue.finish(slot, res, done);
        if state.closed {
            self.ended.notify_all();
        }
    }

    /// The loop of the timer thread, which watches the deadlines. It is started with the first deadline, or when all
    /// other threads are busy, and ends with the pool.
    fn keep_time(self: Arc<Self>) {
        self.take_duty(Duty::KeepTime);
        let mut done = Done::default();
        let mut state = lock(&self.state);
        while !state.closed {
            self.take_in(&mut state, &mut done);
            if !state.queue.pending.is_empty() {
                self.call_others(&mut state);
            }
            let now = now_ns();
            self.expire(&mut state, now, &mut done);
            if !done.is_empty() {
                drop(state);
                done.deliver(&self.handle);
                state = lock(&self.state);
                continue;
            }
            let pause = (state.queue)
                .next_deadline_ns()
                .map_or(IDLE_MAX, |at| Duration::from_nanos(at.saturating_sub(now)));
            let waited = self.clock.wait_timeout(state, pause);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.clock_runs = false;
        self.ended.notify_all();
    }

    fn expire(&self, state: &mut PoolState, now_ns: u64, done: &mut Done) {
        // A running system call cannot be stopped: the future returns, and the memory stays with the driver.
        (state.queue).expire(&self.handle, now_ns, done, |slot, done| {
            if let Some(wake) = slot.lifecycle.expire() {
                self.handle.counters.timeouts().add(1);
                // SAFETY: Lent: in flight, and this thread holds the lock.
                unsafe { slot.driver() }.stage = Stage::Expired;
                done.wake_later(wake);
            }
        });
    }

    /// Refuses waiting operations, waits for running ones, and ends the threads.
    fn drain(self: &Arc<Self>, until_ns: Option<u64>) {
        if self.handle.is_elsewhere() {
            // A child of a fork has none of the threads.
            return;
        }
        let mut done = Done::default();
        let mut state = lock(&self.state);
        let timeout_ns = to_ns(self.config.drain_timeout);
        let usual_ns = || now_ns().saturating_add(timeout_ns);
        (state.drain_until_ns).get_or_insert_with(|| until_ns.unwrap_or_else(usual_ns));
        if !state.closed {
            state.closed = true;
            self.take_in(&mut state, &mut done);
            let refusal = self.handle.refusal();
            state.queue.refuse(&self.handle, refusal, &mut done);
            self.close_cancels(&mut state, &mut done);
        }
        state.idle.notify_all();
        self.clock.notify_all();
        drop(state);
        done.deliver(&self.handle);
        self.wait_for_the_last();
    }

    fn wait_for_the_last(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        let until_ns = state.drain_until_ns.unwrap_or_default();
        // A waker or a buffer's drop may run on one of the pool's threads, which must not wait for itself.
        let serving = usize::from(self.has_duty(Duty::Serve));
        let keeping = self.has_duty(Duty::KeepTime);
        while state.in_flight > 0 || state.threads > serving || state.clock_runs && !keeping {
            let left = Duration::from_nanos(until_ns.saturating_sub(now_ns()));
            if left.is_zero() {
                // The threads hold `PoolShared`, and with it everything they use, until they end.
                if !std::mem::replace(&mut state.is_leaked, true) {
                    let leaked = u64::from(state.in_flight);
                    self.handle.counters.leaked().add(leaked);
                }
                return;
            }
            state = self
                .ended
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

/// Runs an operation to its end, including short transfers and interruptions.
fn run(slot: NonNull<Slot>, counters: &Counters) -> i32 {
    // SAFETY: Lent: taken out of the queue by this thread, which alone runs it.
    let slot = unsafe { slot.as_ref() };
    if slot.lifecycle.is_abandoned() {
        return -ECANCELED;
    }
    loop {
        // SAFETY: Lent: taken out of the queue by this thread, which alone runs it.
        let res = unsafe { slot.syscall() };
        // SAFETY: Lent: taken out of the queue by this thread, which alone runs it.
        match unsafe { slot.resume(res) } {
            Resume::Done(total) => return total,
            Resume::Again | Resume::Next if slot.lifecycle.is_abandoned() => return -ECANCELED,
            Resume::Next => {}
            Resume::Again => {
                counters.resubmitted().add_shared(1);
                counters.short().add_shared(u64::from(res > 0));
            }
        }
    }
}

/// Locks the state. Only foreign drops can panic while the lock is held, and they leave the state consistent.
fn lock(state: &Mutex<PoolState>) -> MutexGuard<'_, PoolState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
