//! The engine, its current-thread driver, and the settings for polling and for ring set-up.

mod builder;
mod current_thread;
mod everywhere;
mod polling;

pub use builder::EngineBuilder;
pub use current_thread::CurrentThreadDriver;

pub use crate::backend::{PollingInUse, UringInUse};
pub use crate::sys::ring::SetupMode;
pub use crate::sys::sq_poll::SqPoll;

use std::ffi::{OsStr, OsString};
use std::io;
#[cfg(feature = "tokio")]
use std::path::Path;
use std::sync::Arc;

use crate::backend::BackendInUse;
use crate::buf::{Arena, BufferLayout, Region};
use crate::driver::{Operation, Submitter};
use crate::error::SetupError;
#[cfg(feature = "tokio")]
use crate::fs::File;
use crate::fs::{Dir, OpPath, Opening, paths};
use crate::metrics::Metrics;
use crate::op::{GetXattr, ListXattrs, RemoveXattr, Rename, SetXattr};
#[cfg(feature = "tokio")]
use crate::op::{RunBlocking, RunBlockingError, StdMetadata};
use crate::sys::call;

/// A handle to the drivers that do file I/O. `Send`, `Sync` and cheap to clone.
///
/// The engine's futures run on any executor, because they need only a waker.
///
/// When the last handle, file and future of an engine is dropped, operations in flight are cancelled where the kernel
/// can. The drop blocks until the rest complete, or until [`EngineBuilder::drain_timeout`] has passed. After that, no
/// memory of the program changes any more.
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?; let path = dir.path().join("data");
/// use annulus::Engine;
///
/// let engine = Engine::new()?;
/// let file = engine.create(&path).await?;
/// file.write_all_at(b"hello".to_vec(), 0).await?;
/// file.sync_all().await?;
///
/// let length = engine.metadata(&path).await?.len();
/// # assert_eq!(length, 5);
/// engine.remove_file(&path).await?;
/// # Ok(()) }) }
/// ```
///
/// # Implementation
///
/// Each driver is a thread named `annulus-ring` with its own ring. The first operation submitted to it starts the
/// thread, which sleeps in the kernel while it has no work. Operations reach the driver through a lock-free list, and a
/// submission wakes the driver only if it sleeps. A thread with its own ring (see [`CurrentThreadDriver`]) submits
/// without a hand-off.
///
/// Without io_uring, the same operations run as system calls on threads named `annulus-block`. These threads start when
/// work is waiting and end when there is none.
#[derive(Clone, Debug)]
pub struct Engine {
    submitter: Arc<Submitter>,
    backend: Arc<BackendInUse>,
    /// True if the drivers are cores of a runtime, which ends them.
    is_of_runtime: bool,
}

/// Methods for other modules.
#[cfg(any(feature = "net", feature = "tokio"))]
impl Engine {
    /// Creates the engine of a runtime.
    #[cfg(feature = "net")]
    pub(crate) fn of_runtime(submitter: &Arc<Submitter>, backend: Arc<BackendInUse>) -> Engine {
        Engine {
            submitter: Arc::clone(submitter),
            backend,
            is_of_runtime: true,
        }
    }

    #[cfg(feature = "net")]
    pub(crate) fn submitter(&self) -> &Arc<Submitter> {
        &self.submitter
    }

