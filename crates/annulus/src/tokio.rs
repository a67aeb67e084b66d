//! Rings on the threads of a Tokio runtime.
//!
//! To enable them, build the runtime with [`Rings::build_with_rings`].
//!
//! ```
//! use annulus::tokio::Rings;
//!
//! # fn main() -> std::io::Result<()> {
//! # let dir = tempfile::tempdir()?; let path = dir.path().join("data"); std::fs::write(&path, vec![7; 8192])?;
//! let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build_with_rings()?;
//! let engine = annulus::Engine::new()?;
//! runtime.block_on(async {
//!     let file = engine.open(&path).await?;
//!     let (n, _page) = file.read_at(vec![0; 4096], 0).await?;
//! #   assert_eq!(n, 4096);
//!     std::io::Result::Ok(())
//! })
//! # }
//! ```
//!
//! With `#[tokio::main]`, call [`adopt`] instead.
//!
//! ```
//! # let dir = tempfile::tempdir()?; let path = dir.path().join("data"); std::fs::write(&path, vec![7; 8192])?;
//! #[tokio::main]
//! async fn read(path: &std::path::Path) -> std::io::Result<usize> {
//!     annulus::tokio::adopt(&tokio::runtime::Handle::current(), false)?;
//!     let engine = annulus::Engine::new()?;
//!     let file = engine.open(path).await?;
//!     Ok(file.read_at(vec![0; 4096], 0).await?.0)
//! }
//! # assert_eq!(read(&path)?, 4096);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Every thread of such a runtime gets a ring with its first operation: the workers, the threads of `spawn_blocking`,
//! and threads inside `block_on`. Engines and files are used as before. Threads outside the runtime submit to the
//! engine's drivers. A program that only reads from such a runtime starts no thread of the library.
//!
//! # How it works
//!
//! Operations are queued on the thread that polls them. They are submitted a few at a time, or when the thread is about
//! to park. Tokio's reactor watches the descriptor of each ring, and completes operations on the thread that runs the
//! reactor. So a task may move to another worker with reads in flight, and a worker may sleep with reads in flight.
//!
//! When the runtime shuts down, operations in flight are cancelled where the kernel can. The shutdown waits for the
//! rest.
//!
//! An operation that was started inside a current-thread runtime completes only while that runtime runs, like an
//! operation on its sockets.
//!
//! Without io_uring, or if a thread's ring is refused, operations go to the engine's drivers or blocking threads.
//! [`Engine::thread_ring_refusal`](crate::Engine::thread_ring_refusal) returns the reason.

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::task::{Context, Poll, Wake, Waker};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Builder, Handle, Id, Runtime, RuntimeFlavor};

use crate::driver::thread_rings::{self, Presence, RingExecutor, ThreadRing};

/// Builds Tokio runtimes whose threads have rings.
pub trait Rings {
    /// Builds the runtime like `build`, with rings. Enables I/O.
    ///
    /// Sets the hooks `on_thread_park` and `on_thread_unpark`, and replaces hooks that were set before, because Tokio
    /// has one of each. To combine them with other hooks, see [`before_park`] and [`after_unpark`].
    ///
    /// # Errors
    ///
    /// Fails with any error of `build`, and with `AlreadyExists` if another executor drives the rings of this process.
    fn build_with_rings(&mut self) -> io::Result<Runtime>;
}

impl Rings for Builder {
    fn build_with_rings(&mut self) -> io::Result<Runtime> {
        self.on_thread_park(before_park)
            .on_thread_unpark(after_unpark);
        let runtime = self.enable_io().build()?;
        adopt(runtime.handle(), true)?;
        Ok(runtime)
    }
}

/// Adds rings to the threads of an existing runtime that was built with I/O enabled.
///
/// `has_hooks` states whether the hooks of the runtime call [`before_park`] and [`after_unpark`]. Without the hooks, as
/// with `#[tokio::main]`, each operation is submitted separately.
///
/// # Errors
///
/// Fails with `AlreadyExists` if another executor drives the rings of this process.
///
/// # Panics
///
/// Panics if the runtime was built without I/O.
pub fn adopt(runtime: &Handle, has_hooks: bool) -> io::Result<()> {
    static NAMED: OnceLock<bool> = OnceLock::new();
    if !NAMED.get_or_init(|| thread_rings::set_ring_executor(&Tokio)) {
        let what = "cannot add rings to this runtime: another executor already drives the rings of this process";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
    }
    {
        // Panics here, and not at the first read, if the runtime has no I/O.
        let _inside = runtime.enter();
        drop(tokio::net::UnixStream::pair()?);
    }
    let mut adopted = ADOPTED.write().unwrap_or_else(PoisonError::into_inner);
    adopted
        .get_or_insert_default()
        .insert(runtime.id(), has_hooks);
    Ok(())
}

