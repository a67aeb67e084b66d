//! Changes: put, copy, rename and delete. Each runs on one blocking thread to its end, because the ring would give each
//! of its system calls to a kernel worker.
//!
//! New contents are written to a staged file beside the object, and then published by a rename or a link. With `fsync`
//! the order is: the file, the publication, its folder. New folders are made durable up to the first that existed.

use std::collections::hash_map::RandomState;
use std::fs::{File, OpenOptions};
use std::hash::BuildHasher;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use nix::unistd::close;
use tokio::runtime::Handle;
use walkdir::WalkDir;

use crate::error::Failure;
use crate::names;
use crate::stat::Stat;
use crate::store::Store;

/// The decision about an object that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    Replace,
    /// Fail with `AlreadyExists`.
    Keep,
}

/// The number of times that missing folders are created for one change. Another task may remove them again, because they
/// are empty.
const PARENTS_TRIES: usize = 16;
/// The longest name of a file on Linux, bytes.
const NAME_BYTES_MAX: usize = 255;
/// The digits in the name of a staged file.
const DIGITS: usize = 10;

/// The path of a staged file. Dropping it removes the file.
#[derive(Debug)]
pub(crate) struct Staged {
    /// `None` once the file is published or removed.
    path: Option<PathBuf>,
    /// No other task or process uses the name.
    is_unique: bool,
}

impl Staged {
    /// Returns the path for an attempt to stage `object`: its name, `#`, and digits.
    ///
    /// The digits differ at each call, so tasks that write to one object do not try each other's names. Names that are
    /// too long for ten digits get a few, as those of `LocalFileSystem`.
    fn name(object: &Path, attempt: u64) -> Staged {
        static NEXT: OnceLock<AtomicU64> = OnceLock::new();
        let name_bytes = object.file_name().map_or(0, |name| name.len());
        let is_unique = name_bytes + 1 + DIGITS <= NAME_BYTES_MAX;
        let mut path = object.as_os_str().to_owned();
        if is_unique {
            let next = NEXT.get_or_init(|| AtomicU64::new(RandomState::new().hash_one(0)));
            let number = next.fetch_add(1, Ordering::Relaxed) % 10_u64.pow(DIGITS as u32);
            path.push(format!("#{number:0width$}", width = DIGITS));
        } else {
            path.push(format!("#{attempt}"));
        }
        Staged {
            path: Some(path.into()),
            is_unique,
        }
    }

    fn path(&self) -> &Path {
        self.path.as_deref().unwrap_or(Path::new(""))
    }

    /// Does not remove the file: it is published, or was never created.
    fn forget(&mut self) {
        self.path = None;
    }

    /// Removes the file on the calling thread.
    pub(crate) fn remove(mut self) -> io::Result<()> {
        self.path.take().map_or(Ok(()), std::fs::remove_file)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        let Some(path) = self.path.take() else {
            return;
        };
        let remove = move || drop(std::fs::remove_file(path));
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }
}