    /// Returns whether the kernel is a simulated one, which has no files of std.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_simulated(&self) -> bool {
        self.submitter.closer.is_some()
    }

    /// Runs `work` on a blocking thread. A panic goes on in the caller.
    #[cfg(feature = "tokio")]
    pub(crate) async fn run_blocking<T, W>(&self, work: W) -> io::Result<T>
    where
        T: Send + 'static,
        W: FnOnce() -> io::Result<T> + Send + 'static,
    {
        match Operation::new(&self.submitter, RunBlocking::new(work)).await {
            Ok(done) => done,
            Err(RunBlockingError::Panicked(panic)) => std::panic::resume_unwind(panic),
            Err(RunBlockingError::NotRun(error)) => Err(error),
        }
    }

    /// Returns metadata as the type of std.
    #[cfg(feature = "tokio")]
    pub(crate) async fn std_metadata(
        &self,
        path: &Path,
        follow: bool,
    ) -> io::Result<std::fs::Metadata> {
        let at = path.path_in().target()?;
        Operation::new(&self.submitter, StdMetadata::path(at, follow)).await
    }

    /// Takes over a file of std in any case: if it cannot be queried, its operations will fail.
    #[cfg(feature = "tokio")]
    pub(crate) fn adopt_anyway(&self, file: std::fs::File) -> File {
        paths::adopt_anyway(&self.submitter, file)
    }
}

impl Engine {
    /// Returns a driver for the calling thread. The thread drives the ring itself while it runs a future, without
    /// another thread and without a hand-off. Needs io_uring. Linux only.
    ///
    /// For a thread that does nothing else. Other threads go on with their own executors:
    ///
    /// ```
    /// use annulus::Engine;
    ///
    /// let engine = Engine::builder().backend(annulus::Backend::Fallback).build()?;
    /// let error = engine.current_thread_driver().unwrap_err(); // there is no ring to drive
    /// println!("{error}");
    /// pollster::block_on(engine.nop()).expect("other executors work");
    /// # Ok::<(), annulus::SetupError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of [`EngineBuilder::build`] with [`Backend::Uring`](crate::Backend::Uring), and with
    /// [`SetupError::Config`] if the engine has no rings or 256 threads already have one of its rings.
    pub fn current_thread_driver(&self) -> Result<CurrentThreadDriver, SetupError> {
        CurrentThreadDriver::new(self)
    }

    /// Returns why a thread of a ring executor (a Tokio runtime, for example) could not get a ring: the first refusal.
    /// Operations of such a thread go to the engine's drivers. Linux only.
    pub fn thread_ring_refusal(&self) -> Option<&SetupError> {
        self.submitter.refusal()
    }

    /// Returns a snapshot of the engine's counters. Linux only.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// let engine = annulus::Engine::new()?;
    /// let before = engine.metrics();
    /// engine.nop().await?;
    /// assert_eq!(engine.metrics().completed - before.completed, 1);
    /// # Ok(()) }) }
    /// ```
    pub fn metrics(&self) -> Metrics {
        self.submitter.metrics()
    }

    /// Allocates an arena of buffers and registers it with every ring of the engine. Reads and writes with these
    /// buffers save the kernel from pinning pages at each transfer, which speeds up direct I/O. Linux only.
    ///
    /// Blocks until each driver has tried to register the arena. For the engine of a runtime it does not wait: each
    /// core registers the arena when it next polls its ring. Registration makes the whole arena resident, which takes
    /// time, and operations wait meanwhile. Call this right after the engine is built.
    ///
    /// A ring may be refused, usually because of a small `RLIMIT_MEMLOCK`: each ring charges the whole arena to that
    /// limit. Such a ring registers as much as it can and uses the rest as ordinary memory. Engines without rings use
    /// all of it as ordinary memory. [`Arena::registered`] returns the result, with the reason and a hint.
    ///
    /// Needs Linux 5.19; before that, arenas are not registered. An arena's memory is not mapped in forked children.
    ///
    /// An engine that cannot register them still has the buffers:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, vec![7; 4096])?;
    /// use annulus::buf::BufferLayout;
    ///
    /// let arena = engine.register_buffers(BufferLayout::new(8, 4096))?;
    /// let file = engine.open(&path).await?;
    /// let page = file.read_exact_at(arena.take().await, 0).await?; // registered, if possible
    /// assert_eq!(page[0], 7);
    /// println!("{}", arena.registered());
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with `Config` if the layout is invalid, and with `Os` if the memory cannot be allocated.
    pub fn register_buffers(&self, layout: BufferLayout) -> Result<Arena, SetupError> {
        let arena = self.submitter.register_buffers(layout)?;
        // Not the calling core, which registers it when it polls its ring.
        if !self.is_of_runtime {
            self.submitter.wait_for_registration(arena.region());
        }
        Ok(arena)
    }

