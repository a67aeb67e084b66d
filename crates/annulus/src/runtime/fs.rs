//! Files on a runtime's cores. They are ordinary [`File`]s whose operations go to the ring of the calling core. Other
//! threads may use them, too, through the cores.
//!
//! If a core ends, another core runs the operations that were queued and not started. After the runtime has ended,
//! operations fail with [`EngineError::Ended`](crate::EngineError::Ended).
//!
//! Every function here panics at its first poll if the calling thread is not a runtime core.

use std::ffi::{OsStr, OsString};
use std::fs::Permissions;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::executor;
use crate::buf::{IoBuf, Region};
use crate::driver::Submitter;
use crate::fs::{File, FileTimes, Metadata, OpenOptions, ReadDir, copy, paths, whole};
use crate::sys::call;

/// Returns the submitter of the calling core's files.
fn files() -> Arc<Submitter> {
    let executor = executor::current();
    let files = executor.as_ref().and_then(|executor| executor.files());
    let Some(files) = files else {
        panic!(
            "runtime::fs needs a runtime core, and this thread is not one; use an Engine on other threads"
        );
    };
    Arc::clone(files)
}

/// Opens a file for reading.
///
/// # Errors
///
/// Fails with any error of `open(2)`, unchanged (`ENOENT`, `EACCES`, …).
pub async fn open(path: impl AsRef<Path>) -> io::Result<File> {
    open_with(OpenOptions::new().read(true), path).await
}

/// Opens a file for writing. Creates it if it does not exist, and truncates it if it does.
///
/// # Errors
///
/// Fails with any error of `open(2)`, unchanged.
pub async fn create(path: impl AsRef<Path>) -> io::Result<File> {
    open_with(&paths::to_create(), path).await
}

/// Creates a file without a name on the file system of the directory `dir`; see
/// [`Engine::create_unnamed`](crate::Engine::create_unnamed).
///
/// # Errors
///
/// Fails with any error of `open(2)`, unchanged (`EOPNOTSUPP` if the file system does not support it).
pub async fn create_unnamed(dir: impl AsRef<Path>) -> io::Result<File> {
    open_with(&paths::to_create_unnamed(), dir).await
}

/// Opens a file with the given [`OpenOptions`].
///
/// # Errors
///
/// Fails with any error of `open(2)`, unchanged, and with `InvalidInput` if options exclude each other.
pub async fn open_with(options: &OpenOptions, path: impl AsRef<Path>) -> io::Result<File> {
    options.open(&files(), path.as_ref()).await
}

/// Takes over a file of std.
///
/// # Errors
///
/// Fails if the kernel can't report the file's flags or its direct-I/O alignment.
///
/// # Panics
///
/// Panics if the calling thread is not a runtime core.
pub fn from_std(file: std::fs::File) -> io::Result<File> {
    paths::adopt(&files(), file)
}

/// Loads a whole file into new memory; see [`Engine::load_file`](crate::Engine::load_file).
///
/// # Errors
///
/// Fails as [`Engine::load_file`](crate::Engine::load_file) does.
pub async fn load_file(path: impl AsRef<Path>) -> io::Result<Region> {
    paths::load_file(&files(), path.as_ref()).await
}

/// Returns the metadata of the file at `path`. Follows symbolic links.
///
/// # Errors
///
/// Fails with any error of `statx(2)`, unchanged.
pub async fn metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    paths::metadata(&files(), path.as_ref(), true).await
}

/// Returns the metadata of the file at `path`. Does not follow a symbolic link.
///
/// # Errors
///
/// Fails with any error of `statx(2)`, unchanged.
pub async fn symlink_metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    paths::metadata(&files(), path.as_ref(), false).await
}

/// Renames a file or directory. Replaces `to` if it exists.
///
/// # Errors
///
/// Fails with any error of `rename(2)`, unchanged (`EXDEV` across file systems).
pub async fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    paths::rename(&files(), from.as_ref(), to.as_ref(), 0).await
}

/// Renames a file or directory, and fails if `to` exists; see [`Engine::rename_new`](crate::Engine::rename_new).
///
/// # Errors
///
/// Fails with any error of `renameat2(2)`, unchanged (`EEXIST`).
pub async fn rename_new(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    let flags = call::RENAME_NOREPLACE;
    paths::rename(&files(), from.as_ref(), to.as_ref(), flags).await
}

/// Exchanges two names atomically; see [`Engine::exchange`](crate::Engine::exchange).
///
/// # Errors
///
/// Fails with any error of `renameat2(2)`, unchanged (`ENOENT`).
pub async fn exchange(one: impl AsRef<Path>, other: impl AsRef<Path>) -> io::Result<()> {
    let flags = call::RENAME_EXCHANGE;
    paths::rename(&files(), one.as_ref(), other.as_ref(), flags).await
}

/// Gives the file at `file` another name on the same file system. A symbolic link is not followed.
///
/// # Errors
///
/// Fails with any error of `link(2)`, unchanged (`EEXIST`; `EPERM` for a directory).
pub async fn hard_link(file: impl AsRef<Path>, name: impl AsRef<Path>) -> io::Result<()> {
    paths::hard_link(&files(), file.as_ref(), name.as_ref()).await
}

/// Creates a symbolic link at `name` that points to `target`, which need not exist.
///
/// # Errors
///
/// Fails with any error of `symlink(2)`, unchanged (`EEXIST`).
pub async fn symlink(target: impl AsRef<Path>, name: impl AsRef<Path>) -> io::Result<()> {
    paths::symlink(&files(), target.as_ref(), name.as_ref()).await
}

