//! Changes: put, copy, rename and delete.
//!
//! New contents are written to a staged file beside the object, and then published by a rename or a link. With `fsync`
//! the order is: the file, the publication, its folder. New folders are made durable up to the first that existed.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::runtime::Handle;

use crate::calls::{Calls, NewFile};
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

/// The number of times that missing folders are created for one change. Another task may remove them again, because
/// they are empty.
const PARENTS_TRIES: usize = 16;

/// The path of a staged file. Dropping it removes the file; a simulated file stays.
#[derive(Debug)]
pub(crate) struct Staged {
    /// `None` once the file is published or removed.
    path: Option<PathBuf>,
    is_simulated: bool,
}

/// A new version of an object that is written, and not published.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) file: NewFile,
    pub(crate) staged: Staged,
    pub(crate) stat: Stat,
}

impl Staged {
    /// Returns a new path to stage `object`.
    fn new(calls: &Calls, object: &Path) -> Staged {
        Staged {
            path: Some(names::staged(object)),
            is_simulated: matches!(calls, Calls::Simulated(_)),
        }
    }

    fn path(&self) -> &Path {
        self.path.as_deref().unwrap_or(Path::new(""))
    }

    /// Does not remove the file: it is published, or was never created.
    fn forget(&mut self) {
        self.path = None;
    }

    /// Removes the file.
    pub(crate) async fn remove(mut self, calls: &Calls) -> io::Result<()> {
        match self.path.take() {
            Some(path) => calls.remove_file(&path).await,
            None => Ok(()),
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        let (Some(path), false) = (self.path.take(), self.is_simulated) else {
            return;
        };
        let remove = Remove(path);
        if let Ok(runtime) = Handle::try_current() {
            drop(runtime.spawn_blocking(|| drop(remove)));
        }
    }
}

/// Removes a file when it is dropped, also by a runtime that shuts down and runs no more closures.
struct Remove(PathBuf);

impl Drop for Remove {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Store {
    /// Creates a staged file for `object`, and its folders.
    pub(crate) async fn stage(&self, object: &Path) -> Result<(NewFile, Staged), Failure> {
        let mut parents = 0;
        loop {
            let mut staged = Staged::new(&self.calls, object);
            let create = || self.calls.create_new(staged.path());
            let error = match self.files.with_room_async(create).await {
                Ok(file) => return Ok((file, staged)),
                Err(error) => error,
            };
            let path = staged.path().to_owned();
            staged.forget();
            match error.kind() {
                ErrorKind::AlreadyExists => {}
                ErrorKind::NotFound if parents < PARENTS_TRIES => {
                    self.create_parents(&path).await?;
                    parents += 1;
                }
                _ => return Err(Failure::other("create", &path, error)),
            }
        }
    }

    /// Writes a new version of `object`, and publishes it.
    pub(crate) async fn put(
        &self,
        object: &Path,
        contents: &[Bytes],
        existing: Existing,
    ) -> Result<Stat, Failure> {
        let (staged, stat) = self.finish(self.write(object, contents).await?).await?;
        self.publish(staged, object, existing).await?;
        self.sync_parent_of(object).await?;
        Ok(stat)
    }

    /// Writes a new version of `object`.
    pub(crate) async fn write(
        &self,
        object: &Path,
        contents: &[Bytes],
    ) -> Result<Written, Failure> {
        let (mut file, staged) = self.stage(object).await?;
        let written = match file.write(contents).await {
            Ok(()) => file.stat().await,
            Err(error) => Err(error),
        };
        match written {
            Ok(stat) => Ok(Written { file, staged, stat }),
            Err(error) => Err(self.not_written(staged, error).await),
        }
    }

    /// Closes a new version. With `fsync`, makes its contents durable first.
    pub(crate) async fn finish(&self, written: Written) -> Result<(Staged, Stat), Failure> {
        let Written { file, staged, stat } = written;
        let synced = match self.fsync {
            true => file.sync().await,
            false => Ok(()),
        };
        let closed = match synced {
            Ok(()) => file.close().await,
            Err(error) => Err(error),
        };
        match closed {
            Ok(()) => Ok((staged, stat)),
            Err(error) => Err(self.not_written(staged, error).await),
        }
    }

