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
use crate::fs::{
    Dir, File, FileTimes, Metadata, OpPath, OpenOptions, ReadDir, copy, paths, remove, whole,
};
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
pub async fn open(path: impl OpPath) -> io::Result<File> {
    open_with(OpenOptions::new().read(true), path).await
}

/// Opens a file for writing. Creates it if it does not exist, and truncates it if it does.
///
/// # Errors
///
/// Fails with any error of `open(2)`, unchanged.
pub async fn create(path: impl OpPath) -> io::Result<File> {
    open_with(&paths::to_create(), path).await
}

/// Creates a file without a name on the file system of the directory `dir`; see
/// [`Engine::create_unnamed`](crate::Engine::create_unnamed).
///
/// # Errors
///
/// Fails with any error of `open(2)`, unchanged (`EOPNOTSUPP` if the file system does not support it).
pub async fn create_unnamed(dir: impl OpPath) -> io::Result<File> {
    open_with(&paths::to_create_unnamed(), dir).await
}

/// Opens a file with the given [`OpenOptions`].
///
/// # Errors
///
/// Fails with any error of `open(2)`, unchanged, and with `InvalidInput` if options exclude each other.
pub async fn open_with(options: &OpenOptions, path: impl OpPath) -> io::Result<File> {
    options.open(&files(), path.path_in()).await
}