/// Returns the target of the symbolic link at `path`. It runs on a blocking thread.
///
/// # Errors
///
/// Fails with any error of `readlink(2)`, unchanged (`EINVAL` if it is not a symbolic link).
pub async fn read_link(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    paths::read_link(&files(), path.as_ref()).await
}

/// Sets the permissions of the file at `path`, on a blocking thread. Follows symbolic links.
///
/// # Errors
///
/// Fails with any error of `chmod(2)`, unchanged (`EPERM`).
pub async fn set_permissions(path: impl AsRef<Path>, permissions: Permissions) -> io::Result<()> {
    paths::set_permissions(&files(), path.as_ref(), &permissions).await
}

/// Sets the times of the last read and of the last change of the file at `path`, on a blocking thread. Follows symbolic
/// links.
///
/// # Errors
///
/// Fails with any error of `utimensat(2)`, unchanged (`EPERM`).
pub async fn set_times(path: impl AsRef<Path>, times: FileTimes) -> io::Result<()> {
    paths::set_times(&files(), path.as_ref(), times).await
}

/// Returns the value of an extended attribute; see [`Engine::get_xattr`](crate::Engine::get_xattr).
///
/// # Errors
///
/// Fails with any error of `getxattr(2)`, unchanged (`ENODATA` if the file does not have it).
pub async fn get_xattr(path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> io::Result<Vec<u8>> {
    paths::get_xattr(&files(), path.as_ref(), name.as_ref()).await
}

/// Sets an extended attribute; see [`Engine::set_xattr`](crate::Engine::set_xattr).
///
/// # Errors
///
/// Fails with any error of `setxattr(2)`, unchanged.
pub async fn set_xattr(
    path: impl AsRef<Path>,
    name: impl AsRef<OsStr>,
    value: impl Into<Vec<u8>>,
) -> io::Result<()> {
    paths::set_xattr(&files(), path.as_ref(), name.as_ref(), value.into()).await
}

/// Returns the names of the extended attributes of the file at `path`, on a blocking thread. Follows symbolic links.
///
/// # Errors
///
/// Fails with any error of `listxattr(2)`, unchanged.
pub async fn list_xattrs(path: impl AsRef<Path>) -> io::Result<Vec<OsString>> {
    paths::list_xattrs(&files(), path.as_ref()).await
}

/// Removes an extended attribute of the file at `path`, on a blocking thread. Follows symbolic links.
///
/// # Errors
///
/// Fails with any error of `removexattr(2)`, unchanged (`ENODATA` if the file does not have it).
pub async fn remove_xattr(path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> io::Result<()> {
    paths::remove_xattr(&files(), path.as_ref(), name.as_ref()).await
}

/// Removes a file.
///
/// # Errors
///
/// Fails with any error of `unlink(2)`, unchanged.
pub async fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    paths::remove_file(&files(), path.as_ref()).await
}

/// Removes an empty directory.
///
/// # Errors
///
/// Fails with any error of `rmdir(2)`, unchanged (`ENOTEMPTY`).
pub async fn remove_dir(path: impl AsRef<Path>) -> io::Result<()> {
    paths::remove_dir(&files(), path.as_ref()).await
}

/// Creates a directory, with all permissions less the process's umask.
///
/// # Errors
///
/// Fails with any error of `mkdir(2)`, unchanged.
pub async fn create_dir(path: impl AsRef<Path>) -> io::Result<()> {
    paths::create_dir(&files(), path.as_ref()).await
}

/// Creates a directory and all of its parents that do not exist. Succeeds if it exists.
///
/// # Errors
///
/// Fails with any error of `mkdir(2)`, unchanged.
pub async fn create_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    whole::create_dir_all(&files(), path.as_ref()).await
}

/// Reads a whole file; see [`Engine::read`](crate::Engine::read).
///
/// # Errors
///
/// Fails with any error of `open(2)` or `read(2)`, unchanged.
pub async fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    whole::read(&files(), path.as_ref()).await
}

/// Reads a whole file as UTF-8.
///
/// # Errors
///
/// Fails with `InvalidData` if the file is not UTF-8, and otherwise like [`read`].
pub async fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    whole::read_to_string(&files(), path.as_ref()).await
}

/// Writes a whole file; see [`Engine::write`](crate::Engine::write).
///
/// # Errors
///
/// Fails with any error of `open(2)` or `write(2)`, unchanged.
pub async fn write<B: IoBuf>(path: impl AsRef<Path>, contents: B) -> io::Result<()> {
    whole::write(&files(), path.as_ref(), contents).await
}

/// Copies a file with its permissions; see [`Engine::copy`](crate::Engine::copy).
///
/// # Errors
///
/// Fails as [`Engine::copy`](crate::Engine::copy) does.
pub async fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<u64> {
    copy::copy(&files(), from.as_ref(), to.as_ref()).await
}

/// Returns whether `path` exists. Follows symbolic links.
///
/// # Errors
///
/// Fails with any error of `statx(2)` except `ENOENT`, unchanged.
pub async fn try_exists(path: impl AsRef<Path>) -> io::Result<bool> {
    whole::try_exists(&files(), path.as_ref()).await
}

/// Lists a directory; see [`Engine::read_dir`](crate::Engine::read_dir).
///
/// # Errors
///
/// Fails with any error of `open(2)` or `getdents64(2)`, unchanged (`ENOTDIR`).
pub fn read_dir(path: impl AsRef<Path>) -> ReadDir {
    ReadDir::new(files, path.as_ref())
}
