//! Walks of folders by system calls. A walk has one folder open at a time.

use std::fs::{self, DirEntry, FileType, Metadata, ReadDir};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::open_files::OpenFiles;

/// The files and folders below a folder. Those that are removed meanwhile are left out, and links that lead nowhere.
pub(crate) struct Walk {
    /// Makes room for the descriptor of a folder.
    files: Arc<OpenFiles>,
    top: PathBuf,
    follows_links: bool,
    goes_deeper: bool,
    /// The folder that is read, and its path.
    reading: Option<(ReadDir, PathBuf)>,
    /// The folders that are not read yet.
    folders: Vec<PathBuf>,
}

/// A file or folder.
pub(crate) struct WalkEntry {
    pub(crate) path: PathBuf,
    entry: DirEntry,
    kind: FileType,
    /// The metadata of the target, if links are followed and the entry is one.
    target: Option<Metadata>,
}

impl Walk {
    /// Walks a folder and those below. Does not follow links.
    pub(crate) fn new(files: Arc<OpenFiles>, top: PathBuf) -> Walk {
        Walk {
            files,
            folders: vec![top.clone()],
            top,
            follows_links: false,
            goes_deeper: true,
            reading: None,
        }
    }

    /// Follows links.
    pub(crate) fn following(mut self) -> Walk {
        self.follows_links = true;
        self
    }

    /// Stays in the folder.
    pub(crate) fn one_level(mut self) -> Walk {
        self.goes_deeper = false;
        self
    }

    fn step(&mut self) -> io::Result<Option<WalkEntry>> {
        loop {
            let Some((reading, folder)) = &mut self.reading else {
                let Some(folder) = self.folders.pop() else {
                    return Ok(None);
                };
                let read = self.files.with_room(|| fs::read_dir(&folder));
                match read {
                    Ok(read) => self.reading = Some((read, folder)),
                    Err(error) if is_gone(&error) => {}
                    // The path leads to a file.
                    Err(_) if fs::metadata(&folder).is_ok_and(|file| !file.is_dir()) => {}
                    Err(error) => return Err(at(&folder, error)),
                }
                continue;
            };
            let Some(entry) = reading.next() else {
                self.reading = None;
                continue;
            };
            let entry = entry.map_err(|error| at(folder, error))?;
            let path = entry.path();
            match self.found(entry) {
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(at(&path, error)),
                Ok(found) => return Ok(Some(found)),
            }
        }
    }

    /// Returns an entry, and notes a folder.
    fn found(&mut self, entry: DirEntry) -> io::Result<WalkEntry> {
        let (path, mut kind, mut target) = (entry.path(), entry.file_type()?, None);
        if kind.is_symlink() && self.follows_links {
            let metadata = fs::metadata(&path)?;
            kind = metadata.file_type();
            if kind.is_dir() && self.is_above(&path, &metadata)? {
                return Err(io::Error::other("it is a link to a folder above it"));
            }
            target = Some(metadata);
        }
        if kind.is_dir() && self.goes_deeper {
            self.folders.push(path.clone());
        }
        Ok(WalkEntry {
            path,
            entry,
            kind,
            target,
        })
    }

    /// Returns whether the target of the link `path` is one of the folders that led to it.
    fn is_above(&self, path: &Path, target: &Metadata) -> io::Result<bool> {
        use std::os::unix::fs::MetadataExt;

        for above in path.ancestors().skip(1) {
            let metadata = fs::metadata(above)?;
            if (metadata.dev(), metadata.ino()) == (target.dev(), target.ino()) {
                return Ok(true);
            }
            if above == self.top {
                break;
            }
        }
        Ok(false)
    }
}

impl Iterator for Walk {
    type Item = io::Result<WalkEntry>;

    fn next(&mut self) -> Option<io::Result<WalkEntry>> {
        self.step().transpose()
    }
}

impl WalkEntry {
    pub(crate) fn kind(&self) -> FileType {
        self.kind
    }

    /// Returns the metadata, unless the file is gone.
    pub(crate) fn metadata(self) -> Option<Metadata> {
        self.target.or_else(|| self.entry.metadata().ok())
    }
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound
}

/// Adds the path to an error.
fn at(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
