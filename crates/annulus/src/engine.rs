//! The engine, its current-thread driver, and its settings for polling and for the set-up of rings.

mod builder;
mod current_thread;
mod polling;

pub use builder::{EngineBackend, EngineBuilder};
pub use current_thread::CurrentThreadDriver;
pub use polling::PollingInUse;

pub use crate::sys::ring::SetupMode;
pub use crate::sys::sq_poll::SqPoll;

use std::future::poll_fn;
use std::io;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::buf::{Arena, BufferLayout, Region};
use crate::driver::{Operation, Submitter};
use crate::error::SetupError;
use crate::fs::{DirEntry, File, Metadata, OpenOptions, Opening, paths};
use crate::metrics::Metrics;
use crate::op::{MakeDir, Nop, Rename, Sleep, StatAt, Unlink};

/// A handle on drivers that do file I/O. `Send`, `Sync`, cheap to clone.
///
/// Its futures run on any executor: they need nothing but a waker. When the last handle, file and
/// future of an engine is gone, what is in flight is cancelled where the kernel can, and waited for
/// (see [`EngineBuilder::drain_timeout`]): after that, no memory changes any more.
///
/// # Implementation
///
/// Each driver is a thread named `annulus-ring` with a ring of its own, started by the first operation
/// that is submitted to it and asleep in the kernel when there is nothing to do. An operation is handed
/// over through a lock-free list; the driver is woken only if it sleeps. A thread with a ring of its
/// own (see [`CurrentThreadDriver`]) submits to no other thread. Without io_uring the same
/// operations run as system calls on threads named `annulus-block`, started as work waits and ended
/// when it does not.
#[derive(Clone, Debug)]
pub struct Engine {
    submitter: Arc<Submitter>,
    backend: Arc<EngineBackend>,
}

impl Engine {
    /// An engine with the best backend there is and the defaults of [`EngineBuilder`].
    ///
    /// # Errors
    ///
    /// As [`EngineBuilder::build`].
    pub fn new() -> Result<Engine, SetupError> {
        Engine::builder().build()
    }

    /// How it is to be built.
    pub fn builder() -> EngineBuilder {
        EngineBuilder::default()
    }

    /// Which backend runs, why, and what to change.
    pub fn backend(&self) -> &EngineBackend {
        &self.backend
    }

    /// Returns a driver for the calling thread: the thread drives the ring itself while it runs a future, without
    /// another thread and without a hand-off. Backends: uring.
    ///
    /// # Errors
    ///
    /// As [`EngineBuilder::build`] with [`Backend::Uring`](crate::Backend::Uring);
    /// [`SetupError::Config`] if the engine has no rings, or 256 threads have rings of its already.
    pub fn current_thread_driver(&self) -> Result<CurrentThreadDriver, SetupError> {
        CurrentThreadDriver::new(self)
    }

    /// Why a thread whose executor would look after a ring has none: the first refusal there was.
    /// Such a thread's operations go to the engine's drivers.
    pub fn thread_ring_refusal(&self) -> Option<&SetupError> {
        self.submitter.refusal()
    }

    /// What the drivers have done so far.
    pub fn metrics(&self) -> Metrics {
        self.submitter.metrics()
    }

    /// Makes buffers that every ring of the engine registers: reads and writes of theirs spare the
    /// kernel the pinning of pages at each transfer, which direct I/O gains by.
    ///
    /// Asks each driver and blocks until it has tried: the whole arena becomes used memory then, which
    /// takes time, and operations wait for it. Do this when an engine is built. A ring that is refused
    /// (a small `RLIMIT_MEMLOCK` above all, to which each ring charges the arena anew) registers as
    /// much as it may, and the rest is used as any other memory: [`Arena::registered`] says so, with
    /// the reason and the hint. So do engines without rings.
    ///
    /// Since Linux 5.19; before that, arenas are not registered. An arena's memory is not mapped in
    /// children that are forked.
    ///
    /// # Errors
    ///
    /// `Config` for a layout that makes no sense; `Os` if the memory can't be had.
    pub fn register_buffers(&self, layout: BufferLayout) -> Result<Arena, SetupError> {
        let arena = Arena::new(layout, &self.submitter.arenas)?;
        self.submitter.register(arena.region());
        Ok(arena)
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    ///
    /// The kernel's, errno kept (`ENOENT`, `EACCES`, …).
    pub fn open(&self, path: impl AsRef<Path>) -> Opening<'_> {
        self.open_with(OpenOptions::new().read(true), path)
    }