/// Opens a directory as the base of paths; see [`Dir`].
///
/// # Errors
///
/// Fails with any error of `open(2)`, unchanged (`ENOTDIR`).
pub async fn open_dir(path: impl OpPath) -> io::Result<Dir> {
    paths::open_dir(&files(), path.path_in()).await
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
pub async fn load_file(path: impl OpPath) -> io::Result<Region> {
    paths::load_file(&files(), path.path_in()).await
}

/// Returns the metadata of the file at `path`. Follows symbolic links.
///
/// # Errors
///
/// Fails with any error of `statx(2)`, unchanged.
pub async fn metadata(path: impl OpPath) -> io::Result<Metadata> {
    paths::metadata(&files(), path.path_in(), true).await
}

/// Returns the metadata of the file at `path`. Does not follow a symbolic link.
///
/// # Errors
///
/// Fails with any error of `statx(2)`, unchanged.
pub async fn symlink_metadata(path: impl OpPath) -> io::Result<Metadata> {
    paths::metadata(&files(), path.path_in(), false).await
}

/// Renames a file or directory. Replaces `to` if it exists.
///
/// # Errors
///
/// Fails with any error of `rename(2)`, unchanged (`EXDEV` across file systems).
pub async fn rename(from: impl OpPath, to: impl OpPath) -> io::Result<()> {
    paths::rename(&files(), from.path_in(), to.path_in(), 0).await
}

/// Renames a file or directory, and fails if `to` exists; see [`Engine::rename_new`](crate::Engine::rename_new).
///
/// # Errors
///
/// Fails with any error of `renameat2(2)`, unchanged (`EEXIST`).
pub async fn rename_new(from: impl OpPath, to: impl OpPath) -> io::Result<()> {
    let flags = call::RENAME_NOREPLACE;
    paths::rename(&files(), from.path_in(), to.path_in(), flags).await
}

/// Exchanges two names atomically; see [`Engine::exchange`](crate::Engine::exchange).
///
/// # Errors
///
/// Fails with any error of `renameat2(2)`, unchanged (`ENOENT`).
pub async fn exchange(one: impl OpPath, other: impl OpPath) -> io::Result<()> {
    let flags = call::RENAME_EXCHANGE;
    paths::rename(&files(), one.path_in(), other.path_in(), flags).await
}

/// Gives the file at `file` another name on the same file system. A symbolic link is not followed.
///
/// # Errors
///
/// Fails with any error of `link(2)`, unchanged (`EEXIST`; `EPERM` for a directory).
pub async fn hard_link(file: impl OpPath, name: impl OpPath) -> io::Result<()> {
    paths::hard_link(&files(), file.path_in(), name.path_in()).await
}

/// Creates a symbolic link at `name` that points to `target`, which need not exist.
///
/// # Errors
///
/// Fails with any error of `symlink(2)`, unchanged (`EEXIST`).
pub async fn symlink(target: impl AsRef<Path>, name: impl OpPath) -> io::Result<()> {
    paths::symlink(&files(), target.as_ref(), name.path_in()).await
}

/// Returns the target of the symbolic link at `path`. It runs on a blocking thread.
///
/// # Errors
///
/// Fails with any error of `readlink(2)`, unchanged (`EINVAL` if it is not a symbolic link).
pub async fn read_link(path: impl OpPath) -> io::Result<PathBuf> {
    paths::read_link(&files(), path.path_in()).await
}

/// Sets the permissions of the file at `path`, on a blocking thread. Follows symbolic links.
///
/// # Errors
///
/// Fails with any error of `chmod(2)`, unchanged (`EPERM`).
pub async fn set_permissions(path: impl OpPath, permissions: Permissions) -> io::Result<()> {
    paths::set_permissions(&files(), path.path_in(), &permissions).await
}

/// Sets the times of the last read and of the last change of the file at `path`, on a blocking thread. Follows symbolic
/// links.
///
/// # Errors
///
/// Fails with any error of `utimensat(2)`, unchanged (`EPERM`).
pub async fn set_times(path: impl OpPath, times: FileTimes) -> io::Result<()> {
    paths::set_times(&files(), path.path_in(), times).await
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
pub async fn remove_file(path: impl OpPath) -> io::Result<()> {
    paths::remove_file(&files(), path.path_in()).await
}

/// Removes an empty directory.
///
/// # Errors
///
/// Fails with any error of `rmdir(2)`, unchanged (`ENOTEMPTY`).
pub async fn remove_dir(path: impl OpPath) -> io::Result<()> {
    paths::remove_dir(&files(), path.path_in()).await
}

/// Creates a directory, with all permissions less the process's umask.
///
/// # Errors
///
/// Fails with any error of `mkdir(2)`, unchanged.
pub async fn create_dir(path: impl OpPath) -> io::Result<()> {
    paths::create_dir(&files(), path.path_in()).await
}

/// Creates a directory and all of its parents that do not exist. Succeeds if it exists.
///
/// # Errors
///
/// Fails with any error of `mkdir(2)`, unchanged.
pub async fn create_dir_all(path: impl OpPath) -> io::Result<()> {
    whole::create_dir_all(&files(), path.path_in()).await
}

/// Reads a whole file; see [`Engine::read`](crate::Engine::read).
///
/// # Errors
///
/// Fails with any error of `open(2)` or `read(2)`, unchanged.
pub async fn read(path: impl OpPath) -> io::Result<Vec<u8>> {
    whole::read(&files(), path.path_in()).await
}

/// Reads a whole file as UTF-8.
///
/// # Errors
///
/// Fails with `InvalidData` if the file is not UTF-8, and otherwise like [`read`].
pub async fn read_to_string(path: impl OpPath) -> io::Result<String> {
    whole::read_to_string(&files(), path.path_in()).await
}

/// Writes a whole file; see [`Engine::write`](crate::Engine::write).
///
/// # Errors
///
/// Fails with any error of `open(2)` or `write(2)`, unchanged.
pub async fn write<B: IoBuf>(path: impl OpPath, contents: B) -> io::Result<()> {
    whole::write(&files(), path.path_in(), contents).await
}

/// Copies a file with its permissions; see [`Engine::copy`](crate::Engine::copy).
///
/// # Errors
///
/// Fails as [`Engine::copy`](crate::Engine::copy) does.
pub async fn copy(from: impl OpPath, to: impl OpPath) -> io::Result<u64> {
    copy::copy(&files(), from.path_in(), to.path_in()).await
}

/// Returns whether `path` exists. Follows symbolic links.
///
/// # Errors
///
/// Fails with any error of `statx(2)` except `ENOENT`, unchanged.
pub async fn try_exists(path: impl OpPath) -> io::Result<bool> {
    whole::try_exists(&files(), path.path_in()).await
}

/// Removes a directory and everything in it; see [`Engine::remove_dir_all`](crate::Engine::remove_dir_all).
///
/// # Errors
///
/// Fails as [`Engine::remove_dir_all`](crate::Engine::remove_dir_all) does.
pub async fn remove_dir_all(path: impl OpPath) -> io::Result<()> {
    remove::remove_dir_all(&files(), path.path_in()).await
}

/// Returns the absolute path of an existing file, without symbolic links, on a blocking thread.
///
/// # Errors
///
/// Fails with any error of `realpath(3)`, unchanged (`ENOENT`, `ELOOP`, `ENOTDIR`).
pub async fn canonicalize(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    paths::canonicalize(&files(), path.as_ref()).await
}

/// Lists a directory; see [`Engine::read_dir`](crate::Engine::read_dir).
///
/// # Errors
///
/// Fails with any error of `open(2)` or `getdents64(2)`, unchanged (`ENOTDIR`).
pub fn read_dir(path: impl OpPath) -> ReadDir {
    ReadDir::new(files, path.path_in())
}
