//! Metadata, and directory listings.

#[path = "../fs/dir/entries.rs"]
mod entries;

pub use entries::FileKind;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{SystemTime, UNIX_EPOCH};

use super::PathIn;
use crate::driver::Submitter;
use crate::op::ListDir;

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
    pub(crate) fn new(submitter: Arc<Submitter>, path: PathIn<'_>) -> ReadDir {
        let path = path.to_owned();
        let list = move || {
            let entries = fs::read_dir(path)?;
            let entries = entries.map(|entry| Ok(DirEntry::new(&entry?)));
            Ok(entries.collect::<Vec<_>>())
        };
        let reading = async move {
            let list = submitter.op::<ListDir, _>(list).await;
            list.unwrap_or_else(|error| vec![Err(error)])
        };
        ReadDir {
            reading: Some(Box::pin(reading)),
            entries: Vec::new().into_iter(),
        }
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