    /// Makes a file, or cuts the one that is there to nothing, for writing.
    ///
    /// # Errors
    ///
    /// The kernel's, errno kept.
    pub fn create(&self, path: impl AsRef<Path>) -> Opening<'_> {
        self.open_with(&paths::to_create(), path)
    }

    /// Loads a whole file into memory of its own, past the page cache where its file system can: model
    /// weights, an index, tens of gigabytes. For a part of a file, another file system's habits, or
    /// memory that is there already: [`File::load`].
    ///
    /// As long as the file is when it is opened: what is appended meanwhile is not loaded. Files that
    /// claim to be empty (in `/proc`) are.
    ///
    /// # Errors
    ///
    /// The kernel's, errno kept (`ENOENT`, `EISDIR`, …); `UnexpectedEof` if the file is cut
    /// meanwhile; `ENOMEM` or `OutOfMemory` if there can be no such range of memory.
    pub async fn load_file(&self, path: impl AsRef<Path>) -> io::Result<Region> {
        paths::load_file(&self.submitter, path.as_ref()).await
    }

    /// Opens a file in any way [`OpenOptions`] can say.
    ///
    /// # Errors
    ///
    /// The kernel's, errno kept; `InvalidInput` for options that exclude one another.
    pub fn open_with(&self, options: &OpenOptions, path: impl AsRef<Path>) -> Opening<'_> {
        options.open(&self.submitter, path.as_ref())
    }

    /// Takes over a file that std opened.
    ///
    /// # Errors
    ///
    /// The kernel's, if it can't tell the file's flags or direct-I/O alignment; `Unsupported` on a
    /// simulated kernel, which has no part in the process's descriptors.
    pub fn file(&self, file: std::fs::File) -> io::Result<File> {
        paths::adopt(&self.submitter, file)
    }

    /// What the file system knows about what `path` names; links are followed.
    ///
    /// # Errors
    ///
    /// The kernel's, errno kept.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Operation<'_, StatAt, io::Result<Metadata>> {
        paths::metadata(&self.submitter, path.as_ref(), true)
    }

    /// The same about a link itself.
    ///
    /// # Errors
    ///
    /// The kernel's, errno kept.
    pub fn symlink_metadata(
        &self,
        path: impl AsRef<Path>,
    ) -> Operation<'_, StatAt, io::Result<Metadata>> {
        paths::metadata(&self.submitter, path.as_ref(), false)
    }

    /// Renames a file or directory; what `to` names is replaced.
    ///
    /// # Errors
    ///
    /// The kernel's, errno kept (`EXDEV` across file systems).
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Operation<'_, Rename> {
        paths::rename(&self.submitter, from.as_ref(), to.as_ref())
    }

    /// Removes a file's name.
    ///
    /// # Errors
    ///
    /// The kernel's, errno kept.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Operation<'_, Unlink> {
        paths::remove_file(&self.submitter, path.as_ref())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    ///
    /// The kernel's, errno kept (`ENOTEMPTY`).
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Operation<'_, Unlink> {
        paths::remove_dir(&self.submitter, path.as_ref())
    }

    /// Makes a directory, with all permissions less the process's umask.
    ///
    /// # Errors
    ///
    /// The kernel's, errno kept.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Operation<'_, MakeDir> {
        paths::create_dir(&self.submitter, path.as_ref())
    }

    /// Lists a directory, in the file system's order, without `.` and `..`. On a blocking thread:
    /// io_uring has no opcode for it.
    ///
    /// # Errors
    ///
    /// The kernel's, errno kept (`ENOTDIR`).
    pub async fn read_dir(&self, path: impl AsRef<Path>) -> io::Result<Vec<DirEntry>> {
        paths::read_dir(&self.submitter, path.as_ref()).await
    }

    /// A round trip through the driver that asks nothing: the engine's own cost.
    ///
    /// # Errors
    ///
    /// [`EngineError::Ended`](crate::EngineError::Ended) after [`shutdown`](Engine::shutdown).
    pub fn nop(&self) -> Operation<'_, Nop> {
        Operation::new(&self.submitter, Nop)
    }

    /// Waits for `time`, on the driver's clock.
    ///
    /// # Errors
    ///
    /// [`EngineError::Ended`](crate::EngineError::Ended) if the engine is shut down meanwhile.
    pub fn sleep(&self, time: Duration) -> Operation<'_, Sleep> {
        Operation::new(&self.submitter, Sleep).timeout(time)
    }

    /// Gives any future at most `time`, and drops it when the time is up.
    ///
    /// For what has no `timeout` of its own, or for several steps together. A single operation's own
    /// [`timeout`](Operation::timeout) is better where there is one: it can give the buffer back.
    ///
    /// # Errors
    ///
    /// `TimedOut`, and [`EngineError::Ended`](crate::EngineError::Ended) if the engine is shut down meanwhile.
    pub async fn timeout<F: Future>(&self, time: Duration, future: F) -> io::Result<F::Output> {
        let mut sleep = self.sleep(time);
        let mut future = pin!(future);
        poll_fn(|context| {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Ok(output));
            }
            Pin::new(&mut sleep).poll(context).map(|slept| {
                Err(slept
                    .err()
                    .unwrap_or_else(|| io::ErrorKind::TimedOut.into()))
            })
        })
        .await
    }

    /// Ends the engine for everybody who holds it. Operations that wait are answered with
    /// [`EngineError::Ended`](crate::EngineError::Ended). Those with the kernel are cancelled where that is possible
    /// (`ECANCELED`), and waited for as a drop does. Blocks the calling thread.
    pub fn shutdown(&self) {
        self.submitter.drain();
    }
}
