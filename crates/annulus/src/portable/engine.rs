//! The engine, and its builder.

use std::fs;
use std::future::poll_fn;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::backend::{Backend, BackendInUse};
use crate::buf::{IoBuf, bytes_of};
use crate::driver::{Operation, Pool};
use crate::error::SetupError;
use crate::fs::{
    File, FileTimes, Metadata, OpPath, OpenOptions, Opening, ReadDir, is_same_file, open_for_times,
};
use crate::op::{
    Canonicalize, Link, MakeDir, Nop, ReadLink, Rename, SetPermissions, SetTimes, Sleep, StatAt,
    Unlink, WriteAt,
};
use crate::sys::engine_error::EngineError;

/// Default number of blocking threads: about the number that keeps a disk busy.
const BLOCKING_THREADS: usize = 64;
/// Default time that the end of an engine waits for operations that run.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// A handle to the threads that do file I/O. `Send`, `Sync` and cheap to clone.
///
/// The engine's futures run on any executor, because they need only a waker.
///
/// When the last handle, file and future of an engine is dropped, operations that have not started are cancelled. The
/// drop blocks until the rest complete, or until [`EngineBuilder::drain_timeout`] has passed.
#[derive(Clone, Debug)]
pub struct Engine {
    pool: Arc<Pool>,
    backend: Arc<BackendInUse>,
}

/// Settings for a new [`Engine`], returned by [`Engine::builder`].
#[derive(Clone, Debug)]
pub struct EngineBuilder {
    backend: Backend,
    blocking_threads: usize,
    drain_timeout: Duration,
}

impl Default for EngineBuilder {
    fn default() -> EngineBuilder {
        EngineBuilder {
            backend: Backend::Auto,
            blocking_threads: BLOCKING_THREADS,
            drain_timeout: DRAIN_TIMEOUT,
        }
    }
}

impl EngineBuilder {
    /// Sets the backend; [`Backend::Auto`] by default.
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Sets the maximum number of blocking threads; 64 by default. They start when they are needed.
    pub fn blocking_threads(mut self, threads: usize) -> Self {
        self.blocking_threads = threads;
        self
    }

    /// Sets how long the end of the engine waits for operations that run; 30 s by default.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// Builds the engine.
    ///
    /// # Errors
    ///
    /// Fails with [`SetupError::Config`] if the number of threads is 0, and with [`SetupError::Platform`] for
    /// [`Backend::Uring`].
    pub fn build(self) -> Result<Engine, SetupError> {
        match self.backend {
            _ if self.blocking_threads == 0 => {
                let text = "blocking_threads is 0; it must be at least 1";
                Err(SetupError::Config(text.to_owned()))
            }
            Backend::Auto => Ok(self.build_for(Some(no_uring()))),
            Backend::Fallback => Ok(self.build_for(None)),
            Backend::Uring => Err(no_uring()),
        }
    }

    fn build_for(self, reason: Option<SetupError>) -> Engine {
        let backend = BackendInUse::Fallback {
            blocking_threads: self.blocking_threads,
            epoll: false,
            reason,
        };
        Engine {
            pool: Arc::new(Pool::new(self.blocking_threads, self.drain_timeout)),
            backend: Arc::new(backend),
        }
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn build_anyway() -> Engine {
        EngineBuilder::default().build_for(Some(no_uring()))
    }
}

fn no_uring() -> SetupError {
    SetupError::Platform {
        built_for: match cfg!(annulus_portable) {
            true => "every platform (--cfg annulus_portable)",
            false => std::env::consts::OS,
        },
    }
}

/// Functions for `tokio::fs`.
#[cfg(feature = "tokio")]
impl Engine {
    pub(crate) fn is_simulated(&self) -> bool {
        false
    }

    pub(crate) async fn run_blocking<T, W>(&self, work: W) -> io::Result<T>
    where
        T: Send + 'static,
        W: FnOnce() -> io::Result<T> + Send + 'static,
    {
        self.pool.op::<(), T>(work).await
    }

    pub(crate) async fn std_metadata(&self, path: &Path, follow: bool) -> io::Result<fs::Metadata> {
        let path = path.to_owned();
        let query = move || match follow {
            true => fs::metadata(path),
            false => fs::symlink_metadata(path),
        };
        self.run_blocking(query).await
    }

