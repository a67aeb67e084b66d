//! Files on a runtime's core: opened here, they are ordinary [`File`]s. What is asked of one goes to the ring
//! of the calling core, without another thread; other threads may use it as well, through the cores.
//!
//! Operations that were queued on a core and not begun when it ended are done by another core does. When the runtime
//! has ended, files that are still there answer [`EngineError::Ended`](crate::EngineError::Ended).
//!
//! Every function here panics outside a runtime, at its first poll.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::executor;
use crate::buf::Region;
use crate::driver::Submitter;
use crate::fs::{DirEntry, File, Metadata, OpenOptions, paths};

/// Where the calling core's files are submitted.
fn files() -> Arc<Submitter> {
    let executor = executor::current();
    let files = executor.as_ref().and_then(|executor| executor.files());
    let Some(files) = files else {
        panic!("a file was opened outside a runtime; other threads use an Engine");
    };
    Arc::clone(files)
}

/// Opens a file for reading.
///
/// # Errors
///
/// The kernel's, errno kept (`ENOENT`, `EACCES`, …).
pub async fn open(path: impl AsRef<Path>) -> io::Result<File> {
    open_with(OpenOptions::new().read(true), path).await
}

/// Makes a file, or cuts the one that is there to nothing, for writing.
///
/// # Errors
///
/// The kernel's, errno kept.
pub async fn create(path: impl AsRef<Path>) -> io::Result<File> {
    open_with(&paths::to_create(), path).await
}

/// Opens a file in any way [`OpenOptions`] can say.
///
/// # Errors
///
/// The kernel's, errno kept; `InvalidInput` for options that exclude one another.
pub async fn open_with(options: &OpenOptions, path: impl AsRef<Path>) -> io::Result<File> {
    options.open(&files(), path.as_ref()).await
}

/// Takes over a file that std opened.
///
/// # Errors
///
/// The kernel's, if it can't tell the file's flags or direct-I/O alignment.
///
/// # Panics
///
/// Outside a runtime.
pub fn from_std(file: std::fs::File) -> io::Result<File> {
    paths::adopt(&files(), file)
}

/// Loads a whole file into memory of its own; see [`Engine::load_file`](crate::Engine::load_file).
///
/// # Errors
///
/// As there.
pub async fn load_file(path: impl AsRef<Path>) -> io::Result<Region> {
    paths::load_file(&files(), path.as_ref()).await
}

/// What the file system knows about what `path` names; links are followed.
///
/// # Errors
///
/// The kernel's, errno kept.
pub async fn metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    paths::metadata(&files(), path.as_ref(), true).await
}

/// The same about a link itself.
///
/// # Errors
///
/// The kernel's, errno kept.
pub async fn symlink_metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    paths::metadata(&files(), path.as_ref(), false).await
}

/// Renames a file or directory; what `to` names is replaced.
///
/// # Errors
///
/// The kernel's, errno kept (`EXDEV` across file systems).
pub async fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    paths::rename(&files(), from.as_ref(), to.as_ref()).await
}

/// Removes a file's name.
///
/// # Errors
///
/// The kernel's, errno kept.
pub async fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    paths::remove_file(&files(), path.as_ref()).await
}

/// Removes an empty directory.
///
/// # Errors
///
/// The kernel's, errno kept (`ENOTEMPTY`).
pub async fn remove_dir(path: impl AsRef<Path>) -> io::Result<()> {
    paths::remove_dir(&files(), path.as_ref()).await
}

/// Makes a directory, with all permissions less the process's umask.
///
/// # Errors
///
/// The kernel's, errno kept.
pub async fn create_dir(path: impl AsRef<Path>) -> io::Result<()> {
    paths::create_dir(&files(), path.as_ref()).await
}

/// Lists a directory, in the file system's order, without `.` and `..`. On a blocking thread: io_uring
/// has no opcode for it.
///
/// # Errors
///
/// The kernel's, errno kept (`ENOTDIR`).
pub async fn read_dir(path: impl AsRef<Path>) -> io::Result<Vec<DirEntry>> {
    paths::read_dir(&files(), path.as_ref()).await
}
