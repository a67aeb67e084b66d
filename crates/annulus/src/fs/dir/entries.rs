//! The entries of a directory, and their kinds, on every platform.

use std::ffi::OsStr;
use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::io;
use std::pin::Pin;

use super::{DirEntry, ReadDir};
use crate::item_stream::item_stream;

/// A kind of file.
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// # let path = dir.path().join("link");
/// use annulus::fs::FileKind;
///
/// engine.symlink("missing", &path).await?;
/// assert_eq!(engine.symlink_metadata(&path).await?.kind(), FileKind::Symlink);
/// assert!(engine.metadata(&path).await.is_err()); // follows the link
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A pipe, a socket or a device, or a directory entry whose kind could not be found out.
    Other,
}

impl DirEntry {
    /// Returns the name, without the directory.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// Returns the kind of file, without following links. If the file system does not include the kinds in its listing,
    /// the listing asks for each as `lstat(2)` does. [`FileKind::Other`] if that fails, usually because the entry was
    /// removed meanwhile.
    pub fn kind(&self) -> FileKind {
        self.kind
    }
}

impl ReadDir {
    /// Returns the next entry; `None` at the end, and after an error. May be dropped and called again without loss.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// let mut entries = engine.read_dir(dir.path().join("missing"));
    /// let error = entries.next().await.unwrap().unwrap_err(); // the first item, not the call, has the error
    /// assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    /// assert!(entries.next().await.is_none());
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `open(2)` or `getdents64(2)`, unchanged (`ENOTDIR`).
    pub async fn next(&mut self) -> Option<io::Result<DirEntry>> {
        poll_fn(|context| self.poll_next(context)).await
    }
}

item_stream!([] ReadDir, io::Result<DirEntry>);

impl IntoFuture for ReadDir {
    type Output = io::Result<Vec<DirEntry>>;
    type IntoFuture = Pin<Box<dyn Future<Output = io::Result<Vec<DirEntry>>> + Send>>;

    fn into_future(mut self) -> Self::IntoFuture {
        Box::pin(async move {
            let mut entries = Vec::new();
            while let Some(entry) = self.next().await {
                entries.push(entry?);
            }
            Ok(entries)
        })
    }
}

impl fmt::Debug for ReadDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadDir").finish_non_exhaustive()
    }
}
