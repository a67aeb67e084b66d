//! Files in and out of the page cache, and random direct reads of them.

use std::fs::File;
use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use annulus::buf::AlignedBuf;
use annulus::{Engine, OpenOptions};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use crate::{Cost, Stopwatch};

const PAGE: u64 = 4096;
/// The number of direct reads in flight; more do not make the drives faster that we know.
const DEPTH: u64 = 256;
/// The memory for one read of a whole file.
const CHUNK_BYTES: usize = 1 << 20;

/// Returns the files below a folder with their sizes.
fn files(folder: &Path) -> Result<Vec<(PathBuf, u64)>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                folders.push(entry.path());
            } else if metadata.is_file() {
                files.push((entry.path(), metadata.len()));
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Removes the files below a folder from the page cache. Changes are written to the drive first.
///
/// # Errors
///
/// Fails if a file cannot be opened or synced.
pub fn remove_from_cache(folder: &Path) -> Result<()> {
    for (path, _) in files(folder)? {
        let file = File::open(path)?;
        file.sync_all()?;
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
    }
    Ok(())
}

/// Reads the files below a folder, so that they are in the page cache.
///
/// # Errors
///
/// Fails if a file cannot be read.
pub fn read_into_cache(folder: &Path) -> Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    for (path, _) in files(folder)? {
        let mut file = File::open(path)?;
        while std::io::Read::read(&mut file, &mut chunk)? != 0 {}
    }
    Ok(())
}

/// A drive, for its limit: random direct reads of files on it, past the page cache.
#[derive(Debug)]
pub struct Drive {
    engine: Engine,
    files: Vec<(PathBuf, u64)>,
}

impl Drive {
    /// Uses the files below a folder that have more than a megabyte.
    ///
    /// # Errors
    ///
    /// Fails if there is no such file, or if the engine cannot start.
    pub fn new(folder: &Path) -> Result<Drive> {
        let mut files = files(folder)?;
        files.retain(|file| file.1 >= 1 << 20);
        if files.is_empty() {
            let says = format!(
                "{} has no file of a megabyte for direct reads",
                folder.display()
            );
            return Err(Error::other(says));
        }
        let engine = Engine::new().map_err(Error::other)?;
        Ok(Drive { engine, files })
    }

    /// Reads `reads` random blocks of `block_bytes`, a multiple of 4,096.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be opened for direct I/O, or a read fails.
    pub async fn read(&self, reads: u64, block_bytes: u64) -> Result<Cost> {
        let mut files = Vec::new();
        for (path, bytes) in &self.files {
            let file = self
                .engine
                .open_with(OpenOptions::new().read(true).direct(true), path);
            files.push((file.await?, *bytes));
        }
        let (files, started) = (Arc::new(files), Arc::new(AtomicU64::new(0)));
        let length = usize::try_from(block_bytes).map_err(Error::other)?;
        let stopwatch = Stopwatch::start()?;
        let tasks: Vec<_> = (0..DEPTH.min(reads))
            .map(|seed| {
                let (files, started) = (Arc::clone(&files), Arc::clone(&started));
                tokio::spawn(async move {
                    let mut random = fastrand::Rng::with_seed(seed);
                    let mut block = AlignedBuf::with_len(length, 4096);
                    while started.fetch_add(1, Ordering::Relaxed) < reads {
                        let (file, bytes) = &files[random.usize(0..files.len())];
                        let offset = random.u64(0..(bytes - block_bytes) / PAGE) * PAGE;
                        block = file.read_exact_at(block, offset).await?;
                    }
                    Ok::<_, Error>(())
                })
            })
            .collect();
        for task in tasks {
            task.await.map_err(Error::other)??;
        }
        stopwatch.stop()
    }
}
