//! Rings on the threads of Tokio runtimes.
//!
//! Inside a Tokio runtime that was built with I/O enabled, as with `#[tokio::main]`, each thread gets a ring with its
//! first operation. The runtime's reactor watches it. A program does nothing for this, except to enable the feature
//! `tokio` of this crate.
//!
//! ```
//! # let dir = tempfile::tempdir()?; let path = dir.path().join("data"); std::fs::write(&path, vec![7; 8192])?;
//! #[tokio::main]
//! async fn read(path: &std::path::Path) -> std::io::Result<usize> {
//!     let engine = annulus::Engine::new()?;
//!     let file = engine.open(path).await?;
//!     Ok(file.read_at(vec![0; 4096], 0).await?.0)
//! }
//! # assert_eq!(read(&path)?, 4096);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! The threads of a runtime are its workers, the threads of `spawn_blocking`, and threads inside `block_on`. Engines
//! and files are used as on any executor. Threads outside of a runtime submit to the engine's drivers. To use the
//! drivers everywhere, see [`EngineBuilder::thread_rings`](crate::EngineBuilder::thread_rings).
//!
//! # How it works
//!
//! A lone operation is submitted by the thread that polls it. Tasks that were woken together queue their operations,
//! which are submitted a few at a time, or when no task is ready. Tokio's reactor watches the descriptor of each ring,
//! and completes operations on the thread that runs the reactor. So a task may move to another worker with reads in
//! flight, and a worker may sleep with reads in flight.
//!
//! When the runtime shuts down, operations in flight are cancelled where the kernel can, and submitted again to the
//! engine's drivers. The shutdown waits for the rest.
//!
//! # When the drivers are used instead
//!
//! Operations go to the engine's drivers or blocking threads
//!
//! - without io_uring, or if a thread's ring is refused. If descriptors or memory were missing, the thread tries again
//!   after 1,024 operations;
//! - if the rings of all threads of the process hold a quarter of its descriptors (`RLIMIT_NOFILE`), three per ring;
//! - if the runtime was built without I/O. Tokio does not tell. In a process without an epoll instance no runtime has
//!   I/O. Otherwise the first operation in a runtime tries to register a descriptor. Tokio panics if it can't; the
//!   panic is caught. A program that has a runtime with I/O and one without, and whose panic hook should not see this
//!   panic, calls [`use_drivers`] for the latter. A program with `panic = "abort"` calls [`adopt`] for a runtime with
//!   I/O;
//! - in a forked child that has not called `exec(2)`, because the runtime may be its parent's. The child calls
//!   [`adopt`] for a runtime that it has built itself;
//! - on a thread that has only entered a current-thread runtime, with `Handle::enter` or `spawn_blocking`;
//! - in a runtime whose threads were all blocked three times for more than a quarter of a second with completed
//!   operations, for example by `block_on` of another executor inside a task. A thread named `annulus-watch` notices
//!   this and completes them.
//!
//! [`Engine::thread_ring_refusal`](crate::Engine::thread_ring_refusal) returns the reason, and
//! [`Engine::backend`](crate::Engine::backend) shows it.
//!
//! An operation that was started inside a current-thread runtime completes while that runtime runs, like an operation
//! on its sockets.

pub mod fs;
mod io_probe;

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Wake, Waker};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, Id, RuntimeFlavor, worker_index};
use tokio::task::unconstrained;

use crate::driver::thread_rings::{self, Batches, Presence, RingExecutor, ThreadRing};
use crate::sys::forked;

/// Declares that the threads of `runtime` can have rings. Otherwise their first operation finds that out.
///
/// A program with `panic = "abort"`, and a forked child, call this for each runtime whose threads shall have rings.
/// With `panic = "abort"` the runtime must have been built with I/O, which is not checked there.
///
/// With `panic = "abort"` a program says so itself:
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
/// annulus::tokio::adopt(runtime.handle())?;
/// runtime.block_on(async {
///     let engine = annulus::Engine::new()?;
///     engine.nop().await // submitted by this thread
/// })
/// # }
/// ```
///
/// # Errors
///
/// Fails with `Unsupported` if the runtime was built without I/O, or in a forked child if the runtime is its parent's.
pub fn adopt(runtime: &Handle) -> io::Result<()> {
    if io_probe::has_io(runtime) == Some(false) {
        let what = "cannot add rings to this runtime: it was built without I/O; call `enable_io` on its builder";
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    }
    match add_with_rings(runtime) {
        Some(known) if known.process == forked::process() => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::Unsupported, FORKED)),
    }
}