impl Store {
    /// Creates a staged file for `object`, and its folders.
    pub(crate) fn stage(&self, object: &Path) -> Result<(File, Staged), Failure> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        let (mut attempt, mut parents) = (1, 0);
        loop {
            let mut staged = Staged::name(object, attempt);
            let error = match options.open(staged.path()) {
                Ok(file) => return Ok((file, staged)),
                Err(error) => error,
            };
            let path = staged.path().to_owned();
            staged.forget();
            match error.kind() {
                ErrorKind::AlreadyExists => attempt += 1,
                ErrorKind::NotFound if parents < PARENTS_TRIES => {
                    self.create_parents(&path)?;
                    parents += 1;
                }
                _ if self.files.made_room(&error) => {}
                _ => return Err(Failure::other("create", &path, error)),
            }
        }
    }

    /// Writes a new version of `object`.
    pub(crate) fn put(
        &self,
        object: &Path,
        contents: &[Bytes],
        existing: Existing,
    ) -> Result<Stat, Failure> {
        let (mut file, staged) = self.stage(object)?;
        let written = contents
            .iter()
            .try_for_each(|part| file.write_all(part))
            .and_then(|()| file.metadata())
            .and_then(|metadata| {
                if self.fsync {
                    file.sync_all()?;
                }
                // A network file system may report an error of a write only here, and a FUSE may upload only now.
                close(file)?;
                Ok(Stat::from(&metadata))
            });
        let stat = match written {
            Ok(stat) => stat,
            Err(error) => {
                let failure = Failure::other("write", staged.path(), error);
                let _ = staged.remove();
                return Err(failure);
            }
        };
        self.publish(staged, object, existing)?;
        Ok(stat)
    }

    /// Makes a staged file the object. Removes it after an error.
    pub(crate) fn publish(
        &self,
        mut staged: Staged,
        object: &Path,
        existing: Existing,
    ) -> Result<(), Failure> {
        let published = match existing {
            Existing::Replace => self.rename(staged.path(), object),
            Existing::Keep => self.link(staged.path(), object),
        };
        match (published, existing) {
            (Ok(()), Existing::Replace) => staged.forget(),
            (Ok(()), Existing::Keep) => drop(staged.remove()),
            (Err(source), _) => {
                let what = format!(
                    "publish {} as {}",
                    staged.path().display(),
                    object.display()
                );
                let _ = staged.remove();
                return Err(match source.kind() {
                    ErrorKind::AlreadyExists if existing == Existing::Keep => {
                        let path = object.to_owned();
                        Failure::AlreadyExists { path, source }
                    }
                    _ => Failure::new(what, source),
                });
            }
        }
        Ok(())
    }

    /// Copies an object with a hard link. A later put to either of them does not change the other.
    pub(crate) fn copy(&self, from: &Path, to: &Path, existing: Existing) -> Result<(), Failure> {
        self.with_parents(from, to, existing, || match existing {
            Existing::Keep => self.link(from, to),
            Existing::Replace => self.link_over(from, to),
        })
    }

    /// Moves an object, and replaces `to`.
    pub(crate) fn replace(&self, from: &Path, to: &Path) -> Result<(), Failure> {
        self.with_parents(from, to, Existing::Replace, || self.rename(from, to))
    }

    /// Runs `change`, and creates the folders of `to` if they are missing.
    fn with_parents(
        &self,
        from: &Path,
        to: &Path,
        existing: Existing,
        change: impl Fn() -> io::Result<()>,
    ) -> Result<(), Failure> {
        let mut parents = 0;
        loop {
            let Err(source) = change() else {
                return Ok(());
            };
            match source.kind() {
                ErrorKind::AlreadyExists if existing == Existing::Keep => {
                    let path = to.to_owned();
                    return Err(Failure::AlreadyExists { path, source });
                }
                ErrorKind::NotFound if !from.exists() => {
                    let path = from.to_owned();
                    return Err(Failure::NotFound { path, source });
                }
                ErrorKind::NotFound if parents < PARENTS_TRIES => {
                    self.create_parents(to)?;
                    parents += 1;
                }
                _ => {
                    let what = format!("copy or rename {} to {}", from.display(), to.display());
                    return Err(Failure::new(what, source));
                }
            }
        }
    }

    /// Makes `to` a link to the file of `from`. Links to a staged name first, because a link replaces nothing.
    fn link_over(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut attempt = 0;
        loop {
            let mut staged = Staged::name(to, attempt);
            match std::fs::hard_link(from, staged.path()) {
                Ok(()) => {}
                Err(error) => {
                    staged.forget();
                    if error.kind() == ErrorKind::AlreadyExists {
                        attempt += 1;
                        continue;
                    }
                    return Err(error);
                }
            }
            let renamed = self.rename(staged.path(), to);
            // If `to` is a link to the same file already, the rename has no effect and the staged name stays.
            match renamed.is_ok() && !staged.is_unique {
                true => staged.forget(),
                false => drop(staged.remove()),
            }
            return renamed;
        }
    }

    /// Removes an object, and with automatic cleanup the folders that become empty.
    pub(crate) fn delete(&self, object: &Path, fsync: bool) -> Result<(), Failure> {
        let removed = std::fs::remove_file(object);
        self.files.changed(object);
        removed.map_err(|source| Failure::not_found_or("delete", object, source))?;
        if fsync {
            let failed = |source| Failure::other("sync the folder of", object, source);
            self.sync_parent(object).map_err(failed)?;
        }
        if self.automatic_cleanup {
            for folder in object.ancestors().skip(1) {
                if folder == self.root.path() || std::fs::remove_dir(folder).is_err() {
                    break;
                }
            }
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let renamed = std::fs::rename(from, to);
        self.files.changed(to);
        self.files.changed(from);
        renamed?;
        if self.fsync {
            self.sync_parent(to)?;
            if from.parent() != to.parent() {
                self.sync_parent(from)?;
            }
        }
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::hard_link(from, to)?;
        match self.fsync {
            true => self.sync_parent(to),
            false => Ok(()),
        }
    }

    /// Creates the folders of `object`. With `fsync`, makes them durable up to the first that existed.
    fn create_parents(&self, object: &Path) -> Result<(), Failure> {
        let Some(parent) = object.parent() else {
            return Err(Failure::invalid("create", object, "it has no folder"));
        };
        let first = parent.ancestors().find(|folder| folder.exists());
        let first = first.map(Path::to_owned);
        std::fs::create_dir_all(parent)
            .map_err(|source| Failure::other("create the folder", parent, source))?;
        if self.fsync {
            for folder in parent.ancestors() {
                self.sync_folder(folder)
                    .map_err(|source| Failure::other("sync the folder", folder, source))?;
                if Some(folder) == first.as_deref() {
                    break;
                }
            }
        }
        Ok(())
    }

    fn sync_parent(&self, path: &Path) -> io::Result<()> {
        path.parent()
            .map_or(Ok(()), |parent| self.sync_folder(parent))
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        let folder = match File::open(folder) {
            Err(error) if self.files.made_room(&error) => File::open(folder),
            other => other,
        };
        folder?.sync_all()
    }

    /// Removes the staged files that were last written to at least `age` ago. Returns their number.
    pub(crate) fn remove_staged(&self, age: Duration) -> Result<u64, Failure> {
        let failed = |path: &Path, source| Failure::other("remove the staged file", path, source);
        let (now, mut removed) = (SystemTime::now(), 0);
        for entry in WalkDir::new(self.root.path()).min_depth(1) {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) if gone(error.io_error()) => continue,
                Err(error) => return Err(Failure::new("list staged files", error.into())),
            };
            let name = entry.file_name().to_string_lossy();
            if !entry.file_type().is_file() || names::is_object(&name) {
                continue;
            }
            let modified = entry.metadata().ok().and_then(|file| file.modified().ok());
            let is_old = modified
                .is_some_and(|modified| now.duration_since(modified).unwrap_or_default() >= age);
            if is_old {
                match std::fs::remove_file(entry.path()) {
                    Ok(()) => removed += 1,
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => return Err(failed(entry.path(), error)),
                }
            }
        }
        Ok(removed)
    }
}

fn gone(error: Option<&io::Error>) -> bool {
    error.map(io::Error::kind) == Some(ErrorKind::NotFound)
}
