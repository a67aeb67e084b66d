//! Metadata, and directory listings.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::future::{IntoFuture, poll_fn};
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::driver::Pool;
use crate::item_stream::item_stream;
use crate::op::ListDir;

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// Another kind, such as a pipe, or an unknown one.
    Other,
}

impl FileKind {
    fn of(kind: fs::FileType) -> FileKind {
        match () {
            () if kind.is_file() => FileKind::File,
            () if kind.is_dir() => FileKind::Dir,
            () if kind.is_symlink() => FileKind::Symlink,
            () => FileKind::Other,
        }
    }
}

/// Metadata of a file.
#[derive(Debug)]
pub struct Metadata(pub(crate) fs::Metadata);

/// Implements accessors.
macro_rules! metadata {
    ($($about:literal $([$only:ident])? $name:ident: $of:ty = |$metadata:ident| $value:expr;)*) => {
        $(
            #[doc = $about]
            $(#[cfg($only)])?
            #[allow(clippy::len_without_is_empty)] // Like std: the length of a file, not of a container.
            pub fn $name(&self) -> $of {
                let $metadata = &self.0;
                $value
            }
        )*
    };
}

impl Metadata {
    metadata! {
        "Returns the length of the file, bytes."
        len: u64 = |metadata| metadata.len();
        "Returns the kind of the file."
        kind: FileKind = |metadata| FileKind::of(metadata.file_type());
        "Returns whether this is a regular file."
        is_file: bool = |metadata| metadata.is_file();
        "Returns whether this is a directory."
        is_dir: bool = |metadata| metadata.is_dir();
        "Returns the time of the last change of the contents."
        modified: SystemTime = |metadata| metadata.modified().unwrap_or(UNIX_EPOCH);
        "Returns the time of the last access."
        accessed: SystemTime = |metadata| metadata.accessed().unwrap_or(UNIX_EPOCH);
        "Returns the time of the creation; `None` if the file system does not store it."
        created: Option<SystemTime> = |metadata| metadata.created().ok();
        "Returns the permissions, without the kind. Not on Windows."
        [unix] mode: u32 = |metadata| std::os::unix::fs::MetadataExt::mode(metadata) & 0o7777;
    }
}

/// An entry of a directory.
#[derive(Clone, Debug)]
pub struct DirEntry {
    name: OsString,
    kind: FileKind,
}

impl DirEntry {
    fn new(entry: &fs::DirEntry) -> DirEntry {
        DirEntry {
            name: entry.file_name(),
            kind: entry.file_type().map_or(FileKind::Other, FileKind::of),
        }
    }

    /// Returns the name, without the directory.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// Returns the kind of the entry. A link is not followed.
    pub fn kind(&self) -> FileKind {
        self.kind
    }
}

/// The entries of a directory, in the order of the file system. Awaiting it returns all of them.
///
/// One job reads the whole directory.
#[must_use = "nothing is read until it is awaited or `next` is"]
pub struct ReadDir {
    /// `None` once it has completed.
    reading: Option<Reading>,
    entries: std::vec::IntoIter<io::Result<DirEntry>>,
}

type Reading = Pin<Box<dyn Future<Output = Vec<io::Result<DirEntry>>> + Send>>;

impl ReadDir {
    pub(crate) fn new(pool: Arc<Pool>, path: PathBuf) -> ReadDir {
        let list = move || {
            let entries = fs::read_dir(path)?;
            let entries = entries.map(|entry| Ok(DirEntry::new(&entry?)));
            Ok(entries.collect::<Vec<_>>())
        };
        let reading = async move {
            let list = pool.op::<ListDir, _>(list).await;
            list.unwrap_or_else(|error| vec![Err(error)])
        };
        ReadDir {
            reading: Some(Box::pin(reading)),
            entries: Vec::new().into_iter(),
        }
    }

    /// Returns the next entry; `None` at the end, and after an error. May be dropped and called again without loss.
    ///
    /// # Errors
    ///
    /// Fails with any error of the system.
    pub async fn next(&mut self) -> Option<io::Result<DirEntry>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<DirEntry>>> {
        if let Some(reading) = &mut self.reading {
            self.entries = ready!(reading.as_mut().poll(context)).into_iter();
            self.reading = None;
        }
        let next = self.entries.next();
        if let Some(Err(_)) = next {
            self.entries = Vec::new().into_iter();
        }
        Poll::Ready(next)
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
