//! The file API of Tokio on an engine of the process: `use tokio::fs;` becomes `use annulus::tokio::fs;`.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
//! # let dir = tempfile::tempdir()?; let path = dir.path().join("greeting");
//! use annulus::tokio::fs;
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! fs::write(&path, "hello").await?;
//! let mut file = fs::OpenOptions::new().read(true).append(true).open(&path).await?;
//! file.write_all(b" world").await?;
//! file.flush().await?;
//! let mut text = String::new();
//! fs::File::open(&path).await?.read_to_string(&mut text).await?;
//! assert_eq!(text, "hello world");
//! # Ok(()) }
//! ```
//!
//! Functions, types, signatures and errors are those of [`tokio::fs`](https://docs.rs/tokio/1.54.1/tokio/fs) 1.54. The
//! [guide](crate::guide::moving) lists what differs. [`File`] also has the positional operations of
//! [`annulus::File`](crate::File). The functions and files also work outside of a Tokio runtime.
//!
//! # The engine
//!
//! The first call in a process starts [an engine](engine) with the default settings; [`set_engine`] sets another one
//! before. Nothing drops it, so it needs no runtime to stay: files may move from a runtime to another one that outlives
//! it.
//!
//! - **End of a runtime.** Operations of its tasks are cancelled with their futures. Bytes that a file has taken are
//!   written nevertheless.
//! - **End of the process.** `exit(3)`, which the return of `main` calls, waits until bytes that files have taken are
//!   with the kernel, at most ten seconds. A signal and `_exit(2)` do not wait.
//! - **Forked children** start another engine with their first call. Files that were opened before the fork
//!   belong to the parent: operations on them fail in the child (`EngineError::Forked`), also those in flight. The
//!   parent writes the bytes that they have taken.

mod dir;
mod file;
mod open_options;
mod process;
mod shared_position;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::fs::{Metadata, Permissions};
use std::io;
use std::path::{Path, PathBuf};

use process::{of_process, run_blocking};

pub use crate::fs::FileTimes;
pub use dir::{DirBuilder, DirEntry, ReadDir, read_dir};
pub use file::File;
pub use open_options::OpenOptions;
pub use process::{engine, set_engine};
#[cfg(windows)]
pub use windows::{symlink_dir, symlink_file};

/// Reads a whole file.
///
/// A small file that is in the page cache of a local file system is read on the calling thread.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// # let dir = tempfile::tempdir()?;
/// use annulus::tokio::fs;
///
/// # std::fs::write(dir.path().join("data"), [1, 2, 3])?;
/// let bytes = fs::read(dir.path().join("data")).await?;
/// assert_eq!(bytes, [1, 2, 3]);
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// Fails with any error of `open(2)` or `read(2)`, unchanged (`ENOENT`; `EISDIR` for a directory).
pub async fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    of_process().read(path.as_ref()).await
}

/// Reads a whole file as text.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// # let dir = tempfile::tempdir()?;
/// use annulus::tokio::fs;
///
/// # std::fs::write(dir.path().join("data"), b"ok \xff")?;
/// let error = fs::read_to_string(dir.path().join("data")).await.unwrap_err();
/// assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// Fails with `InvalidData` if the file is not valid UTF-8, and otherwise like [`read`].
pub async fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    of_process().read_to_string(path.as_ref()).await
}

/// Writes a file, and replaces the one that exists.
///
/// A blocking thread opens and writes it. If the future is dropped after that has begun, the file is written whole.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// # let dir = tempfile::tempdir()?;
/// use annulus::tokio::fs;
///
/// let path = dir.path().join("data");
/// fs::write(&path, "a longer text").await?;
/// fs::write(&path, b"short").await?; // nothing of the longer one stays
/// assert_eq!(fs::read_to_string(&path).await?, "short");
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// Fails with any error of `open(2)` or `write(2)`, unchanged (`ENOSPC`). The file then may be empty or incomplete.
pub async fn write(path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> io::Result<()> {
    let (path, contents) = (path.as_ref().to_owned(), contents.as_ref().to_vec());
    run_blocking(move || std::fs::write(path, contents)).await
}

/// Copies the contents and the permissions of a file, and returns the number of bytes. Replaces the contents of a file
/// that exists.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// # let dir = tempfile::tempdir()?;
/// use annulus::tokio::fs;
///
/// # let (from, to) = (dir.path().join("from"), dir.path().join("to")); std::fs::write(&from, "data")?;
/// assert_eq!(fs::copy(&from, &to).await?, 4);
/// // With `tokio::fs`, the file would be empty now.
/// let error = fs::copy(&to, &to).await.unwrap_err();
/// assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
/// assert_eq!(fs::read(&to).await?, b"data");
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// Fails with any error of `open(2)`, `read(2)` or `write(2)`, unchanged, and with `InvalidInput` if `from` is not a
/// regular file, or is the file `to`.
pub async fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<u64> {
    let (from, to) = (from.as_ref().to_owned(), to.as_ref().to_owned());
    run_blocking(move || {
        if is_same_file(&from, &to) {
            let what = format!(
                "copy: {} is the file to copy; choose another name",
                to.display()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        std::fs::copy(from, to)
    })
    .await
}

/// Renames a file or directory, and replaces a file that exists.
///
/// # Errors
///
/// Fails with any error of `rename(2)`, unchanged (`EXDEV` for another file system).
pub async fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    of_process().rename(from.as_ref(), to.as_ref()).await
}

/// Removes the name of a file. The file exists until it is closed everywhere.
///
/// # Errors
///
/// Fails with any error of `unlink(2)`, unchanged (`ENOENT`; `EISDIR` for a directory).
pub async fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    of_process().remove_file(path.as_ref()).await
}

/// Removes an empty directory.
///
/// # Errors
///
/// Fails with any error of `rmdir(2)`, unchanged (`ENOTEMPTY`; `ENOTDIR` for a file).
pub async fn remove_dir(path: impl AsRef<Path>) -> io::Result<()> {
    of_process().remove_dir(path.as_ref()).await
}

/// Removes a directory with everything in it. Symbolic links are removed, not followed.
///
/// A blocking thread does so. Dropping the future does not stop it.
///
/// # Errors
///
/// Fails with any error of std's function, unchanged (`ENOENT`). A part of the contents may be removed then.
pub async fn remove_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref().to_owned();
    run_blocking(move || std::fs::remove_dir_all(path)).await
}

