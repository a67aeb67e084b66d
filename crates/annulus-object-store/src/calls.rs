//! The calls on files and folders other than reads of objects.
//!
//! Changes of few calls are operations of a ring. Others are system calls, many in a row on one blocking thread,
//! because the ring would give each of them to a kernel worker. A simulated kernel has its own files, so there all
//! calls are operations of its engine. All run the same code.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use annulus::{BackendInUse, Engine, OpenOptions};
use bytes::Bytes;
use futures_util::FutureExt;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::libc::off_t;
use nix::unistd::close;

use crate::error::Failure;
use crate::open_files::OpenFiles;
use crate::stat::Stat;
use crate::walk::Walk;

/// The most buffers of one write (`IOV_MAX`).
pub(crate) const BUFFERS: usize = 1024;

/// The size of the smallest pages of Linux, bytes.
const PAGE_BYTES: usize = 4096;

/// The calls of a store.
#[derive(Clone, Debug)]
pub(crate) enum Calls {
    /// System calls. Their futures never wait.
    System,
    /// Operations of an engine with rings.
    Ring(Engine),
    /// Operations of a simulated engine.
    Simulated(Engine),
}

/// A new file.
#[derive(Debug)]
pub(crate) enum NewFile {
    System(fs::File),
    Engine(annulus::File),
}

/// A file or folder in a listing.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) path: PathBuf,
    pub(crate) stat: Stat,
}

impl Calls {
    pub(crate) fn of(engine: &Engine) -> Calls {
        match engine.backend() {
            BackendInUse::Uring { .. } | BackendInUse::Fallback { .. } => Calls::System,
            // A simulated kernel, which is a variant only with the feature `test-util`.
            _ => Calls::Simulated(engine.clone()),
        }
    }

    /// Returns calls that a ring makes, if the engine has one.
    pub(crate) fn of_ring(engine: &Engine) -> Option<Calls> {
        let has_ring = matches!(engine.backend(), BackendInUse::Uring { .. });
        has_ring.then(|| Calls::Ring(engine.clone()))
    }

    /// Creates a file, and fails if it exists.
    pub(crate) async fn create_new(&self, path: &Path) -> io::Result<NewFile> {
        match self {
            Calls::System => {
                let mut options = fs::OpenOptions::new();
                options.read(true).write(true).create_new(true);
                options.open(path).map(NewFile::System)
            }
            Calls::Ring(engine) | Calls::Simulated(engine) => {
                let mut options = OpenOptions::new();
                options.read(true).write(true).create_new(true);
                let file = engine.open_with(&options, path).await;
                file.map(NewFile::Engine)
            }
        }
    }

    pub(crate) async fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        match self {
            Calls::System => fs::hard_link(from, to),
            Calls::Ring(engine) | Calls::Simulated(engine) => engine.hard_link(from, to).await,
        }
    }

    pub(crate) async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        match self {
            Calls::System => fs::rename(from, to),
            Calls::Ring(engine) | Calls::Simulated(engine) => engine.rename(from, to).await,
        }
    }

    pub(crate) async fn remove_file(&self, path: &Path) -> io::Result<()> {
        match self {
            Calls::System => fs::remove_file(path),
            Calls::Ring(engine) | Calls::Simulated(engine) => engine.remove_file(path).await,
        }
    }

    pub(crate) async fn remove_dir(&self, path: &Path) -> io::Result<()> {
        match self {
            Calls::System => fs::remove_dir(path),
            Calls::Ring(engine) | Calls::Simulated(engine) => engine.remove_dir(path).await,
        }
    }

    pub(crate) async fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        match self {
            Calls::System => fs::create_dir_all(path),
            Calls::Ring(engine) | Calls::Simulated(engine) => engine.create_dir_all(path).await,
        }
    }

    pub(crate) async fn exists(&self, path: &Path) -> bool {
        match self {
            Calls::System => path.exists(),
            Calls::Ring(engine) | Calls::Simulated(engine) => {
                engine.try_exists(path).await.unwrap_or(false)
            }
        }
    }

    /// Makes the names in a folder durable.
    pub(crate) async fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        match self {
            Calls::System => fs::File::open(folder)?.sync_all(),
            Calls::Ring(engine) | Calls::Simulated(engine) => {
                engine.open(folder).await?.sync_all().await
            }
        }
    }

    /// Returns the files in a folder and below, without following links, and the times of their last writes.
    pub(crate) async fn files(
        &self,
        open_files: &Arc<OpenFiles>,
        folder: &Path,
    ) -> io::Result<Vec<(PathBuf, SystemTime)>> {
        match self {
            Calls::System => {
                let mut files = Vec::new();
                for found in Walk::new(Arc::clone(open_files), folder.to_owned()) {
                    let found = found?;
                    if found.kind().is_file() {
                        let path = found.path.clone();
                        let modified = found.metadata().and_then(|file| file.modified().ok());
                        files.extend(modified.map(|modified| (path, modified)));
                    }
                }
                Ok(files)
            }
            Calls::Ring(engine) | Calls::Simulated(engine) => {
                let found = walk(engine, folder, false, usize::MAX).await?;
                let files = found.into_iter().filter(|entry| entry.stat.is_file);
                Ok(files
                    .map(|found| (found.path, found.stat.modified))
                    .collect())
            }
        }
    }
}