    /// Makes a staged file the object, which is durable once its folder is. Removes the staged file after an error.
    pub(crate) async fn publish(
        &self,
        mut staged: Staged,
        object: &Path,
        existing: Existing,
    ) -> Result<(), Failure> {
        let published = match existing {
            Existing::Replace => self.rename(staged.path(), object).await,
            Existing::Keep => self.link(staged.path(), object).await,
        };
        match (published, existing) {
            (Ok(()), Existing::Replace) => staged.forget(),
            (Ok(()), Existing::Keep) => drop(staged.remove(&self.calls).await),
            (Err(source), _) => {
                let what = format!(
                    "publish {} as {}",
                    staged.path().display(),
                    object.display()
                );
                let _ = staged.remove(&self.calls).await;
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
    pub(crate) async fn copy(
        &self,
        from: &Path,
        to: &Path,
        existing: Existing,
    ) -> Result<(), Failure> {
        let mut parents = 0;
        loop {
            let linked = match existing {
                Existing::Keep => self.link(from, to).await,
                Existing::Replace => self.link_over(from, to).await,
            };
            match linked {
                Ok(()) => return self.sync_parent_of(to).await,
                Err(error) => {
                    self.may_retry(from, to, existing, error, &mut parents)
                        .await?
                }
            }
        }
    }

    /// Moves an object, and replaces `to`.
    pub(crate) async fn replace(&self, from: &Path, to: &Path) -> Result<(), Failure> {
        let mut parents = 0;
        while let Err(error) = self.rename(from, to).await {
            let existing = Existing::Replace;
            self.may_retry(from, to, existing, error, &mut parents)
                .await?;
        }
        self.sync_parent_of(to).await?;
        match from.parent() == to.parent() {
            true => Ok(()),
            false => self.sync_parent_of(from).await,
        }
    }

    /// Handles the error of a copy or rename. Returns without an error after it created the folders of `to`.
    async fn may_retry(
        &self,
        from: &Path,
        to: &Path,
        existing: Existing,
        source: io::Error,
        parents: &mut usize,
    ) -> Result<(), Failure> {
        match source.kind() {
            ErrorKind::AlreadyExists if existing == Existing::Keep => {
                let path = to.to_owned();
                Err(Failure::AlreadyExists { path, source })
            }
            ErrorKind::NotFound if !self.calls.exists(from).await => {
                let path = from.to_owned();
                Err(Failure::NotFound { path, source })
            }
            ErrorKind::NotFound if *parents < PARENTS_TRIES => {
                *parents += 1;
                self.create_parents(to).await
            }
            _ => {
                let what = format!("copy or rename {} to {}", from.display(), to.display());
                Err(Failure::new(what, source))
            }
        }
    }

    /// Makes `to` a link to the file of `from`. Links to a staged name first, because a link replaces nothing.
    async fn link_over(&self, from: &Path, to: &Path) -> io::Result<()> {
        loop {
            let mut staged = Staged::new(&self.calls, to);
            if let Err(error) = self.calls.hard_link(from, staged.path()).await {
                staged.forget();
                if error.kind() == ErrorKind::AlreadyExists {
                    continue;
                }
                return Err(error);
            }
            let renamed = self.rename(staged.path(), to).await;
            // If `to` is a link to the same file already, the rename has no effect and the staged name stays.
            let _ = staged.remove(&self.calls).await;
            return renamed;
        }
    }

    /// Removes an object, and with automatic cleanup the folders that become empty. If it is `renamed`, its removal is
    /// as durable as other changes.
    pub(crate) async fn delete(&self, object: &Path, renamed: bool) -> Result<(), Failure> {
        let removed = self.calls.remove_file(object).await;
        self.files.changed(object);
        removed.map_err(|source| Failure::not_found_or("delete", object, source))?;
        if renamed {
            self.sync_parent_of(object).await?;
        }
        if self.automatic_cleanup {
            for folder in object.ancestors().skip(1) {
                if folder == self.root.path() || self.calls.remove_dir(folder).await.is_err() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Makes `to` a name of the file of `from`. The store may have a file open that another program removed from `to`.
    async fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let linked = self.calls.hard_link(from, to).await;
        self.files.changed(to);
        linked
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let renamed = self.calls.rename(from, to).await;
        self.files.changed(to);
        self.files.changed(from);
        renamed
    }

    /// Creates the folders of `object`. With `fsync`, makes them durable up to the first that existed.
    async fn create_parents(&self, object: &Path) -> Result<(), Failure> {
        let Some(parent) = object.parent() else {
            return Err(Failure::invalid("create", object, "it has no folder"));
        };
        let mut first = None;
        for folder in parent.ancestors() {
            if self.calls.exists(folder).await {
                first = Some(folder);
                break;
            }
        }
        let mut created = self.calls.create_dir_all(parent).await;
        for _ in 1..PARENTS_TRIES {
            // Another task has removed a folder between two calls.
            let kind = created.as_ref().err().map(io::Error::kind);
            if !matches!(kind, Some(ErrorKind::NotFound | ErrorKind::AlreadyExists)) {
                break;
            }
            created = self.calls.create_dir_all(parent).await;
        }
        created.map_err(|source| Failure::other("create the folder", parent, source))?;
        for folder in parent.ancestors() {
            self.sync_folder(folder).await?;
            if Some(folder) == first {
                break;
            }
        }
        Ok(())
    }

    /// With `fsync`, makes the name of `object` durable.
    pub(crate) async fn sync_parent_of(&self, object: &Path) -> Result<(), Failure> {
        match object.parent() {
            Some(parent) => self.sync_folder(parent).await,
            None => Ok(()),
        }
    }

    /// With `fsync`, makes the names in a folder durable.
    pub(crate) async fn sync_folder(&self, folder: &Path) -> Result<(), Failure> {
        match self.fsync {
            true => self.sync_names(folder).await,
            false => Ok(()),
        }
        .map_err(|source| Failure::not_synced(folder, source))
    }

    /// Makes the names in a folder durable.
    pub(crate) async fn sync_names(&self, folder: &Path) -> io::Result<()> {
        let sync = || self.calls.sync_folder(folder);
        self.files.with_room_async(sync).await
    }

    /// Removes the staged files that were last written to at least `age` ago. Returns their number.
    pub(crate) async fn remove_staged(&self, age: Duration) -> Result<u64, Failure> {
        let files = self.calls.files(&self.files, self.root.path()).await;
        let files = files.map_err(|error| Failure::new("list staged files", error))?;
        let (now, mut removed) = (SystemTime::now(), 0);
        for (path, modified) in files {
            let is_old = now.duration_since(modified).unwrap_or_default() >= age;
            if !names::is_staged(&path) || !is_old {
                continue;
            }
            match self.calls.remove_file(&path).await {
                Ok(()) => removed += 1,
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(Failure::other("remove the staged file", &path, error)),
            }
        }
        Ok(removed)
    }

    /// Removes a staged file, and returns the failure of its write.
    async fn not_written(&self, staged: Staged, error: io::Error) -> Failure {
        let failure = Failure::other("write", staged.path(), error);
        let _ = staged.remove(&self.calls).await;
        failure
    }
}