/// Submits the operations that wait in this thread's rings. To be called from `on_thread_park`.
pub fn before_park() {
    if let Some((number, _)) = inside() {
        PARKS_IN.set(number);
        thread_rings::before_park(number);
    }
}

/// Completes finished operations of this thread's rings, and marks the thread as one that calls the hooks. To be called
/// from `on_thread_unpark`.
pub fn after_unpark() {
    if let Some((number, _)) = inside() {
        PARKS_IN.set(number);
        thread_rings::after_unpark(number);
    }
}

/// Returns the number and the flavor of the adopted runtime that the calling thread is in, if any.
fn inside() -> Option<(u64, RuntimeFlavor)> {
    let handle = Handle::try_current().ok()?;
    let id = handle.id();
    let number = match LAST_RUNTIME.get() {
        Some((known, number)) if known == id => number,
        _ => {
            let adopted = ADOPTED.read().unwrap_or_else(PoisonError::into_inner);
            adopted.as_ref()?.get(&id)?;
            drop(adopted);
            let number = number_of(id);
            LAST_RUNTIME.set(Some((id, number)));
            number
        }
    };
    Some((number, handle.runtime_flavor()))
}

/// The adopted runtimes, and whether they have hooks. Tokio never reuses their numbers.
static ADOPTED: RwLock<Option<HashMap<Id, bool>>> = RwLock::new(None);

thread_local! {
    /// The adopted runtime that this thread last ran in, and its number.
    static LAST_RUNTIME: Cell<Option<(Id, u64)>> = const { Cell::new(None) };
    /// The number of the runtime whose hook ran last on this thread; 0 if none.
    static PARKS_IN: Cell<u64> = const { Cell::new(0) };
}

/// The Tokio runtimes of this process, as a ring executor.
struct Tokio;

impl RingExecutor for Tokio {
    fn presence(&self) -> Presence {
        match inside() {
            None => Presence::Absent,
            // A worker belongs to its runtime until it ends, and no other thread calls this runtime's hook.
            Some((number, RuntimeFlavor::MultiThread)) if PARKS_IN.get() == number => {
                Presence::Resident(number)
            }
            Some((number, _)) => Presence::Visiting(number),
        }
    }

    fn register(&self, ring: ThreadRing) -> io::Result<()> {
        let adopted = ADOPTED.read().unwrap_or_else(PoisonError::into_inner);
        let id = Handle::current().id();
        let has_hooks = adopted.as_ref().and_then(|ids| ids.get(&id)).copied();
        drop(adopted);
        #[expect(
            deprecated,
            reason = "sound because this descriptor never changes; the new form is unsafe"
        )]
        let ring = AsyncFd::with_interest(ring, Interest::READABLE)?;
        let ring_task = Arc::new(RingTask {
            ring: Mutex::new(Some(Arc::new(ring))),
            has_hooks: has_hooks.unwrap_or(false),
        });
        if ring_task.has_hooks {
            // A thread that runs tasks calls the hook before it sleeps. A thread that is never idle would not be
            // recognised without this task. On a blocking thread, the task marks the worker that runs it.
            drop(tokio::spawn(async { after_unpark() }));
        }
        ring_task.watch(false);
        Ok(())
    }
}

/// Converts an ID to a number by way of its text, the only form that Tokio offers.
fn number_of(id: Id) -> u64 {
    id.to_string().parse().unwrap_or(u64::MAX)
}

/// Polls a ring on the reactor's thread as soon as the reactor reports its descriptor readable. A task would have to
/// wait in the queue of a worker that may be busy, behind the tasks that the completions wake. This object is its own
/// waker; the reactor holds it.
struct RingTask {
    /// `None` after the ring has ended.
    ring: Mutex<Option<Arc<AsyncFd<ThreadRing>>>>,
    has_hooks: bool,
}

impl RingTask {
    fn ring(&self) -> MutexGuard<'_, Option<Arc<AsyncFd<ThreadRing>>>> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls the ring while it is readable, and registers the waker for the next time.
    fn watch(self: &Arc<Self>, on_reactor: bool) {
        let Some(ring) = self.ring().clone() else {
            return;
        };
        let waker = Waker::from(Arc::clone(self));
        let mut context = Context::from_waker(&waker);
        loop {
            if ring.get_ref().poll_over(&mut context).is_ready() {
                break;
            }
            match ring.poll_read_ready(&mut context) {
                Poll::Pending => return,
                Poll::Ready(Ok(mut ready)) => {
                    // Clears first: completions that arrive during the poll must be reported again.
                    ready.clear_ready();
                    if on_reactor && self.has_hooks {
                        // The reactor runs only on threads that call the hook before they sleep.
                        after_unpark();
                    }
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
        self.watch(true);
    }
}