/// Creates a directory.
///
/// # Errors
///
/// Fails with any error of `mkdir(2)`, unchanged (`EEXIST`; `ENOENT` if the parent is missing).
pub async fn create_dir(path: impl AsRef<Path>) -> io::Result<()> {
    of_process().create_dir(path.as_ref()).await
}

/// Creates a directory and its missing parents. Succeeds if the directory exists.
///
/// # Errors
///
/// Fails with any error of `mkdir(2)`, unchanged (`EEXIST` or `ENOTDIR` if a part of the path is a file).
pub async fn create_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref().to_owned();
    run_blocking(move || std::fs::create_dir_all(path)).await
}

/// Returns the metadata of a file, and follows symbolic links.
///
/// The calling thread makes the query if the kernel has the path of a local file system in its cache, and a blocking
/// thread otherwise.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// # let dir = tempfile::tempdir()?;
/// use annulus::tokio::fs;
///
/// # std::fs::write(dir.path().join("data"), [1, 2, 3])?;
/// let metadata = fs::metadata(dir.path().join("data")).await?;
/// assert!(metadata.is_file() && metadata.len() == 3); // the type of std
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// Fails with any error of `stat(2)`, unchanged (`ENOENT`).
pub async fn metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    query(path.as_ref(), true).await
}

/// Returns the metadata of a file; for a symbolic link that of the link.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// # let dir = tempfile::tempdir()?;
/// use annulus::tokio::fs;
///
/// let path = dir.path().join("link");
/// fs::symlink("missing", &path).await?;
/// assert!(fs::symlink_metadata(&path).await?.is_symlink());
/// assert!(fs::metadata(&path).await.is_err()); // of the target
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// Fails with any error of `lstat(2)`, unchanged (`ENOENT`).
pub async fn symlink_metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    query(path.as_ref(), false).await
}

/// Returns whether a path leads to something; `false` for a symbolic link to nothing.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// # let dir = tempfile::tempdir()?;
/// use annulus::tokio::fs;
///
/// assert!(!fs::try_exists(dir.path().join("missing")).await?);
/// // A path below a file is an error, not `false`.
/// # std::fs::write(dir.path().join("file"), "")?;
/// assert!(fs::try_exists(dir.path().join("file/below")).await.is_err());
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// Fails with any error of `stat(2)` except `ENOENT`, unchanged (`EACCES`, `ENOTDIR`).
pub async fn try_exists(path: impl AsRef<Path>) -> io::Result<bool> {
    of_process().try_exists(path.as_ref()).await
}

/// Sets the permissions of a file, and follows symbolic links.
///
/// # Errors
///
/// Fails with any error of `chmod(2)`, unchanged (`EPERM`).
pub async fn set_permissions(path: impl AsRef<Path>, permissions: Permissions) -> io::Result<()> {
    of_process()
        .set_permissions(path.as_ref(), permissions)
        .await
}

/// Gives a file one more name, `link`, on the same file system.
///
/// # Errors
///
/// Fails with any error of `link(2)`, unchanged (`EEXIST`, `EXDEV`).
pub async fn hard_link(original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
    of_process()
        .hard_link(original.as_ref(), link.as_ref())
        .await
}

/// Creates a symbolic link `link`, which leads to `original` whether that exists or not.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// # let dir = tempfile::tempdir()?;
/// use annulus::tokio::fs;
///
/// fs::write(dir.path().join("v2"), "new").await?;
/// fs::symlink("v2", dir.path().join("current")).await?; // relative to the folder of the link
/// assert_eq!(fs::read(dir.path().join("current")).await?, b"new");
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// Fails with any error of `symlink(2)`, unchanged (`EEXIST`).
#[cfg(unix)]
pub async fn symlink(original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
    of_process().symlink(original.as_ref(), link.as_ref()).await
}

/// Returns the target of a symbolic link.
///
/// # Errors
///
/// Fails with any error of `readlink(2)`, unchanged (`EINVAL` if it is not a link).
pub async fn read_link(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    of_process().read_link(path.as_ref()).await
}

/// Returns the absolute path without symbolic links, `.` and `..`.
///
/// # Errors
///
/// Fails with any error of `realpath(3)`, unchanged (`ENOENT`).
pub async fn canonicalize(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    of_process().canonicalize(path.as_ref()).await
}

/// Returns the metadata that std would return.
async fn query(path: &Path, follow: bool) -> io::Result<Metadata> {
    of_process().std_metadata(path, follow).await
}

/// Returns whether both paths lead to the same file, which a copy to itself would truncate.
#[cfg(unix)]
fn is_same_file(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (std::fs::metadata(one), std::fs::metadata(other)) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}

/// Other systems refuse such a copy.
#[cfg(not(unix))]
fn is_same_file(_: &Path, _: &Path) -> bool {
    false
}