/// Declares that operations of the threads of `runtime` go to the engine's drivers. Without I/O they do in any case;
/// this prevents the attempt to find out.
///
/// A runtime whose workers are busy with computations:
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
/// annulus::tokio::use_drivers(runtime.handle()); // before its first operation
/// runtime.block_on(async { annulus::Engine::new()?.nop().await })
/// # }
/// ```
pub fn use_drivers(runtime: &Handle) {
    add(runtime.id(), RuntimeMode::Drivers(DECLARED));
}

/// Makes Tokio the executor whose threads get rings.
pub(crate) fn register() {
    thread_rings::set_ring_executor(&Tokio);
}

/// The way in which the operations of a runtime's threads are submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RuntimeMode {
    /// To rings of these threads.
    Rings,
    /// To the engine's drivers, for this reason.
    Drivers(&'static str),
}

const NO_IO: &str =
    "the Tokio runtime was built without I/O; call `enable_io` or `enable_all` on its builder";
const NOT_PROBED: &str = match cfg!(panic = "abort") {
    true => {
        "in a program with `panic = \"abort\"`, the library does not try whether a Tokio runtime has I/O; build it with `enable_io`, and call `annulus::tokio::adopt`"
    }
    false => {
        "it is not known whether the Tokio runtime has I/O; call `annulus::tokio::adopt` if it has"
    }
};
const DECLARED: &str = "the program called `annulus::tokio::use_drivers` for the Tokio runtime";
const MAYBE_FORKED: &str = "this process is a forked child, and the Tokio runtime may be its parent's; call `annulus::tokio::adopt` for a runtime that the child has built";
const FORKED: &str = "cannot add rings to this runtime: this process is a forked child, and the runtime belongs to its parent; build a runtime in the child";
const ENDED: &str = "the Tokio runtime that the thread has entered has ended";
const BLOCKED: &str = "all threads of the Tokio runtime were blocked with operations in flight, for example by `block_on` of another executor inside a task; use `spawn_blocking` or await the operation";

/// The number of times that the completions of a runtime's rings may stay unnoticed before its operations go to the
/// engine's drivers.
const MISSES_MAX: u32 = 3;

/// The runtime that a thread is in.
struct Inside {
    handle: Handle,
    known: KnownRuntime,
}

/// Returns the runtime that the calling thread is in, if any. The first call in a runtime finds its mode out, if
/// possible.
fn inside() -> Option<Inside> {
    let handle = Handle::try_current().ok()?;
    let known = known(handle.id());
    let known = match known {
        Some(known) if known.mode != RuntimeMode::Drivers(NOT_PROBED) || !probes_again() => known,
        _ => {
            let drivers = |reason| add(handle.id(), RuntimeMode::Drivers(reason));
            let known = match forked::is_child() {
                // An inherited reactor is shared with the parent, which would get the events of the child's rings.
                true => drivers(MAYBE_FORKED),
                false => match io_probe::has_io(&handle) {
                    Some(true) => add_with_rings(&handle),
                    Some(false) => drivers(NO_IO),
                    None => drivers(NOT_PROBED),
                },
            };
            known?
        }
    };
    // A forked child is still inside of the runtime of its parent's thread, and shares its reactor with the parent.
    (known.process == forked::process()).then_some(Inside { handle, known })
}

/// Returns whether this operation tries again to find a runtime's mode out. The reason may be gone: there was no free
/// descriptor, or the thread was panicking.
fn probes_again() -> bool {
    /// The number of operations between two attempts, each of which takes as long as some tens of them.
    const OPERATIONS: u32 = 1024;
    static COUNT: AtomicU32 = AtomicU32::new(1);
    !cfg!(panic = "abort")
        && COUNT
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(OPERATIONS)
}

/// A runtime in which rings may be used.
#[derive(Clone, Copy)]
struct KnownRuntime {
    id: Id,
    /// Identifies the runtime to the drivers; never 0.
    number: u64,
    mode: RuntimeMode,
    /// The process that has the runtime's threads.
    process: u64,
    /// The number of times that completions stayed unnoticed.
    misses: u32,
}

impl KnownRuntime {
    /// Returns whether nothing reports its end. A runtime with rings is known until its end.
    fn uses_drivers(&self) -> bool {
        self.process == forked::process() && matches!(self.mode, RuntimeMode::Drivers(_))
    }

    fn is_declared(&self) -> bool {
        self.uses_drivers() && self.mode == RuntimeMode::Drivers(DECLARED)
    }
}

/// The maximum number of known runtimes while there are some that use the drivers.
const KNOWN_MAX: usize = 64;

