//! The methods of [`Engine`] that every platform has. Those of the modules below `fs` that they call differ.
//! One long file, because three quarters of it are the documentation of these methods.

use std::fs::Permissions;
use std::future::poll_fn;
use std::io;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::{Engine, EngineBuilder};
use crate::backend::BackendInUse;
use crate::buf::IoBuf;
use crate::driver::Operation;
use crate::error::SetupError;
use crate::fs::{
    File, FileTimes, Metadata, OpPath, OpenOptions, Opening, ReadDir, copy, paths, remove, whole,
};
use crate::op::{
    Canonicalize, Link, MakeDir, Nop, ReadLink, Rename, SetPermissions, SetTimes, Sleep, StatAt,
    Unlink,
};
use crate::sys::engine_error::EngineError;

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
        paths::rename(&self.submitter, from.path_in(), to.path_in())
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
    #[cfg(unix)]
    pub fn symlink(
        &self,
        target: impl AsRef<std::path::Path>,
        name: impl OpPath,
    ) -> Operation<'_, crate::op::Symlink, io::Result<()>> {
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
        paths::set_permissions(&self.submitter, path.path_in(), permissions)
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
    /// blocking thread, because io_uring has no opcode for it. A path in a [`Dir`](crate::fs::Dir) needs `/proc`.
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
        self.submitter.nop()
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
        self.submitter.sleep(time)
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
        self.end();
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