    /// Creates a file without a name on the file system of the directory `dir` (`O_TMPFILE`), for reading and writing.
    /// [`File::link_to`](crate::File::link_to) gives it a name. Without one, it disappears when it is closed, also
    /// after a crash. Linux only.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # if let Err(error) = engine.create_unnamed(dir.path()).await { // some file systems have no `O_TMPFILE`
    /// #     assert_eq!(error.kind(), std::io::ErrorKind::Unsupported); return Ok(());
    /// # }
    /// let scratch = engine.create_unnamed(dir.path()).await?;
    /// scratch.write_all_at("temporary", 0).await?;
    /// assert!(engine.read_dir(dir.path()).await?.is_empty()); // nothing to clean up
    /// # assert_eq!(scratch.read_exact_at(vec![0; 9], 0).await?, b"temporary");
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `open(2)`, unchanged (`EOPNOTSUPP` if the file system does not support it).
    pub fn create_unnamed(&self, dir: impl OpPath) -> Opening<'_> {
        self.open_with(&paths::to_create_unnamed(), dir)
    }

    /// Opens a directory as the base of paths; see [`Dir`]. Linux only.
    ///
    /// Names are resolved in the directory, also after it was renamed:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    /// engine.create_dir(&old).await?;
    /// let base = engine.open_dir(&old).await?;
    /// engine.rename(&old, &new).await?;
    /// engine.write(base.at("file"), "contents").await?;
    /// assert!(engine.try_exists(new.join("file")).await?);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `open(2)`, unchanged (`ENOTDIR`).
    pub async fn open_dir(&self, path: impl OpPath) -> io::Result<Dir> {
        paths::open_dir(&self.submitter, path.path_in()).await
    }

    /// Loads a whole file into new memory, past the page cache if the file system supports direct I/O. Meant for large
    /// files, such as model weights or an index of tens of gigabytes. To load part of a file, to set the read size, or
    /// to reuse memory, see [`File::load`](crate::File::load). Linux only.
    ///
    /// Loads the length that the file has when it is opened; data appended later is not loaded. Files that report a
    /// length of 0, as in `/proc`, load as empty.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?; let path = dir.path().join("weights"); std::fs::write(&path, vec![7; 20_000])?;
    /// let engine = annulus::Engine::new()?;
    /// let weights = engine.load_file(&path).await?;      // a `Region`, which dereferences to `[u8]`
    /// assert_eq!((weights.len(), weights[0]), (20_000, 7));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `open(2)` or `read(2)`, unchanged (`ENOENT`, `EISDIR`, …). Fails with `UnexpectedEof` if
    /// the file is truncated meanwhile, and with `ENOMEM` or `OutOfMemory` if the memory cannot be allocated.
    pub async fn load_file(&self, path: impl OpPath) -> io::Result<Region> {
        paths::load_file(&self.submitter, path.path_in()).await
    }

    /// Renames a file or directory, and fails if `to` exists (`RENAME_NOREPLACE`). Linux only.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    /// # std::fs::write(&from, "")?; std::fs::write(&to, "")?;
    /// let error = engine.rename_new(&from, &to).await.unwrap_err();
    /// // `InvalidInput` on file systems without `RENAME_NOREPLACE`
    /// assert!(matches!(error.kind(), std::io::ErrorKind::AlreadyExists | std::io::ErrorKind::InvalidInput));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `renameat2(2)`, unchanged (`EEXIST`; `EINVAL` if the file system does not support it).
    pub fn rename_new(
        &self,
        from: impl OpPath,
        to: impl OpPath,
    ) -> Operation<'_, Rename, io::Result<()>> {
        let flags = call::RENAME_NOREPLACE;
        paths::rename_with(&self.submitter, from.path_in(), to.path_in(), flags)
    }

    /// Exchanges two names atomically (`RENAME_EXCHANGE`). Both must exist; each may be a file or a directory.
    /// Linux only.
    ///
    /// Two versions of a directory change places:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let (live, next) = (dir.path().join("live"), dir.path().join("next"));
    /// # std::fs::create_dir(&live)?; std::fs::create_dir(&next)?; std::fs::write(next.join("index"), "new")?;
    /// match engine.exchange(&live, &next).await {
    ///     Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => return Ok(()), // not supported
    ///     exchanged => exchanged?,
    /// }
    /// assert_eq!(engine.read(live.join("index")).await?, b"new");
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `renameat2(2)`, unchanged (`ENOENT`; `EINVAL` if the file system does not support it).
    pub fn exchange(
        &self,
        one: impl OpPath,
        other: impl OpPath,
    ) -> Operation<'_, Rename, io::Result<()>> {
        let flags = call::RENAME_EXCHANGE;
        paths::rename_with(&self.submitter, one.path_in(), other.path_in(), flags)
    }

    /// Returns the value of the extended attribute `name`, for example `user.comment`, of the file at `path`. Follows
    /// symbolic links. Linux only.
    ///
    /// Uses the ring from Linux 5.19 on; before that, a blocking thread. A path in a [`Dir`] needs `/proc`.
    ///
    /// # Errors
    ///
    /// Fails with any error of `getxattr(2)`, unchanged (`ENODATA` if the file does not have it; `EOPNOTSUPP` if the
    /// file system does not support it).
    pub fn get_xattr(
        &self,
        path: impl OpPath,
        name: impl AsRef<OsStr>,
    ) -> Operation<'_, GetXattr, io::Result<Vec<u8>>> {
        paths::get_xattr(&self.submitter, path.path_in(), name.as_ref())
    }

    /// Sets the extended attribute `name` of the file at `path` to `value`, which has at most 64 KiB. Follows symbolic
    /// links. Linux only.
    ///
    /// Uses the ring from Linux 5.19 on; before that, a blocking thread. A path in a [`Dir`] needs `/proc`.
    ///
    /// # Errors
    ///
    /// Fails with any error of `setxattr(2)`, unchanged (`E2BIG`; `ENOSPC`, for example on ext4 beyond a block;
    /// `EOPNOTSUPP` if the file system does not support it).
    pub fn set_xattr(
        &self,
        path: impl OpPath,
        name: impl AsRef<OsStr>,
        value: impl Into<Vec<u8>>,
    ) -> Operation<'_, SetXattr, io::Result<()>> {
        paths::set_xattr(&self.submitter, path.path_in(), name.as_ref(), value.into())
    }

    /// Returns the names of the extended attributes of the file at `path`. Follows symbolic links. Runs on a blocking
    /// thread, because io_uring has no opcode for it. A path in a [`Dir`] needs `/proc`. Linux only.
    ///
    /// # Errors
    ///
    /// Fails with any error of `listxattr(2)`, unchanged.
    pub fn list_xattrs(
        &self,
        path: impl OpPath,
    ) -> Operation<'_, ListXattrs, io::Result<Vec<OsString>>> {
        paths::list_xattrs(&self.submitter, path.path_in())
    }

    /// Removes the extended attribute `name` of the file at `path`. Follows symbolic links. Runs on a blocking thread,
    /// because io_uring has no opcode for it. A path in a [`Dir`] needs `/proc`. Linux only.
    ///
    /// # Errors
    ///
    /// Fails with any error of `removexattr(2)`, unchanged (`ENODATA` if the file does not have it).
    pub fn remove_xattr(
        &self,
        path: impl OpPath,
        name: impl AsRef<OsStr>,
    ) -> Operation<'_, RemoveXattr, io::Result<()>> {
        paths::remove_xattr(&self.submitter, path.path_in(), name.as_ref())
    }

    fn end(&self) {
        if !self.is_of_runtime {
            self.submitter.drain();
        }
    }
}