/// The known runtimes. Tokio never reuses their IDs.
static KNOWN: Mutex<Vec<KnownRuntime>> = Mutex::new(Vec::new());
/// The process that last locked `KNOWN`.
static LOCKED_BY: AtomicU64 = AtomicU64::new(0);
/// The number of changes of `KNOWN`.
static CHANGES: AtomicU32 = AtomicU32::new(0);

/// Locks the known runtimes. Returns `None` in a forked child if another thread of the parent held the lock during the
/// fork: that thread does not exist in the child, and cannot unlock.
fn lock() -> Option<MutexGuard<'static, Vec<KnownRuntime>>> {
    let process = forked::process();
    let last = LOCKED_BY.load(Ordering::Acquire);
    let locked = match KNOWN.try_lock() {
        Ok(known) => known,
        Err(TryLockError::Poisoned(known)) => known.into_inner(),
        Err(TryLockError::WouldBlock) if last == process || last == 0 => {
            KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
        }
        Err(TryLockError::WouldBlock) => return None,
    };
    LOCKED_BY.store(process, Ordering::Release);
    Some(locked)
}

/// Returns what is known of a runtime.
fn known(id: Id) -> Option<KnownRuntime> {
    let changes = CHANGES.load(Ordering::Relaxed);
    if let Some((last, seen)) = LAST_RUNTIME.get()
        && last.id == id
        && seen == changes
    {
        return Some(last);
    }
    let known = *lock()?.iter().find(|known| known.id == id)?;
    LAST_RUNTIME.set(Some((known, changes)));
    Some(known)
}

/// Makes a runtime known, or changes its mode.
fn add(id: Id, mode: RuntimeMode) -> Option<KnownRuntime> {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    let mut all = lock()?;
    let new = match all.iter_mut().find(|known| known.id == id) {
        Some(known) => {
            known.mode = mode;
            *known
        }
        None => {
            if all.len() >= KNOWN_MAX {
                // A declared runtime comes last, because nothing would find it out again.
                let found = |known: &KnownRuntime| known.uses_drivers() && !known.is_declared();
                let oldest = all.iter().position(found);
                let oldest = oldest.or_else(|| all.iter().position(KnownRuntime::is_declared));
                if let Some(oldest) = oldest {
                    all.remove(oldest);
                }
            }
            all.push(KnownRuntime {
                id,
                number: NUMBERS.fetch_add(1, Ordering::Relaxed),
                mode,
                process: forked::process(),
                misses: 0,
            });
            *all.last()?
        }
    };
    CHANGES.fetch_add(1, Ordering::Relaxed);
    Some(new)
}

/// Makes a runtime known whose threads can have rings, until its end.
fn add_with_rings(runtime: &Handle) -> Option<KnownRuntime> {
    let is_new = known(runtime.id()).is_none_or(|known| known.mode != RuntimeMode::Rings);
    let added = add(runtime.id(), RuntimeMode::Rings)?;
    if is_new && added.process == forked::process() {
        let until_end = UntilEnd(runtime.id());
        let task = runtime.spawn(async move {
            let _until_end = until_end;
            std::future::pending::<()>().await;
        });
        if task.is_finished() {
            return add(runtime.id(), RuntimeMode::Drivers(ENDED));
        }
    }
    Some(added)
}

/// Part of a task that never ends. A runtime that ends drops its tasks, and is forgotten then. Not with its last ring:
/// that may end with its engine, and there may have been none.
struct UntilEnd(Id);

impl Drop for UntilEnd {
    fn drop(&mut self) {
        if let Some(mut all) = lock() {
            all.retain(|known| known.id != self.0);
            CHANGES.fetch_add(1, Ordering::Relaxed);
        }
    }
}

thread_local! {
    /// The runtime that this thread last ran in, and the number of changes when this was stored.
    static LAST_RUNTIME: Cell<Option<(KnownRuntime, u32)>> = const { Cell::new(None) };
}

/// The Tokio runtimes of this process, as a ring executor.
struct Tokio;

impl RingExecutor for Tokio {
    fn presence(&self) -> Presence {
        let Some(inside) = inside() else {
            return Presence::Absent;
        };
        let number = inside.known.number;
        match (inside.known.mode, inside.handle.runtime_flavor()) {
            (RuntimeMode::Drivers(reason), _) => Presence::Unusable(reason),
            (RuntimeMode::Rings, RuntimeFlavor::CurrentThread) if worker_index().is_none() => {
                Presence::Absent
            }
            _ => Presence::Inside(number),
        }
    }