/// Returns the result of work whose calls are system calls.
pub(crate) fn without_waiting<T>(
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let waited = || {
        Err(Failure::new(
            "make a system call",
            ErrorKind::WouldBlock.into(),
        ))
    };
    work.now_or_never().unwrap_or_else(waited)
}

impl NewFile {
    /// Writes the contents of the file.
    pub(crate) async fn write(&mut self, contents: &[Bytes]) -> io::Result<()> {
        match self {
            NewFile::System(file) => contents.iter().try_for_each(|part| file.write_all(part)),
            NewFile::Engine(file) => {
                let mut offset = 0;
                for part in contents.iter().filter(|part| !part.is_empty()) {
                    file.write_all_at(part.clone(), offset).await?;
                    offset += part.len() as u64;
                }
                Ok(())
            }
        }
    }

    pub(crate) async fn stat(&self) -> io::Result<Stat> {
        Ok(match self {
            NewFile::System(file) => Stat::from(&file.metadata()?),
            NewFile::Engine(file) => Stat::from(&file.metadata().await?),
        })
    }

    /// Lets the kernel start to write a file of `bytes` bytes to the device.
    pub(crate) fn start_to_sync(&self, bytes: u64) {
        let NewFile::System(file) = self else {
            return;
        };
        // The advice starts the writes of the pages that it touches. It would drop pages that are whole in its range,
        // and would wait for other processors, so no range has a whole page.
        for page in (0..bytes).step_by(PAGE_BYTES) {
            let start = off_t::try_from(page + 1).unwrap_or(off_t::MAX);
            let advice = PosixFadviseAdvice::POSIX_FADV_DONTNEED;
            // An error of a write is that of the sync.
            let _ = posix_fadvise(file, start, PAGE_BYTES as off_t - 2, advice);
        }
    }

    pub(crate) async fn sync(&self) -> io::Result<()> {
        match self {
            NewFile::System(file) => file.sync_all(),
            NewFile::Engine(file) => file.sync_all().await,
        }
    }

    /// Closes the file. A network file system may report an error of a write only here, and a FUSE may upload only now.
    pub(crate) async fn close(self) -> io::Result<()> {
        match self {
            NewFile::System(file) => Ok(close(file)?),
            NewFile::Engine(file) => file.close().await.map(drop),
        }
    }

    /// Returns the file for operations of an engine.
    pub(crate) fn into_file(self, engine: &Engine) -> io::Result<annulus::File> {
        match self {
            NewFile::System(file) => annulus::File::from_std(file, engine),
            NewFile::Engine(file) => Ok(file),
        }
    }
}

/// Returns the files and folders below a folder of a simulated kernel, to a depth. Files that are gone are left out,
/// and links that lead nowhere if links are followed.
pub(crate) async fn walk(
    engine: &Engine,
    folder: &Path,
    follow: bool,
    depth: usize,
) -> io::Result<Vec<Entry>> {
    let mut found = Vec::new();
    let top = match engine.metadata(folder).await {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(found),
        metadata => Stat::from(&metadata?),
    };
    if !top.is_dir {
        return Ok(found);
    }
    let mut folders = vec![(folder.to_owned(), vec![top.identity])];
    while let Some((folder, above)) = folders.pop() {
        let entries = match engine.read_dir(&folder).await {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            let path = folder.join(entry.name());
            let metadata = match follow {
                true => engine.metadata(&path).await,
                false => engine.symlink_metadata(&path).await,
            };
            let stat = match metadata {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                metadata => Stat::from(&metadata?),
            };
            if stat.is_dir && above.len() < depth {
                if above.contains(&stat.identity) {
                    let what = format!("{} is a link to a folder above it", path.display());
                    return Err(io::Error::other(what));
                }
                let mut above = above.clone();
                above.push(stat.identity);
                folders.push((path.clone(), above));
            }
            found.push(Entry { path, stat });
        }
    }
    Ok(found)
}
