//! Directory listings, and their entries.

mod entries;

pub use entries::FileKind;

use std::ffi::OsString;
use std::future::ready;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::{Dir, PathIn, paths};
use crate::driver::{Operation, Submitter};
use crate::fd::Fd;
use crate::op::{ListDir, Listed, Piece};

/// An entry of a directory.
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// # std::fs::write(dir.path().join("file"), "")?; std::os::unix::fs::symlink("file", dir.path().join("link"))?;
/// use annulus::fs::FileKind;
///
/// for entry in engine.read_dir(dir.path()).await? {
///     let path = dir.path().join(entry.name()); // the name alone is not a path from here
///     match entry.kind() {
///         FileKind::Symlink => assert!(engine.metadata(&path).await?.is_file()), // what it points to
///         kind => assert_eq!(kind, FileKind::File),
///     }
/// }
/// # Ok(()) }) }
/// ```
#[derive(Clone, Debug)]
pub struct DirEntry {
    name: OsString,
    inode: u64,
    kind: FileKind,
}

impl DirEntry {
    pub(crate) fn new(listed: Listed) -> DirEntry {
        DirEntry {
            name: listed.name,
            inode: listed.inode,
            kind: FileKind::of_entry(listed.kind),
        }
    }

    /// Returns the inode number. Linux only.
    pub fn inode(&self) -> u64 {
        self.inode
    }
}

/// The entries of a directory, returned by [`Engine::read_dir`](crate::Engine::read_dir).
///
/// [`next`](ReadDir::next) returns one entry after the other, in the order of the file system. Awaiting the value
/// itself returns all of them. `.` and `..` are left out.
///
/// The listing is read in pieces of 64 KiB on a blocking thread, because io_uring has no opcode for it. While the
/// entries of one piece are taken, the next one is read, so a directory of any size needs 128 KiB. Entries that are
/// created or removed meanwhile may be missing or present, as with `readdir(3)`.
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?; std::fs::write(dir.path().join("a"), "")?;
/// let engine = annulus::Engine::new()?;
/// let mut entries = engine.read_dir(dir.path());
/// while let Some(entry) = entries.next().await {
///     println!("{}", entry?.name().display());
/// }
/// assert_eq!(engine.read_dir(dir.path()).await?.len(), 1);        // all entries
/// # Ok(()) }) }
/// ```
#[must_use = "nothing is read until it is awaited or `next` is"]
pub struct ReadDir {
    piece: Option<Piece>,
    /// The open directory with the next piece. `None` after the end, and after an error.
    reading: Option<Reading>,
}

type Reading = Pin<Box<dyn Future<Output = io::Result<(Arc<Submitter>, Fd, Piece)>> + Send>>;

impl ReadDir {
    pub(crate) fn new(submitter: Arc<Submitter>, path: PathIn<'_>) -> ReadDir {
        let path = path.target();
        let first = async move {
            let dir = paths::to_list().open_at(&submitter, path).await?;
            read_piece(submitter, dir.into_fd(), Piece::default()).await
        };
        ReadDir {
            piece: None,
            reading: Some(Box::pin(first)),
        }
    }

    /// Lists an open directory from its position on.
    pub(super) fn of(submitter: Arc<Submitter>, dir: &Dir) -> ReadDir {
        let fd = dir.file().fd.clone();
        ReadDir {
            piece: None,
            reading: Some(Box::pin(read_piece(submitter, fd, Piece::default()))),
        }
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<DirEntry>>> {
        loop {
            if let Some(listed) = self.piece.as_mut().and_then(Piece::next) {
                return Poll::Ready(Some(Ok(DirEntry::new(listed))));
            }
            let Some(reading) = &mut self.reading else {
                return Poll::Ready(None);
            };
            let read = ready!(reading.as_mut().poll(context));
            self.reading = None;
            let (submitter, fd, piece) = match read {
                Ok((_, _, piece)) if piece.is_end() => return Poll::Ready(None),
                Ok(read) => read,
                Err(error) => return Poll::Ready(Some(Err(error))),
            };
            let spare = self.piece.replace(piece).unwrap_or_default();
            let mut reading: Reading = Box::pin(read_piece(submitter, fd, spare));
            // Starts it.
            if let Poll::Ready(read) = reading.as_mut().poll(context) {
                reading = Box::pin(ready(read));
            }
            self.reading = Some(reading);
        }
    }
}

/// Reads a piece into the memory of `spare`.
async fn read_piece(
    submitter: Arc<Submitter>,
    fd: Fd,
    spare: Piece,
) -> io::Result<(Arc<Submitter>, Fd, Piece)> {
    let piece = Operation::new(&submitter, ListDir::new(fd.clone(), spare)).await?;
    Ok((submitter, fd, piece))
}