    fn runs_batches(&self) -> bool {
        worker_index().is_some()
    }

    fn missed_completions(&self, executor: u64) {
        let Some(mut all) = lock() else { return };
        if let Some(known) = all.iter_mut().find(|known| known.number == executor) {
            known.misses += 1;
            if known.misses >= MISSES_MAX {
                known.mode = RuntimeMode::Drivers(BLOCKED);
            }
            CHANGES.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn register(&self, ring: ThreadRing) -> io::Result<()> {
        let batches = ring.batches();
        #[expect(
            deprecated,
            reason = "sound because this descriptor never changes; the new form is unsafe"
        )]
        let ring = AsyncFd::with_interest(ring, Interest::READABLE)?;
        let ring_task = Arc::new(RingTask(Mutex::new(Some(Arc::new(ring)))));
        drop(tokio::spawn(end_batches(batches)));
        ring_task.watch();
        Ok(())
    }
}

/// Submits what is queued in a ring when no task is ready. The task is woken like any other, so no code of the library
/// or of a program runs while Tokio's scheduler has something borrowed.
async fn end_batches(batches: Batches) {
    while batches.begin().await {
        tokio::task::yield_now().await;
        batches.end();
    }
}

/// Polls a ring on the reactor's thread as soon as the reactor reports its descriptor readable. A task would have to
/// wait in the queue of a worker that may be busy, behind the tasks that the completions wake. This object is its own
/// waker; the reactor holds it. `None` after the ring has ended.
struct RingTask(Mutex<Option<Arc<AsyncFd<ThreadRing>>>>);

impl RingTask {
    fn ring(&self) -> MutexGuard<'_, Option<Arc<AsyncFd<ThreadRing>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls the ring while it is readable, and registers the waker for the next time.
    fn watch(self: &Arc<Self>) {
        let Some(ring) = self.ring().clone() else {
            return;
        };
        let waker = Waker::from(Arc::clone(self));
        let mut context = Context::from_waker(&waker);
        loop {
            if ring.get_ref().poll_over(&mut context).is_ready() {
                break;
            }
            // Outside of the budget of the task that creates the ring. With none left, `block_on` wakes the waker on
            // the spot, which would call this function again, and so on.
            let ready = unconstrained(poll_fn(|context| ring.poll_read_ready(context)));
            match pin!(ready).poll(&mut context) {
                Poll::Pending => return,
                Poll::Ready(Ok(mut ready)) => {
                    // Clears first: completions that arrive during the poll must be reported again.
                    ready.clear_ready();
                    ring.get_ref().poll();
                }
                // The runtime is shutting down.
                Poll::Ready(Err(_)) => break,
            }
        }
        // Outside the lock: dropping the last reference to the ring waits for operations in flight.
        let over = self.ring().take();
        drop((over, ring));
    }
}

impl Wake for RingTask {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.watch();
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;

    use super::*;

    fn count() -> usize {
        lock().unwrap().len()
    }

    #[test]
    fn runtimes_that_have_ended_are_forgotten() {
        let long_lived = crate::Engine::new().unwrap();
        let before = count();
        for round in 0..300 {
            let runtime = Builder::new_current_thread().enable_io().build().unwrap();
            let short_lived = crate::Engine::new().unwrap();
            match round % 3 {
                0 => runtime.block_on(long_lived.nop()).unwrap(),
                // Its ring ends before the runtime.
                1 => runtime
                    .block_on(async move { short_lived.nop().await })
                    .unwrap(),
                // It has no ring.
                _ => adopt(runtime.handle()).unwrap(),
            }
            let is_known = known(runtime.handle().id()).is_some();
            assert!(is_known || long_lived.thread_ring_refusal().is_some());
        }
        assert!(count() <= before + KNOWN_MAX, "{}", count());
        let runtime = Builder::new_multi_thread().enable_io().build().unwrap();
        let handle = runtime.handle().clone();
        drop(runtime);
        let _entered = handle.enter();
        pollster::block_on(long_lived.nop()).unwrap();
        if let Some(known) = known(handle.id()) {
            assert_eq!(known.mode, RuntimeMode::Drivers(ENDED));
        }
        let declared = Builder::new_current_thread().build().unwrap();
        use_drivers(declared.handle());
        for _ in 0..10_000 {
            let runtime = Builder::new_current_thread().build().unwrap();
            add(runtime.handle().id(), RuntimeMode::Drivers(NO_IO));
        }
        assert!(count() <= before + KNOWN_MAX, "{}", count());
        assert!(known(declared.handle().id()).is_some());
    }
}
