//! Hand-written rings under Tokio: one for each worker, watched by the reactor.
//!
//! A task pushes its operation to the ring of the worker that polls it. The worker submits after every
//! [`SUBMIT_EVERY`] operations and before it sleeps. A watcher task per ring waits until the ring's descriptor is
//! readable, takes all completions and wakes their tasks.
//!
//! # Safety
//!
//! An SQE points to a slot of a [`Memory`] that lives until nothing is in flight. If the run ends earlier, the rings
//! and the memory are leaked on purpose. A task accesses its slot only between its CQE and its next SQE. The files
//! outlive the run.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use io_uring::{IoUring, opcode, types};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Builder, Runtime};

use crate::forbidden::rings_allowed;
use crate::tokio_blocking::{WORKERS, run_tasks};
use crate::{Bench, Failure, Finished, Job, Memory, Op, Variant, Worker};

/// The number of operations after which a worker submits although it has more to do.
const SUBMIT_EVERY: usize = 8;
/// The kernel's limit on the entries of a ring.
const ENTRIES_MAX: usize = 32_768;

/// The number of threads that have used a ring.
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The number of the ring of this thread, modulo the number of rings.
    static THREAD: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Rings under Tokio.
pub struct TokioRing;

impl<B: Bench> Variant<B> for TokioRing {
    fn name(&self) -> &str {
        "tokio-ring"
    }

    fn about(&self) -> &str {
        "Tokio (2 workers) with a hand-written ring for each worker, watched by AsyncFd, one task per operation in flight"
    }

    fn unfit(&self, job: &Job) -> Option<String> {
        (job.depth > ENTRIES_MAX).then(|| format!("its rings have at most {ENTRIES_MAX} entries"))
    }

    fn run(&self, job: &Job, bench: &B) -> Result<Finished, Failure> {
        let workers = job.threads.unwrap_or(WORKERS);
        let rings = Arc::new(Rings::new(job, workers)?);
        let runtime = runtime(&rings, workers)?;
        let watchers: Vec<_> = {
            let _inside = runtime.enter();
            (0..workers)
                .map(|index| Ok(runtime.spawn(watch(rings.watched(index)?))))
                .collect::<io::Result<_>>()
                .map_err(|error| Failure::failed("watching a ring", &error))?
        };
        let states = (0..job.depth).map(|slot| (bench.worker(), slot)).collect();
        let ran = run_tasks(&runtime, bench, states, |(worker, slot)| {
            drive(Arc::clone(&rings), slot, job.durable, worker)
        });
        for watcher in watchers {
            watcher.abort();
        }
        drop(runtime);
        ran?;
        let calls = rings.list.iter().map(|ring| lock(ring).calls).sum();
        Ok(Finished {
            calls: Some(calls),
            note: None,
        })
    }
}

/// Starts a runtime whose workers submit before they sleep.
fn runtime(rings: &Arc<Rings>, workers: usize) -> Result<Runtime, Failure> {
    let rings = Arc::clone(rings);
    Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_io()
        .on_thread_park(move || rings.submit_before_sleep())
        .build()
        .map_err(|error| Failure::failed("starting the Tokio runtime", &error))
}

/// The rings and the memory of a run.
struct Rings {
    list: Vec<Mutex<Ring>>,
    memory: ManuallyDrop<Memory>,
    /// The state of the operation on each slot.
    slots: Vec<Mutex<Slot>>,
    files: Arc<[File]>,
}

struct Ring {
    ring: ManuallyDrop<IoUring>,
    /// Operations that are pushed and not submitted.
    unsubmitted: usize,
    in_flight: usize,
    calls: u64,
}

/// The operation on a slot.
#[derive(Default)]
enum Slot {
    #[default]
    Idle,
    Waiting(Waker),
    Done(i32),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Rings {
    fn new(job: &Job, workers: usize) -> Result<Rings, Failure> {
        let entries = u32::try_from(job.depth.next_power_of_two())
            .map_err(|_| Failure::Failed(format!("depth {}", job.depth)))?;
        rings_allowed()?;
        let ring = |_| {
            let ring = IoUring::builder().build(entries).map_err(|error| {
                Failure::of_setup(&format!("io_uring_setup({entries} entries)"), &error)
            })?;
            Ok(Mutex::new(Ring {
                ring: ManuallyDrop::new(ring),
                unsubmitted: 0,
                in_flight: 0,
                calls: 0,
            }))
        };
        Ok(Rings {
            list: (0..workers).map(ring).collect::<Result<_, Failure>>()?,
            memory: ManuallyDrop::new(Memory::new(job.depth, job.block_bytes)?),
            slots: (0..job.depth).map(|_| Mutex::default()).collect(),
            files: Arc::clone(&job.files),
        })
    }

    /// Returns the ring of the calling thread.
    fn own(&self) -> MutexGuard<'_, Ring> {
        let number = THREAD.get().unwrap_or_else(|| {
            let number = THREADS.fetch_add(1, Relaxed);
            THREAD.set(Some(number));
            number
        });
        lock(&self.list[number % self.list.len()])
    }

