//! Threads that run jobs, and one that watches the times.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{Operation, contain, lock};
use crate::idle_threads::IdleThreads;
use crate::op::{Nop, Sleep};
use crate::sys::engine_error::EngineError;
use crate::sys::errno::EAGAIN;

/// The time that a thread without work waits for more before it ends.
const IDLE: Duration = Duration::from_secs(5);

/// An operation. The first call of either method counts.
pub(super) trait Job: Send + Sync {
    /// Does the work, or fails with the error of `start`. Calls `done` before it reports the output.
    fn run(&self, start: io::Result<()>, done: &dyn Fn());

    /// The time is up.
    fn expire(&self);
}

/// A time, and a number that makes it unique.
pub(super) type Timer = (Instant, u64);

/// The threads of an engine. Dropping it ends the engine.
#[derive(Debug)]
pub(crate) struct Submitter(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// The first time has changed.
    times: Condvar,
    /// No job runs.
    drained: Condvar,
    threads_max: usize,
    drain_timeout: Duration,
    /// The process whose threads these are.
    process: u32,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Arc<dyn Job>>,
    timers: BTreeMap<Timer, Arc<dyn Job>>,
    last_timer: u64,
    threads: usize,
    idle: IdleThreads,
    running: usize,
    has_watch: bool,
    ended: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} running, {} queued", self.running, self.queue.len())
    }
}

impl Submitter {
    pub(crate) fn new(threads_max: usize, drain_timeout: Duration) -> Submitter {
        Submitter(Arc::new(Shared {
            state: Mutex::default(),
            times: Condvar::new(),
            drained: Condvar::new(),
            threads_max,
            drain_timeout,
            process: std::process::id(),
        }))
    }

    /// Returns an operation without a buffer.
    pub(crate) fn op<T, R: Send + 'static>(
        &self,
        call: impl FnOnce() -> io::Result<R> + Send + 'static,
    ) -> Operation<'_, T, io::Result<R>> {
        Operation::new(self, Ok(Box::new(move |start| start.and_then(|()| call()))))
    }

    pub(crate) fn nop(&self) -> Operation<'_, Nop, io::Result<()>> {
        self.op(|| Ok(()))
    }

    pub(crate) fn sleep(&self, time: Duration) -> Operation<'_, Sleep, io::Result<()>> {
        Operation::after(self, time, Box::new(|start| start))
    }

    /// Queues a job, or only waits for its time. Returns its timer.
    pub(super) fn submit(
        &self,
        job: Arc<dyn Job>,
        is_sleep: bool,
        until: Option<Instant>,
    ) -> Option<Timer> {
        let shared = &self.0;
        // The lock of a forked process may be held by a thread that it lacks.
        if shared.is_forked() {
            job.run(Err(EngineError::Forked.into()), &|| ());
            return None;
        }
        let mut state = lock(&shared.state);
        if state.ended {
            drop(state);
            job.run(Err(EngineError::Ended.into()), &|| ());
            return None;
        }
        state.last_timer += 1;
        let timer = until.map(|until| (until, state.last_timer));
        if let Some(timer) = timer {
            state.timers.insert(timer, Arc::clone(&job));
        }
        if !is_sleep {
            state.queue.push_back(job);
        }
        let needs_watch = !state.has_watch && timer.is_some();
        let is_served =
            is_sleep || state.idle.wake_one() || state.queue.len() <= state.idle.coming();
        let needs_thread = !is_served && state.threads < shared.threads_max;
        state.has_watch |= needs_watch;
        state.threads += usize::from(needs_thread);
        if needs_thread {
            state.idle.expect_one();
        }
        drop(state);
        shared.times.notify_one();
        if needs_thread {
            shared.start("annulus-block", Shared::work, |state| {
                state.threads -= 1;
                state.idle.came();
                state.threads == 0
            });
        }
        if needs_watch {
            shared.start("annulus-timer", Shared::watch, |state| {
                state.has_watch = false;
                true
            });
        }
        timer
    }

    pub(super) fn forget(&self, timer: Timer) {
        if !self.0.is_forked() {
            // The drop of the job is foreign code, after the lock.
            let _job = lock(&self.0.state).timers.remove(&timer);
        }
    }

    /// Fails the jobs that have not started, and waits for the others, for at most the drain timeout.
    pub(crate) fn end(&self) {
        let shared = &self.0;
        if shared.is_forked() {
            return;
        }
        lock(&shared.state).ended = true;
        shared.fail_waiting(EngineError::Ended);
        lock(&shared.state).idle.notify_all();
        shared.times.notify_all();
        let (state, busy) = (lock(&shared.state), |state: &mut State| state.running > 0);
        drop(
            shared
                .drained
                .wait_timeout_while(state, shared.drain_timeout, busy),
        );
    }
}

impl Drop for Submitter {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }

    /// Starts a thread. If that fails and `undo` returns that jobs would wait permanently, they fail.
    fn start(self: &Arc<Shared>, name: &str, run: fn(&Shared), undo: fn(&mut State) -> bool) {
        let shared = Arc::clone(self);
        let thread = thread::Builder::new().name(name.to_owned());
        if let Err(error) = thread.spawn(move || run(&shared)) {
            let is_stuck = undo(&mut lock(&self.state));
            if is_stuck {
                let errno = error.raw_os_error().unwrap_or(EAGAIN);
                self.fail_waiting(EngineError::NoThread { errno });
            }
        }
    }

    /// Fails all jobs that have not started.
    fn fail_waiting(&self, error: EngineError) {
        let mut state = lock(&self.state);
        let queue = std::mem::take(&mut state.queue);
        let timers = std::mem::take(&mut state.timers);
        drop(state);
        for job in queue.into_iter().chain(timers.into_values()) {
            contain(move || job.run(Err(error.into()), &|| ()));
        }
    }

    /// Runs jobs until there are none for a while.
    fn work(&self) {
        let wake_up = Arc::new(Condvar::new());
        let mut state = lock(&self.state);
        state.idle.came();
        loop {
            if let Some(job) = state.queue.pop_front() {
                state.running += 1;
                drop(state);
                contain(move || job.run(Ok(()), &|| self.finish_one()));
                state = lock(&self.state);
                continue;
            }
            if state.ended {
                break;
            }
            let is_woken;
            (state, is_woken) = IdleThreads::wait(state, |state| &mut state.idle, &wake_up, IDLE);
            if !is_woken {
                break;
            }
        }
        state.threads -= 1;
    }

    fn finish_one(&self) {
        lock(&self.state).running -= 1;
        self.drained.notify_all();
    }

    /// Acts on times until there are none.
    fn watch(&self) {
        let mut state = lock(&self.state);
        while let Some((&(until, _), _)) = state.timers.first_key_value() {
            let left = until.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                let waited = self.times.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let expired = state.timers.pop_first();
            drop(state);
            contain(move || expired.iter().for_each(|(_, job)| job.expire()));
            state = lock(&self.state);
        }
        state.has_watch = false;
    }
}
