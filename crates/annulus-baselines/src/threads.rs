//! Threads that start together: each sets itself up and waits; when all are ready, the clock starts and all run.
//!
//! Every variant that submits from its own threads uses this. If a thread cannot be started or its set-up fails, all
//! other threads return without running.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::{Bench, Failure, Op, Worker};

/// The size of a stack. Variants with a thread per operation run hundreds of threads.
const STACK_BYTES: usize = 256 << 10;

/// Returns the next operation for a thread with none in flight. Sleeps if the worker requests a pause.
#[inline]
pub(crate) fn next_in_time<L: Worker>(worker: &mut L) -> Option<Op> {
    loop {
        if let Some(op) = worker.next() {
            return Some(op);
        }
        std::thread::sleep(worker.later()?);
    }
}

/// Sleeps if the worker will have more operations, and returns `true`. Returns `false` if the run is over. Called with
/// nothing in flight.
pub(crate) fn slept_until_later<L: Worker>(worker: &L) -> bool {
    match worker.later() {
        Some(pause) => {
            std::thread::sleep(pause);
            true
        }
        None => false,
    }
}

#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    ready: usize,
    opened: Option<bool>,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports that a thread is ready, and blocks until the gate opens. Returns whether the thread may run.
    fn arrive(&self, usable: bool) -> bool {
        let mut state = self.lock();
        state.ready += 1;
        if !usable {
            state.opened = Some(false);
        }
        self.changed.notify_all();
        loop {
            if let Some(run) = state.opened {
                return run;
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Blocks until `count` threads are ready or one has failed, then opens the gate. Returns whether the threads run.
    fn open(&self, count: usize, go: impl FnOnce()) -> bool {
        let mut state = self.lock();
        while state.ready < count && state.opened.is_none() {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let run = *state.opened.get_or_insert(true);
        if run {
            go();
        }
        self.changed.notify_all();
        run
    }

    fn shut(&self) {
        self.lock().opened = Some(false);
        self.changed.notify_all();
    }
}

/// Runs `count` threads: `setup(index)` in each, then `drive` with a worker in each. Returns the sum of the results of
/// `drive`.
pub(crate) fn on_threads<B: Bench, S>(
    bench: &B,
    count: usize,
    setup: impl Fn(usize) -> Result<S, Failure> + Sync,
    drive: impl Fn(S, &mut B::Worker) -> Result<u64, Failure> + Sync,
) -> Result<u64, Failure> {
    on_owning_threads(bench, count, setup, |state, mut worker| {
        let calls = drive(state, &mut worker)?;
        Ok((worker, calls))
    })
}

/// Runs `count` threads like `on_threads`, for a `drive` that owns its worker and returns it with its count.
///
/// # Errors
///
/// Fails with the first error of a thread: of its start, its `setup`, or its `drive`.
pub fn on_owning_threads<B: Bench, S>(
    bench: &B,
    count: usize,
    setup: impl Fn(usize) -> Result<S, Failure> + Sync,
    drive: impl Fn(S, B::Worker) -> Result<(B::Worker, u64), Failure> + Sync,
) -> Result<u64, Failure> {
    let gate = Gate::default();
    let one = |index: usize, worker: B::Worker| {
        let ready = setup(index);
        let run = gate.arrive(ready.is_ok());
        let state = ready?;
        if !run {
            return Ok(0);
        }
        let (worker, calls) = drive(state, worker)?;
        bench.done(worker);
        Ok(calls)
    };
    std::thread::scope(|scope| {
        let mut threads = Vec::with_capacity(count);
        let mut failure = None;
        for index in 0..count {
            let worker = bench.worker();
            let one = &one;
            let thread = std::thread::Builder::new()
                .stack_size(STACK_BYTES)
                .spawn_scoped(scope, move || one(index, worker));
            match thread {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    failure = Some(Failure::failed(
                        &format!("starting thread {} of {count}", index + 1),
                        &error,
                    ));
                    gate.shut();
                    break;
                }
            }
        }
        if failure.is_none() {
            gate.open(count, || bench.go());
        }
        let mut calls = 0;
        for thread in threads {
            match thread.join() {
                Ok(Ok(count)) => calls += count,
                Ok(Err(error)) => failure = failure.or(Some(error)),
                Err(_) => {
                    failure = Some(Failure::Failed("a thread of the variant panicked".into()))
                }
            }
        }
        failure.map_or(Ok(calls), Err)
    })
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;
    use crate::Completed;

    #[derive(Default)]
    struct Counting {
        workers: AtomicUsize,
        goes: AtomicUsize,
        done: AtomicUsize,
    }

    struct NoWork;

    impl Worker for NoWork {
        fn next(&mut self) -> Option<Op> {
            None
        }
        fn fill(&self, _op: &Op, _bytes: &mut [u8]) {}
        fn finish<A: Completed + ?Sized>(
            &mut self,
            _op: Op,
            _result: io::Result<usize>,
            _data: &A,
        ) {
        }
    }

    impl Bench for Counting {
        type Worker = NoWork;
        fn worker(&self) -> NoWork {
            self.workers.fetch_add(1, Relaxed);
            NoWork
        }
        fn go(&self) {
            self.goes.fetch_add(1, Relaxed);
        }
        fn done(&self, _worker: NoWork) {
            self.done.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn the_clock_starts_once_when_all_threads_are_ready() {
        let bench = Counting::default();
        let ready = AtomicUsize::new(0);
        let setup = |_| {
            ready.fetch_add(1, Relaxed);
            Ok(())
        };
        let drive = |(), _: &mut NoWork| {
            assert_eq!((ready.load(Relaxed), bench.goes.load(Relaxed)), (8, 1));
            Ok(2)
        };
        assert_eq!(on_threads(&bench, 8, setup, drive).unwrap(), 16);
        assert_eq!(
            (
                bench.workers.load(Relaxed),
                bench.goes.load(Relaxed),
                bench.done.load(Relaxed)
            ),
            (8, 1, 8)
        );
    }

    #[test]
    fn a_thread_that_cannot_set_itself_up_sends_all_home() {
        let bench = Counting::default();
        let setup = |index| {
            if index == 5 {
                Err(Failure::Failed("no memory".into()))
            } else {
                Ok(())
            }
        };
        let drive = |(), _: &mut NoWork| panic!("no thread runs");
        let error = on_threads(&bench, 8, setup, drive).unwrap_err();
        assert_eq!(error.to_string(), "no memory");
        assert_eq!(bench.goes.load(Relaxed), 0);
    }

    #[test]
    fn a_thread_that_panics_is_a_failure() {
        let bench = Counting::default();
        let drive = |(), _: &mut NoWork| panic!("overboard");
        let error = on_threads(&bench, 2, |_| Ok(()), drive).unwrap_err();
        assert_eq!(error.to_string(), "a thread of the variant panicked");
    }
}