    fn submit_before_sleep(&self) {
        self.own().submit();
    }

    /// Runs `op` on a slot, whose bytes the caller does not access meanwhile.
    async fn call(&self, op: &Op, slot: usize, durable: bool) -> io::Result<usize> {
        let mut pushed = false;
        let result = poll_fn(|context| {
            let mut state = lock(&self.slots[slot]);
            if let Slot::Done(result) = *state {
                *state = Slot::Idle;
                return Poll::Ready(result);
            }
            *state = Slot::Waiting(context.waker().clone());
            drop(state);
            if !pushed {
                pushed = true;
                self.own().push(&self.entry(op, slot, durable));
            }
            Poll::Pending
        });
        let result = result.await;
        usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
    }

    fn entry(&self, op: &Op, slot: usize, durable: bool) -> io_uring::squeue::Entry {
        let fd = types::Fd(self.files[op.file as usize].as_raw_fd());
        let at = self.memory.slot_ptr(slot);
        let entry = match op.write {
            true => opcode::Write::new(fd, at, op.bytes)
                .offset(op.offset)
                .rw_flags(if durable { libc::RWF_DSYNC } else { 0 })
                .build(),
            false => opcode::Read::new(fd, at, op.bytes)
                .offset(op.offset)
                .build(),
        };
        entry.user_data(slot as u64)
    }

    fn watched(self: &Arc<Self>, index: usize) -> io::Result<AsyncFd<Watched>> {
        let watched = Watched {
            rings: Arc::clone(self),
            index,
        };
        // SAFETY: `watched` shares the ownership of the ring, whose descriptor stays open and the same until the last
        // owner is dropped.
        let watched = unsafe { AsyncFd::register_with_interest(watched, Interest::READABLE) };
        Ok(watched?)
    }
}

impl Ring {
    fn push(&mut self, entry: &io_uring::squeue::Entry) {
        // SAFETY: the entry points to a slot that stays mapped until its CQE (see the head of this file), and to a file
        // that the job keeps open.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            self.submit();
        }
        self.in_flight += 1;
        self.unsubmitted += 1;
        if self.unsubmitted >= SUBMIT_EVERY {
            self.submit();
        }
    }

    /// Submits what has been pushed. After an error the entries stay in the queue, and the next call submits them.
    fn submit(&mut self) {
        if self.unsubmitted == 0 {
            return;
        }
        self.calls += 1;
        if let Ok(count) = self.ring.submit() {
            self.unsubmitted = self.unsubmitted.saturating_sub(count);
        }
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        let busy = |ring: &Mutex<Ring>| lock(ring).in_flight > 0;
        // The run ended early, so the kernel may still write to the memory.
        if self.list.iter().any(busy) {
            return;
        }
        for ring in &mut self.list {
            let ring = ring.get_mut().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: dropped only here, before the memory, with nothing in flight.
            unsafe { ManuallyDrop::drop(&mut ring.ring) };
        }
        // SAFETY: dropped only here, after the rings that point to it.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}

/// A ring as seen by the reactor.
struct Watched {
    rings: Arc<Rings>,
    index: usize,
}

impl AsRawFd for Watched {
    fn as_raw_fd(&self) -> RawFd {
        lock(&self.rings.list[self.index]).ring.as_raw_fd()
    }
}

/// Takes the completions of a ring and wakes their tasks, until the task is aborted.
async fn watch(watched: AsyncFd<Watched>) {
    let Watched { rings, index } = watched.get_ref();
    let mut completed = Vec::new();
    while let Ok(mut ready) = watched.readable().await {
        // A completion after this makes the descriptor ready again.
        ready.clear_ready();
        {
            let mut ring = lock(&rings.list[*index]);
            completed.extend(
                ring.ring
                    .completion()
                    .map(|cqe| (cqe.user_data(), cqe.result())),
            );
            ring.in_flight -= completed.len();
        }
        for (slot, result) in completed.drain(..) {
            let before =
                std::mem::replace(&mut *lock(&rings.slots[slot as usize]), Slot::Done(result));
            if let Slot::Waiting(waker) = before {
                waker.wake();
            }
        }
    }
}

async fn drive<L: Worker>(rings: Arc<Rings>, slot: usize, durable: bool, mut worker: L) -> L {
    while let Some(op) = worker.next() {
        if op.write {
            // SAFETY: no operation is in flight on this slot, which belongs to this task alone.
            let bytes = unsafe { rings.memory.slot(slot) };
            worker.fill(&op, &mut bytes[..op.bytes as usize]);
        }
        let result = rings.call(&op, slot, durable).await;
        // SAFETY: the CQE of the slot's operation has been taken, and this task pushes the next one.
        let bytes = unsafe { rings.memory.slot(slot) };
        worker.finish(op, result, &bytes[..op.bytes as usize]);
    }
    worker
}
