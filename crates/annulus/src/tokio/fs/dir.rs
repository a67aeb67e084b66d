//! Directories: their creation with options, and their entries.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::fs::{FileType, Metadata};
use std::future::poll_fn;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::process::run_blocking;
use super::query;

/// Options for the creation of a directory.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// # let dir = tempfile::tempdir()?;
/// use annulus::tokio::fs::DirBuilder;
///
/// let path = dir.path().join("one/two");
/// let mut builder = DirBuilder::new();
/// assert!(builder.create(&path).await.is_err()); // `one` is missing
/// builder.recursive(true).mode(0o700).create(&path).await?;
/// builder.create(&path).await?; // a recursive creation succeeds if the directory exists
/// # Ok(()) }
/// ```
#[derive(Debug, Default)]
pub struct DirBuilder {
    recursive: bool,
    #[cfg(unix)]
    mode: Option<u32>,
}

impl DirBuilder {
    /// Creates options that create one directory, whose parent exists.
    pub fn new() -> DirBuilder {
        DirBuilder::default()
    }

    /// Sets whether missing parents are created, too.
    pub fn recursive(&mut self, recursive: bool) -> &mut Self {
        self.recursive = recursive;
        self
    }

    /// Sets the permission bits of new directories, less the umask of the process; 0o777 by default.
    #[cfg(unix)]
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = Some(mode);
        self
    }

    /// Creates the directory.
    ///
    /// # Errors
    ///
    /// Fails with any error of `mkdir(2)`, unchanged (`ENOENT`; `EEXIST` unless recursive).
    pub async fn create(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref().to_owned();
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(self.recursive);
        #[cfg(unix)]
        if let Some(mode) = self.mode {
            std::os::unix::fs::DirBuilderExt::mode(&mut builder, mode);
        }
        run_blocking(move || builder.create(path)).await
    }
}

/// The number of entries that a blocking thread reads at once. While they are taken, it reads the next ones.
const PIECE_ENTRIES: usize = 1024;

/// Opens a directory, and returns its entries one after the other. `.` and `..` are left out.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// # let dir = tempfile::tempdir()?; std::fs::write(dir.path().join("a"), "")?;
/// use annulus::tokio::fs;
///
/// let mut entries = fs::read_dir(dir.path()).await?;
/// while let Some(entry) = entries.next_entry().await? {
///     println!("{}: {} bytes", entry.path().display(), entry.metadata().await?.len());
/// }
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// Fails with any error of `opendir(3)`, unchanged (`ENOENT`, `ENOTDIR`).
pub async fn read_dir(path: impl AsRef<Path>) -> io::Result<ReadDir> {
    let path = path.as_ref().to_owned();
    let piece =
        run_blocking(move || Ok(Piece::default().refilled(std::fs::read_dir(path)?))).await?;
    Ok(ReadDir {
        piece,
        reading: None,
    })
}

/// The entries of a directory, in the order of the file system. Returned by [`read_dir`].
///
/// Entries that are created or removed meanwhile may be missing or present.
#[must_use = "no entries are returned unless `next_entry` is called"]
pub struct ReadDir {
    piece: Piece,
    /// The read of the next piece.
    reading: Option<Reading>,
}

type Reading = Pin<Box<dyn Future<Output = io::Result<Piece>> + Send + Sync>>;

/// Entries that have been read.
#[derive(Default)]
struct Piece {
    entries: VecDeque<io::Result<DirEntry>>,
    /// The rest of the directory; `None` at its end.
    rest: Option<std::fs::ReadDir>,
}

impl Piece {
    /// Reads the next entries of a directory, in addition to those of this piece.
    fn refilled(mut self, mut rest: std::fs::ReadDir) -> Piece {
        for _ in 0..PIECE_ENTRIES {
            let Some(entry) = rest.next() else {
                return self;
            };
            let is_error = entry.is_err();
            self.entries.push_back(entry.map(|entry| DirEntry {
                // Reads it from the listing, or queries the file.
                kind: entry.file_type().ok(),
                entry,
            }));
            if is_error {
                break;
            }
        }
        self.rest = Some(rest);
        self
    }
}

impl ReadDir {
    /// Returns the next entry; `None` at the end. May be dropped and called again without loss.
    ///
    /// # Errors
    ///
    /// Fails with any error of `readdir(3)`, unchanged.
    pub async fn next_entry(&mut self) -> io::Result<Option<DirEntry>> {
        poll_fn(|context| self.poll_next_entry(context)).await
    }

    /// Polls for the next entry; `None` at the end.
    ///
    /// # Errors
    ///
    /// Fails with any error of `readdir(3)`, unchanged.
    pub fn poll_next_entry(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Option<DirEntry>>> {
        loop {
            if self.reading.is_none()
                && let Some(rest) = self.piece.rest.take()
            {
                let read = run_blocking(move || Ok(Piece::default().refilled(rest)));
                let mut reading: Reading = Box::pin(read);
                // Starts it.
                if let Poll::Ready(piece) = reading.as_mut().poll(context) {
                    reading = Box::pin(std::future::ready(piece));
                }
                self.reading = Some(reading);
            }
            if let Some(entry) = self.piece.entries.pop_front() {
                return Poll::Ready(entry.map(Some));
            }
            let Some(reading) = &mut self.reading else {
                return Poll::Ready(Ok(None));
            };
            let piece = ready!(reading.as_mut().poll(context));
            self.reading = None;
            self.piece = piece?;
        }
    }
}

impl fmt::Debug for ReadDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadDir").finish_non_exhaustive()
    }
}

/// An entry of a directory.
#[derive(Debug)]
pub struct DirEntry {
    entry: std::fs::DirEntry,
    kind: Option<FileType>,
}

impl DirEntry {
    /// Returns the path: that of the directory with the name.
    pub fn path(&self) -> PathBuf {
        self.entry.path()
    }

    /// Returns the name, without the directory.
    pub fn file_name(&self) -> OsString {
        self.entry.file_name()
    }

    /// Returns the metadata; of a symbolic link that of the link.
    ///
    /// # Errors
    ///
    /// Fails with any error of `lstat(2)`, unchanged (`ENOENT` if the entry is gone).
    pub async fn metadata(&self) -> io::Result<Metadata> {
        query(&self.path(), false).await
    }

    /// Returns the kind of the entry, without following links. The listing usually has it.
    ///
    /// # Errors
    ///
    /// Fails like [`metadata`](DirEntry::metadata) if the listing does not have it.
    pub async fn file_type(&self) -> io::Result<FileType> {
        match self.kind {
            Some(kind) => Ok(kind),
            None => Ok(self.metadata().await?.file_type()),
        }
    }

    /// Returns the inode number.
    #[cfg(unix)]
    pub fn ino(&self) -> u64 {
        std::os::unix::fs::DirEntryExt::ino(&self.entry)
    }
}