    pub(crate) fn adopt_anyway(&self, file: fs::File) -> File {
        File::new(file, &self.pool, false)
    }
}

/// Implements operations on paths that are functions of std.
macro_rules! operations_of_std {
    ($($about:literal $name:ident($($path:ident),*) -> $op:ident, $output:ty = $call:expr;)*) => {
        $(
            #[doc = $about]
            ///
            /// # Errors
            ///
            /// Fails with any error of the system.
            pub fn $name(&self, $($path: impl OpPath),*) -> Operation<'_, $op, io::Result<$output>> {
                $(let $path = $path.to_path();)*
                self.pool.op(move || $call($($path),*))
            }
        )*
    };
}

/// Implements such operations as `async fn`.
macro_rules! async_operations_of_std {
    ($($about:literal $name:ident($($path:ident),*) -> $output:ty = $call:expr;)*) => {
        $(
            #[doc = $about]
            ///
            /// # Errors
            ///
            /// Fails with any error of the system.
            pub async fn $name(&self, $($path: impl OpPath),*) -> io::Result<$output> {
                $(let $path = $path.to_path();)*
                self.pool.op::<(), _>(move || $call($($path),*)).await
            }
        )*
    };
}

impl Engine {
    /// Creates an engine with the defaults of [`EngineBuilder`]. Make one and share it.
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

    /// Returns the backend in use. Its `Display` gives the reason.
    pub fn backend(&self) -> &BackendInUse {
        &self.backend
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    ///
    /// Fails with any error of the system.
    pub fn open(&self, path: impl OpPath) -> Opening<'_> {
        self.open_with(OpenOptions::new().read(true), path)
    }

