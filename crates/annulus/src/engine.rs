//! The engine, its current-thread driver, and the settings for polling and for ring set-up.

// One long file, because it has all methods of `Engine`, with their documentation.

mod builder;
mod current_thread;
mod polling;

pub use builder::EngineBuilder;
pub use current_thread::CurrentThreadDriver;

pub use crate::backend::{PollingInUse, UringInUse};
pub use crate::sys::ring::SetupMode;
pub use crate::sys::sq_poll::SqPoll;

use std::ffi::{OsStr, OsString};
use std::fs::Permissions;
use std::future::poll_fn;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::backend::BackendInUse;
use crate::buf::{Arena, BufferLayout, IoBuf, Region};
use crate::driver::{Operation, Submitter};
use crate::error::SetupError;
use crate::fs::{
    Dir, File, FileTimes, Metadata, OpPath, OpenOptions, Opening, ReadDir, copy, paths, remove,
    whole,
};
use crate::metrics::Metrics;
use crate::op::{
    Canonicalize, GetXattr, Link, ListXattrs, MakeDir, Nop, ReadLink, RemoveXattr, Rename,
    SetPermissions, SetTimes, SetXattr, Sleep, StatAt, Symlink, Unlink,
};
#[cfg(feature = "tokio")]
use crate::op::{RunBlocking, RunBlockingError, StdMetadata};
use crate::sys::call;
use crate::sys::engine_error::EngineError;

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
    /// Creates an engine with the defaults of [`EngineBuilder`]: io_uring if it is available, and the fallback
    /// otherwise.
    ///
    /// Make one and share it: a clone is cheap, and each engine has its own threads and limits.
    ///
    /// ```
    /// use annulus::Engine;
    ///
    /// let engine = Engine::new()?;
    /// let clone = engine.clone(); // the same drivers
    /// std::thread::spawn(move || pollster::block_on(clone.nop())).join().unwrap()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of [`EngineBuilder::build`].
    pub fn new() -> Result<Engine, SetupError> {
        Engine::builder().build()
    }

    /// Returns a builder with the default settings.
    pub fn builder() -> EngineBuilder {
        EngineBuilder::default()
    }

    /// Returns the backend in use. Its `Display` gives the reason, and what to change.
    ///
    /// Log it at the start, to see later why a machine was slow:
    ///
    /// ```
    /// use annulus::{Backend, Engine};
    ///
    /// let engine = Engine::builder().backend(Backend::Fallback).build()?;
    /// let report = engine.backend().to_string();
    /// assert!(report.contains("threads"), "{report}");
    /// # Ok::<(), annulus::SetupError>(())
    /// ```
    pub fn backend(&self) -> &BackendInUse {
        &self.backend
    }

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

    /// Opens a file for reading.
    ///
    /// If the kernel has the path in its cache, and the whole lookup stays on one local file system, the calling thread
    /// opens the file without a driver. Since Linux 6.8.
    ///
    /// Reads and writes of a pipe or a terminal fail with `ESPIPE`, because it has no offsets. An open of a FIFO may
    /// return before another process has opened its other end; [`read`](Engine::read) waits for it.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// let error = engine.open(dir.path().join("missing")).await.unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    /// // A directory can be opened. Reads of it fail, and `sync_all` makes its names durable.
    /// let opened = engine.open(dir.path()).await?;
    /// opened.sync_all().await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `open(2)`, unchanged (`ENOENT`, `EACCES`, …), and with `InvalidInput` if the path
    /// contains a NUL byte.
    pub fn open(&self, path: impl OpPath) -> Opening<'_> {
        self.open_with(OpenOptions::new().read(true), path)
    }

    /// Opens a file for writing. Creates the file if it does not exist, and truncates it if it does.
    ///
    /// The file is open for writing only. For both, use [`open_with`](Engine::open_with):
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// let file = engine.create(dir.path().join("data")).await?;
    /// assert!(file.read_at(vec![0; 1], 0).await.is_err());
    /// let mut options = annulus::OpenOptions::new();
    /// options.read(true).write(true).create(true);
    /// let file = engine.open_with(&options, dir.path().join("data")).await?;
    /// file.write_all_at("hello", 0).await?;
    /// assert_eq!(file.read_exact_at(vec![0; 5], 0).await?, b"hello");
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `open(2)`, unchanged, and otherwise like [`open`](Engine::open).
    pub fn create(&self, path: impl OpPath) -> Opening<'_> {
        self.open_with(&paths::to_create(), path)
    }

    /// Creates a file without a name on the file system of the directory `dir` (`O_TMPFILE`), for reading and writing.
    /// [`File::link_to`] gives it a name. Without one, it disappears when it is closed, also after a crash.
    /// Linux only.
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
    /// to reuse memory, see [`File::load`]. Linux only.
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

    /// Opens a file with [`OpenOptions`].
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// use std::io::ErrorKind::InvalidInput;
    ///
    /// let mut options = annulus::OpenOptions::new();
    /// options.append(true).truncate(true).create(true); // contradicts itself, as in std
    /// let error = engine.open_with(&options, dir.path().join("log")).await.unwrap_err();
    /// assert_eq!(error.kind(), InvalidInput);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `open(2)`, unchanged, with `InvalidInput` for conflicting options, and otherwise like
    /// [`open`](Engine::open).
    pub fn open_with(&self, options: &OpenOptions, path: impl OpPath) -> Opening<'_> {
        options.open(&self.submitter, path.path_in())
    }

    /// Returns the metadata of the file at `path`. Follows symbolic links.
    ///
    /// If the kernel has the path in its cache, and the whole lookup stays on one local file system, the calling thread
    /// makes the query without a driver.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # std::fs::write(dir.path().join("data"), "0123")?; let link = dir.path().join("link");
    /// engine.symlink("data", &link).await?;
    /// assert_eq!(engine.metadata(&link).await?.len(), 4); // of the file that the link points to
    /// assert_eq!(engine.symlink_metadata(&link).await?.len(), 4); // of the link: the length of "data"
    /// let error = engine.metadata(dir.path().join("missing")).await.unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `statx(2)`, unchanged.
    pub fn metadata(&self, path: impl OpPath) -> Operation<'_, StatAt, io::Result<Metadata>> {
        paths::metadata(&self.submitter, path.path_in(), true)
    }

    /// Returns the metadata of the file at `path`. Does not follow a symbolic link.
    ///
    /// # Errors
    ///
    /// Fails with any error of `statx(2)`, unchanged.
    pub fn symlink_metadata(
        &self,
        path: impl OpPath,
    ) -> Operation<'_, StatAt, io::Result<Metadata>> {
        paths::metadata(&self.submitter, path.path_in(), false)
    }

    /// Renames a file or directory, and replaces `to` if it exists.
    ///
    /// Replaces a file atomically: readers see the old or the new contents, never a part.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let (path, new) = (dir.path().join("config"), dir.path().join("config.new"));
    /// let file = engine.create(&new).await?;
    /// file.write_all_at("complete", 0).await?;
    /// file.sync_all().await?; // before the rename, or a crash may leave an empty file
    /// engine.rename(&new, &path).await?;
    /// engine.open_dir(dir.path()).await?.file().sync_all().await?; // the new name is durable
    /// # assert_eq!(engine.read(&path).await?, b"complete");
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `rename(2)`, unchanged (`EXDEV` across file systems).
    pub fn rename(
        &self,
        from: impl OpPath,
        to: impl OpPath,
    ) -> Operation<'_, Rename, io::Result<()>> {
        paths::rename(&self.submitter, from.path_in(), to.path_in(), 0)
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
        paths::rename(&self.submitter, from.path_in(), to.path_in(), flags)
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
        paths::rename(&self.submitter, one.path_in(), other.path_in(), flags)
    }

    /// Gives the file at `file` another name on the same file system. A symbolic link at `file` is not followed.
    ///
    /// Uses the ring from Linux 5.15 on; before that, a blocking thread.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    /// engine.write(&one, "contents").await?;
    /// engine.hard_link(&one, &two).await?;
    /// assert_eq!(engine.metadata(&one).await?.links(), 2);
    /// engine.remove_file(&one).await?; // a name goes; the file stays
    /// assert_eq!(engine.read(&two).await?, b"contents");
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `link(2)`, unchanged (`EEXIST`; `EXDEV` across file systems; `EPERM` for a directory).
    pub fn hard_link(
        &self,
        file: impl OpPath,
        name: impl OpPath,
    ) -> Operation<'_, Link, io::Result<()>> {
        paths::hard_link(&self.submitter, file.path_in(), name.path_in())
    }

    /// Creates a symbolic link at `name` that points to `target`, which need not exist.
    ///
    /// Uses the ring from Linux 5.15 on; before that, a blocking thread.
    ///
    /// A relative target is relative to the link, not to the working directory:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let link = dir.path().join("link");
    /// engine.write(dir.path().join("file"), "contents").await?;
    /// engine.symlink("file", &link).await?;
    /// assert_eq!(engine.read(&link).await?, b"contents");
    /// assert_eq!(engine.read_link(&link).await?, std::path::Path::new("file"));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `symlink(2)`, unchanged (`EEXIST`).
    pub fn symlink(
        &self,
        target: impl AsRef<Path>,
        name: impl OpPath,
    ) -> Operation<'_, Symlink, io::Result<()>> {
        paths::symlink(&self.submitter, target.as_ref(), name.path_in())
    }

    /// Returns the target of the symbolic link at `path`. Runs on a blocking thread, because io_uring has no opcode for
    /// it.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # std::fs::write(dir.path().join("data"), "")?;
    /// let error = engine.read_link(dir.path().join("data")).await.unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput); // it is a file, not a link
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `readlink(2)`, unchanged (`EINVAL` if it is not a symbolic link).
    pub fn read_link(&self, path: impl OpPath) -> Operation<'_, ReadLink, io::Result<PathBuf>> {
        paths::read_link(&self.submitter, path.path_in())
    }

    /// Sets the permissions of the file at `path`. Follows symbolic links. Runs on a blocking thread, because io_uring
    /// has no opcode for it.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("script");
    /// use std::{fs::Permissions, os::unix::fs::PermissionsExt};
    ///
    /// engine.write(&path, "#!/bin/sh\n").await?;
    /// engine.set_permissions(&path, Permissions::from_mode(0o755)).await?; // replaces all bits
    /// assert_eq!(engine.metadata(&path).await?.mode(), 0o755);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `chmod(2)`, unchanged (`EPERM`).
    pub fn set_permissions(
        &self,
        path: impl OpPath,
        permissions: Permissions,
    ) -> Operation<'_, SetPermissions, io::Result<()>> {
        paths::set_permissions(&self.submitter, path.path_in(), &permissions)
    }

    /// Sets the times of the last read and of the last change of the file at `path`. Follows symbolic links. Runs on a
    /// blocking thread, because io_uring has no opcode for it.
    ///
    /// # Errors
    ///
    /// Fails with any error of `utimensat(2)`, unchanged (`EPERM`).
    pub fn set_times(
        &self,
        path: impl OpPath,
        times: FileTimes,
    ) -> Operation<'_, SetTimes, io::Result<()>> {
        paths::set_times(&self.submitter, path.path_in(), times)
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

    /// Removes a name of a file.
    ///
    /// An open file can be used after its last name is gone:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, "0123")?;
    /// let file = engine.open(&path).await?;
    /// engine.remove_file(&path).await?;
    /// assert_eq!(file.read_exact_at(vec![0; 4], 0).await?, b"0123");
    /// assert!(engine.remove_file(dir.path()).await.is_err()); // directories: `remove_dir`
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `unlink(2)`, unchanged.
    pub fn remove_file(&self, path: impl OpPath) -> Operation<'_, Unlink, io::Result<()>> {
        paths::remove_file(&self.submitter, path.path_in())
    }

    /// Removes an empty directory.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("sub"); std::fs::create_dir(&path)?; std::fs::write(path.join("file"), "")?;
    /// let error = engine.remove_dir(&path).await.unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::DirectoryNotEmpty); // see `remove_dir_all`
    /// engine.remove_file(path.join("file")).await?;
    /// engine.remove_dir(&path).await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `rmdir(2)`, unchanged (`ENOTEMPTY` if the directory is not empty).
    pub fn remove_dir(&self, path: impl OpPath) -> Operation<'_, Unlink, io::Result<()>> {
        paths::remove_dir(&self.submitter, path.path_in())
    }

    /// Creates a directory with all permissions, less the umask of the process.
    ///
    /// Uses the ring from Linux 5.15 on; before that, a blocking thread.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// let path = dir.path().join("lock");
    /// engine.create_dir(&path).await?;
    /// let error = engine.create_dir(&path).await.unwrap_err(); // one of two callers succeeds
    /// assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `mkdir(2)`, unchanged.
    pub fn create_dir(&self, path: impl OpPath) -> Operation<'_, MakeDir, io::Result<()>> {
        paths::create_dir(&self.submitter, path.path_in())
    }

    /// Creates a directory and all of its parents that do not exist. Succeeds if it exists.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// let path = dir.path().join("a/b/c");
    /// assert!(engine.create_dir(&path).await.is_err()); // the parents are missing
    /// engine.create_dir_all(&path).await?;
    /// engine.create_dir_all(&path).await?; // exists already, which is no error
    /// assert!(engine.metadata(&path).await?.is_dir());
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `mkdir(2)`, unchanged (`EEXIST` or `ENOTDIR` if a part of the path is a file).
    pub async fn create_dir_all(&self, path: impl OpPath) -> io::Result<()> {
        whole::create_dir_all(&self.submitter, path.path_in()).await
    }

    /// Reads a whole file. [`load_file`](Engine::load_file) is faster for files that are large and not cached.
    ///
    /// A cached file of up to 16 KiB on a local file system is read without a driver thread. If the thread has a ring,
    /// and at least three other tasks of it read files meanwhile, the ring opens, reads and closes the file, and one
    /// system call serves many files. Otherwise the calling thread makes the calls.
    ///
    /// A pipe or terminal is read to its end on a blocking thread, which a drop of the future does not stop.
    ///
    /// Many small files at a time:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # for name in ["a", "b"] { std::fs::write(dir.path().join(name), name)?; }
    /// let (a, b) = futures_lite::future::zip(
    ///     engine.read(dir.path().join("a")),
    ///     engine.read(dir.path().join("b")),
    /// ).await;
    /// assert_eq!((a?, b?), (b"a".to_vec(), b"b".to_vec()));
    /// assert!(!engine.read("/proc/self/status").await?.is_empty()); // reports a length of 0
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `open(2)` or `read(2)`, unchanged.
    pub async fn read(&self, path: impl OpPath) -> io::Result<Vec<u8>> {
        whole::read(&self.submitter, path.path_in()).await
    }

    /// Reads a whole file as UTF-8.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data");
    /// engine.write(&path, vec![0xff, 0xfe]).await?;
    /// let error = engine.read_to_string(&path).await.unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::InvalidData); // no bytes are replaced or lost
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with `InvalidData` if the file is not UTF-8, and otherwise like [`read`](Engine::read).
    pub async fn read_to_string(&self, path: impl OpPath) -> io::Result<String> {
        whole::read_to_string(&self.submitter, path.path_in()).await
    }

    /// Writes a whole file. Creates it if it does not exist, and replaces its contents if it does. If the future is
    /// dropped, the file may have a part of `contents`; write to a new name and [rename](Engine::rename) it where that
    /// matters.
    ///
    /// A pipe or terminal is written on a blocking thread, which a drop of the future does not stop.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data");
    /// engine.write(&path, "a long old text").await?;
    /// engine.write(&path, "new").await?; // replaces all of it
    /// assert_eq!(engine.read(&path).await?, b"new");
    /// // Neither durable nor atomic; see the example of `rename`.
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `open(2)` or `write(2)`, unchanged.
    // Not an `async fn`: the compiler could not tell that the future with a `&'static str` is `Send`.
    #[allow(clippy::manual_async_fn)]
    pub fn write<P: OpPath + Send, B: IoBuf>(
        &self,
        path: P,
        contents: B,
    ) -> impl Future<Output = io::Result<()>> + Send {
        async move { whole::write(&self.submitter, path.path_in(), contents).await }
    }

    /// Copies the contents and permissions of the regular file `from` to `to`, which is created or replaced. Follows
    /// symbolic links. Returns the number of bytes.
    ///
    /// Tries these ways in order, on a blocking thread, because each avoids work of the next one:
    ///
    /// 1. Both files share the blocks (`FICLONE`). No data is copied, so the time does not depend on the length. XFS
    ///    and Btrfs support it, within a file system.
    /// 2. The kernel copies (`copy_file_range`), within a file system. Network file systems copy on the server.
    /// 3. The kernel copies across file systems (`sendfile`, a splice from page to page), without a copy to the
    ///    process.
    /// 4. Reads and writes copy the rest up to the end of the file. They work everywhere, and alone copy files whose
    ///    length is not known, as in `/proc`.
    ///
    /// File systems refuse a way with many errors (`EXDEV`, `EOPNOTSUPP`, `EINVAL`, `ENOSYS`, `ETXTBSY`, …), so every
    /// error leads to the next way. An error that is not due to the way also fails the reads and writes, and is
    /// returned.
    ///
    /// The kernel's copies keep the holes of a sparse file. `to` may be a pipe or a terminal.
    ///
    /// If the future is dropped, `to` may have a part of the contents.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    /// engine.write(&from, "contents").await?;
    /// assert_eq!(engine.copy(&from, &to).await?, 8);
    /// let error = engine.copy(&from, &from).await.unwrap_err(); // would lose the contents
    /// assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `open(2)`, `read(2)`, `write(2)` or `fchmod(2)`, unchanged (such as `ENOSPC`).
    /// Fails with `InvalidInput` if `from` is not a regular file, or if both are the same file.
    pub async fn copy(&self, from: impl OpPath, to: impl OpPath) -> io::Result<u64> {
        copy::copy(&self.submitter, from.path_in(), to.path_in()).await
    }

    /// Returns whether `path` exists. Follows symbolic links.
    ///
    /// Another process may change the answer at any time. Open the file and handle the error where that matters:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// let path = dir.path().join("data");
    /// assert!(!engine.try_exists(&path).await?);
    /// # std::os::unix::fs::symlink("missing", dir.path().join("link"))?;
    /// assert!(!engine.try_exists(dir.path().join("link")).await?); // a link to nothing
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `statx(2)` except `ENOENT`, unchanged (`EACCES`).
    pub async fn try_exists(&self, path: impl OpPath) -> io::Result<bool> {
        whole::try_exists(&self.submitter, path.path_in()).await
    }

    /// Removes a directory and everything in it. Symbolic links are removed, not followed, also if `path` is one.
    ///
    /// Each name is removed relative to its open directory, so another process cannot lead the removal elsewhere by
    /// replacing a directory with a symbolic link. Needs a descriptor for each level. If the future is dropped, or an
    /// error occurs, a part is removed.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("tree"); let kept = dir.path().join("kept");
    /// engine.create_dir_all(path.join("sub")).await?;
    /// engine.write(&kept, "contents").await?;
    /// engine.symlink(&kept, path.join("link")).await?;
    /// engine.remove_dir_all(&path).await?;
    /// assert!(engine.try_exists(&kept).await?); // the link was removed, not what it points to
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `open(2)`, `getdents64(2)`, `unlink(2)` or `rmdir(2)`, unchanged (`ENOENT`; `ENOTDIR` if
    /// `path` is a file; `ENOTEMPTY` if another process creates files meanwhile). Entries that another process removes
    /// meanwhile are no error.
    pub async fn remove_dir_all(&self, path: impl OpPath) -> io::Result<()> {
        remove::remove_dir_all(&self.submitter, path.path_in()).await
    }

    /// Returns the absolute path of an existing file, without symbolic links, `.` and `..`: `realpath(3)`. Runs on a
    /// blocking thread, because io_uring has no opcode for it. A path in a [`Dir`] needs `/proc`.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// let path = engine.canonicalize(dir.path().join("./.")).await?;
    /// assert!(path.is_absolute() && !path.ends_with("."));
    /// assert!(engine.canonicalize(dir.path().join("missing")).await.is_err()); // it must exist
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `realpath(3)`, unchanged (`ENOENT`, `ELOOP`, `ENOTDIR`).
    pub fn canonicalize(
        &self,
        path: impl OpPath,
    ) -> Operation<'_, Canonicalize, io::Result<PathBuf>> {
        paths::canonicalize(&self.submitter, path.path_in())
    }

    /// Lists a directory. [`ReadDir::next`] returns one entry after the other; awaiting the [`ReadDir`] itself returns
    /// all of them.
    ///
    /// The order is that of the file system. Sort the names where it matters:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # for name in ["b", "a"] { std::fs::write(dir.path().join(name), "")?; }
    /// let mut entries = engine.read_dir(dir.path()).await?;
    /// entries.sort_by(|one, other| one.name().cmp(other.name()));
    /// let names: Vec<_> = entries.iter().map(|entry| entry.name()).collect();
    /// assert_eq!(names, ["a", "b"]);
    /// # Ok(()) }) }
    /// ```
    ///
    /// The bytes in all files below a directory. An entry has a name only, so the walk keeps the path of its directory:
    ///
    /// ```
    /// use std::path::PathBuf;
    /// use annulus::Engine;
    ///
    /// async fn bytes_below(engine: &Engine, top: PathBuf) -> std::io::Result<u64> {
    ///     let (mut bytes, mut dirs) = (0, vec![top]);
    ///     while let Some(dir) = dirs.pop() {
    ///         for entry in engine.read_dir(&dir).await? {
    ///             let path = dir.join(entry.name());
    ///             let metadata = engine.symlink_metadata(&path).await?; // follows no links
    ///             match metadata.is_dir() {
    ///                 true => dirs.push(path),
    ///                 false => bytes += metadata.len(),
    ///             }
    ///         }
    ///     }
    ///     Ok(bytes)
    /// }
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?; std::fs::create_dir(dir.path().join("d"))?;
    /// # for name in ["a", "d/b"] { std::fs::write(dir.path().join(name), "1234")?; }
    /// # assert_eq!(bytes_below(&Engine::new()?, dir.path().into()).await?, 8);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `open(2)` or `getdents64(2)`, unchanged (`ENOTDIR`).
    pub fn read_dir(&self, path: impl OpPath) -> ReadDir {
        let submitter = Arc::clone(&self.submitter);
        ReadDir::new(submitter, path.path_in())
    }

    /// Sends a no-op through the driver and back, which measures the engine's own cost.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// let engine = annulus::Engine::new()?;
    /// let start = std::time::Instant::now();
    /// engine.nop().await?; // the first operation starts the driver; later ones are faster
    /// println!("{:?}", start.elapsed());
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with [`EngineError::Ended`] after [`shutdown`](Engine::shutdown).
    pub fn nop(&self) -> Operation<'_, Nop, io::Result<()>> {
        Operation::new(&self.submitter, Nop)
    }

    /// Waits for `time` on the driver's clock.
    ///
    /// The time runs from the first poll on. Needs no runtime, unlike `annulus::time::sleep`:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// use std::time::{Duration, Instant};
    ///
    /// let engine = annulus::Engine::new()?;
    /// let start = Instant::now();
    /// engine.sleep(Duration::from_millis(2)).await?;
    /// assert!(start.elapsed() >= Duration::from_millis(2));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with [`EngineError::Ended`] if the engine is shut down meanwhile.
    pub fn sleep(&self, time: Duration) -> Operation<'_, Sleep, io::Result<()>> {
        Operation::new(&self.submitter, Sleep::new(time)).timeout(time)
    }

    /// Runs `future` for at most `time`, and drops it when the time is up.
    ///
    /// Use this for futures without their own `timeout`, or for several steps together. For a single operation, prefer
    /// [`Operation::timeout`], which can return the buffer.
    ///
    /// Several steps within one limit:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// use std::{io::ErrorKind, time::Duration};
    ///
    /// let log = engine.timeout(Duration::from_secs(30), async {
    ///     let file = engine.create(dir.path().join("log")).await?;
    ///     file.write_all_at("entry", 0).await?;
    ///     file.sync_data().await
    /// });
    /// log.await??; // the outer result is the timeout's
    /// let never = engine.timeout(Duration::from_millis(1), std::future::pending::<()>());
    /// assert_eq!(never.await.unwrap_err().kind(), ErrorKind::TimedOut);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with [`EngineError::TimedOut`] when the time is up, and with
    /// [`EngineError::Ended`] if the engine is shut down meanwhile.
    pub async fn timeout<F: Future>(&self, time: Duration, future: F) -> io::Result<F::Output> {
        let mut sleep = self.sleep(time);
        let mut future = pin!(future);
        poll_fn(|context| {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Ok(output));
            }
            Pin::new(&mut sleep)
                .poll(context)
                .map(|slept| Err(slept.err().unwrap_or_else(|| EngineError::TimedOut.into())))
        })
        .await
    }

    /// Shuts the engine down for all its handles. Blocks the calling thread.
    ///
    /// Operations that are queued, and later ones, fail with [`EngineError::Ended`], except reads of cached data, which
    /// need no driver. Operations in the kernel are cancelled where possible, and then fail with `ECANCELED`, an error
    /// of the kernel. The call waits for the rest, for at most [`EngineBuilder::drain_timeout`].
    ///
    /// The engine of a runtime ends with it: this call does nothing then.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, "0123")?;
    /// use annulus::EngineError;
    ///
    /// let file = engine.open(&path).await?;
    /// engine.shutdown();
    /// let error = engine.nop().await.unwrap_err(); // on every clone, and for every file
    /// assert_eq!(EngineError::of(&error), Some(EngineError::Ended));
    /// let error = file.sync_all().await.unwrap_err();
    /// assert_eq!(EngineError::of(&error), Some(EngineError::Ended));
    /// # Ok(()) }) }
    /// ```
    pub fn shutdown(&self) {
        if !self.is_of_runtime {
            self.submitter.drain();
        }
    }
}

impl File {
    /// Wraps a file that std opened, for operations of `engine`.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let engine = annulus::Engine::new()?;
    /// # let mut temporary = tempfile::tempfile()?; std::io::Write::write_all(&mut temporary, b"text")?;
    /// let file = annulus::File::from_std(temporary, &engine)?;
    /// assert_eq!(file.read_exact_at(vec![0; 4], 0).await?, b"text");
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `fcntl(2)` or `statx(2)` when the flags or the direct I/O alignment cannot be read.
    /// Fails with `Unsupported` on a simulated kernel, which cannot use descriptors of the process.
    pub fn from_std(file: std::fs::File, engine: &Engine) -> io::Result<File> {
        paths::adopt(&engine.submitter, file)
    }
}
