//! Rings on the threads of a Tokio runtime.
//!
//! One line switches it on: build the runtime with [`Rings::build_with_rings`].
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
//! From then on every thread that works for such a runtime (its workers, the threads of
//! `spawn_blocking`, one in `block_on`) gets a ring of its own with its first operation. Engines and
//! files are the same as ever: any other thread submits to the engine's drivers, and a program that
//! reads only from such a runtime starts no thread of the library.
//!
//! # How it works
//!
//! Operations are queued where they are polled and submitted a few at a time, or when the thread is
//! about to park. Tokio's reactor watches each ring's descriptor, and answers what has completed on
//! whatever thread it runs: a task may move to another worker with reads in flight, and a worker may
//! sleep with them. When the runtime shuts down, what is in flight is cancelled where the kernel can,
//! and waited for.
//!
//! An operation that was started inside a current-thread runtime is answered while that runtime runs,
//! as with its sockets.
//!
//! Where there is no io_uring, or a thread's ring is refused, operations go where they go without this
//! module; [`Engine::thread_ring_refusal`](crate::Engine::thread_ring_refusal) says why.

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::task::{Context, Poll, Wake, Waker};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Builder, Handle, Id, Runtime, RuntimeFlavor};

use crate::driver::thread_rings::{self, Presence, RingExecutor, ThreadRing};

/// Builds Tokio runtimes whose threads have rings of their own.
pub trait Rings {
    /// As `build`, with rings. Enables I/O, and uses the builder's hooks `on_thread_park` and
    /// `on_thread_unpark`: Tokio has one of each, so those that were set before are replaced; to have
    /// more done in them, see [`before_park`] and [`after_unpark`].
    ///
    /// # Errors
    ///
    /// As `Builder::build`; `AlreadyExists` if another executor has been named as the process's host
    /// of rings.
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

/// Has rings kept on the threads of a runtime that was built elsewhere, with I/O enabled.
///
/// `has_hooks` says whether its hooks call [`before_park`] and [`after_unpark`]; where they don't, as
/// with `#[tokio::main]`, each operation is submitted by itself.
///
/// # Errors
///
/// `AlreadyExists` if another executor has been named as the process's host of rings.
///
/// # Panics
///
/// As Tokio's own descriptors do, if the runtime was built without I/O.
pub fn adopt(runtime: &Handle, has_hooks: bool) -> io::Result<()> {
    static NAMED: OnceLock<bool> = OnceLock::new();
    if !NAMED.get_or_init(|| thread_rings::set_ring_executor(&Tokio)) {
        let what = "another executor looks after rings in this process";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
    }
    {
        // Here, and not at the first read, is the place to find out.
        let _inside = runtime.enter();
        drop(tokio::net::UnixStream::pair()?);
    }
    let mut adopted = ADOPTED.write().unwrap_or_else(PoisonError::into_inner);
    adopted
        .get_or_insert_default()
        .insert(runtime.id(), has_hooks);
    Ok(())
}

/// What `on_thread_park` does: submits what waits in this thread's rings.
pub fn before_park() {
    if let Some((number, _)) = inside() {
        PARKS_IN.set(number);
        thread_rings::before_park(number);
    }
}

/// What `on_thread_unpark` does: answers what has completed in this thread's rings. Marks the thread as
/// one that calls the hooks.
pub fn after_unpark() {
    if let Some((number, _)) = inside() {
        PARKS_IN.set(number);
        thread_rings::after_unpark(number);
    }
}

/// The number of the adopted runtime that the calling thread is in, if it is in one.
fn inside() -> Option<(u64, RuntimeFlavor)> {
    let handle = Handle::try_current().ok()?;
    let id = handle.id();
    let number = match SEEN.get() {
        Some((known, number)) if known == id => number,
        _ => {
            let adopted = ADOPTED.read().unwrap_or_else(PoisonError::into_inner);
            adopted.as_ref()?.get(&id)?;
            drop(adopted);
            let number = number_of(id);
            SEEN.set(Some((id, number)));
            number
        }
    };
    Some((number, handle.runtime_flavor()))
}

/// The runtimes that have been adopted, and whether they have hooks. Their numbers are never used again.
static ADOPTED: RwLock<Option<HashMap<Id, bool>>> = RwLock::new(None);

thread_local! {
    /// The runtime this thread was last seen in, if it is an adopted one, and its number.
    static SEEN: Cell<Option<(Id, u64)>> = const { Cell::new(None) };
    /// The number of the runtime whose hook was called last on this thread; 0 is none.
    static PARKS_IN: Cell<u64> = const { Cell::new(0) };
}

/// The runtimes of this process, as a host.
struct Tokio;

impl RingExecutor for Tokio {
    fn presence(&self) -> Presence {
        match inside() {
            None => Presence::Absent,
            // A worker of such a runtime is one for life, and no other thread calls its hook.
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
            reason = "sound where the descriptor stays what it is, as this one does; the new form is unsafe"
        )]
        let ring = AsyncFd::with_interest(ring, Interest::READABLE)?;
        let ring_task = Arc::new(RingTask {
            ring: Mutex::new(Some(Arc::new(ring))),
            has_hooks: has_hooks.unwrap_or(false),
        });
        if ring_task.has_hooks {
            // A thread that runs tasks calls the hook before it sleeps; one that is never idle would not
            // be known by its sleeping. Elsewhere (a blocking thread) it marks whom it runs on.
            drop(tokio::spawn(async { after_unpark() }));
        }
        ring_task.watch(false);
        Ok(())
    }
}

/// Tokio's numbers, as numbers: what it prints.
fn number_of(id: Id) -> u64 {
    id.to_string().parse().unwrap_or(u64::MAX)
}

/// Polls a ring whenever the reactor finds its descriptor readable, right there: a task would wait
/// for its turn, behind what the ring's answers would have run, and in the queue of a worker that may
/// be busy. It is its own waker; the reactor holds it.
struct RingTask {
    /// `None` when it is over.
    ring: Mutex<Option<Arc<AsyncFd<ThreadRing>>>>,
    has_hooks: bool,
}

impl RingTask {
    fn ring(&self) -> MutexGuard<'_, Option<Arc<AsyncFd<ThreadRing>>>> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Turns while there is something to turn for, and asks to be woken when there is again.
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
                    // First: what completes during the turn is to be reported again.
                    ready.clear_ready();
                    if on_reactor && self.has_hooks {
                        // This thread calls the hook before it sleeps, or it would not get here.
                        after_unpark();
                    }
                    ring.get_ref().poll();
                }
                // The runtime is shutting down.
                Poll::Ready(Err(_)) => break,
            }
        }
        // Not under the lock: the last to drop the ring waits for what is in flight.
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