    /// Opens a file for writing. Creates it if it does not exist, and removes its contents if it does.
    ///
    /// # Errors
    ///
    /// Fails with any error of the system.
    pub fn create(&self, path: impl OpPath) -> Opening<'_> {
        self.open_with(
            OpenOptions::new().write(true).create(true).truncate(true),
            path,
        )
    }

    /// Opens a file with these options.
    ///
    /// # Errors
    ///
    /// Fails with any error of the system, and with `InvalidInput` for a wrong combination of options.
    pub fn open_with(&self, options: &OpenOptions, path: impl OpPath) -> Opening<'_> {
        options.open(&self.pool, path.to_path())
    }

    operations_of_std! {
        "Returns metadata. Follows symbolic links."
        metadata(path) -> StatAt, Metadata = |path| fs::metadata(path).map(Metadata);
        "Returns metadata. Does not follow symbolic links."
        symlink_metadata(path) -> StatAt, Metadata = |path| fs::symlink_metadata(path).map(Metadata);
        "Returns the target of a symbolic link."
        read_link(path) -> ReadLink, PathBuf = fs::read_link;
        "Removes a file."
        remove_file(path) -> Unlink, () = fs::remove_file;
        "Removes an empty directory."
        remove_dir(path) -> Unlink, () = fs::remove_dir;
        "Creates a directory."
        create_dir(path) -> MakeDir, () = fs::create_dir;
        "Returns the absolute path, without symbolic links."
        canonicalize(path) -> Canonicalize, PathBuf = fs::canonicalize;
        "Renames a file or a directory. Replaces `to` if it exists."
        rename(from, to) -> Rename, () = fs::rename;
        "Creates another name for a file."
        hard_link(file, name) -> Link, () = fs::hard_link;
    }

    async_operations_of_std! {
        "Creates a directory and its parents. Succeeds if it exists."
        create_dir_all(path) -> () = fs::create_dir_all;
        "Reads a whole file."
        read(path) -> Vec<u8> = fs::read;
        "Reads a whole file as text. Fails with `InvalidData` if it is not UTF-8."
        read_to_string(path) -> String = fs::read_to_string;
        "Copies the contents and permissions of a regular file. Returns the number of bytes. Fails with `InvalidInput` \
         if `from` is not a regular file, or if both are the same file."
        copy(from, to) -> u64 = copy;
        "Returns whether `path` exists. Follows symbolic links."
        try_exists(path) -> bool = fs::exists;
        "Removes a directory and everything in it. Symbolic links are removed, not followed."
        remove_dir_all(path) -> () = fs::remove_dir_all;
    }

    /// Creates a symbolic link. Not on Windows, where links to files and to directories differ.
    ///
    /// # Errors
    ///
    /// Fails with any error of the system.
    #[cfg(unix)]
    pub fn symlink(
        &self,
        target: impl AsRef<Path>,
        name: impl OpPath,
    ) -> Operation<'_, crate::op::Symlink, io::Result<()>> {
        let (target, name) = (target.as_ref().to_owned(), name.to_path());
        self.pool
            .op(move || std::os::unix::fs::symlink(target, name))
    }

    /// Sets permissions. Follows symbolic links.
    ///
    /// # Errors
    ///
    /// Fails with any error of the system.
    pub fn set_permissions(
        &self,
        path: impl OpPath,
        permissions: fs::Permissions,
    ) -> Operation<'_, SetPermissions, io::Result<()>> {
        let path = path.to_path();
        self.pool.op(move || fs::set_permissions(path, permissions))
    }

    /// Sets times. Follows symbolic links.
    ///
    /// # Errors
    ///
    /// Fails with any error of the system. On Unix, the file must be readable or writable.
    pub fn set_times(
        &self,
        path: impl OpPath,
        times: FileTimes,
    ) -> Operation<'_, SetTimes, io::Result<()>> {
        let path = path.to_path();
        self.pool
            .op(move || open_for_times(&path)?.set_times(times))
    }

    /// Writes a whole file. Creates it if it does not exist, and replaces its contents if it does.
    ///
    /// # Errors
    ///
    /// Fails with any error of the system.
    pub fn write<P: OpPath + Send, B: IoBuf>(
        &self,
        path: P,
        contents: B,
    ) -> impl Future<Output = io::Result<()>> + Send {
        let path = path.to_path();
        let write = move || fs::File::create(path)?.write_all(bytes_of(&contents));
        self.pool.op::<WriteAt<B>, _>(write)
    }

    /// Lists a directory.
    ///
    /// # Errors
    ///
    /// Fails with any error of the system.
    pub fn read_dir(&self, path: impl OpPath) -> ReadDir {
        ReadDir::new(Arc::clone(&self.pool), path.to_path())
    }

    /// Sends a no-op to a thread and back, which measures the engine's own cost.
    ///
    /// # Errors
    ///
    /// Fails with [`EngineError::Ended`] after [`shutdown`](Engine::shutdown).
    pub fn nop(&self) -> Operation<'_, Nop, io::Result<()>> {
        self.pool.op(|| Ok(()))
    }

    /// Waits for `time`, from the first poll on.
    ///
    /// # Errors
    ///
    /// Fails with [`EngineError::Ended`] if the engine is shut down meanwhile.
    pub fn sleep(&self, time: Duration) -> Operation<'_, Sleep, io::Result<()>> {
        Operation::after(&self.pool, time, Box::new(|start| start))
    }

    /// Runs `future` for at most `time`, and drops it when the time is up.
    ///
    /// # Errors
    ///
    /// Fails with [`EngineError::TimedOut`] when the time is up, and with [`EngineError::Ended`] if the engine is shut
    /// down meanwhile.
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

    /// Shuts the engine down for all its handles. Operations that have not started, and later ones, fail with
    /// [`EngineError::Ended`]. Blocks until the others complete, for at most [`EngineBuilder::drain_timeout`].
    pub fn shutdown(&self) {
        self.pool.end();
    }
}

impl File {
    /// Wraps a file that std opened, for operations of `engine`. Writes go to their offsets, unless the system itself
    /// appends them.
    ///
    /// # Errors
    ///
    /// Never fails on this platform.
    pub fn from_std(file: fs::File, engine: &Engine) -> io::Result<File> {
        Ok(File::new(file, &engine.pool, false))
    }
}

fn copy(from: PathBuf, to: PathBuf) -> io::Result<u64> {
    let refused = |path: &Path, why: &str| {
        let what = format!("copy: {} {why}", path.display());
        Err(io::Error::new(ErrorKind::InvalidInput, what))
    };
    if !fs::metadata(&from)?.is_file() {
        return refused(&from, "is not a regular file; only those are copied");
    }
    // Copying would remove the contents.
    if is_same_file(&from, &to).unwrap_or(false) {
        return refused(&to, "is the file to copy; choose another name");
    }
    fs::copy(from, to)
}
