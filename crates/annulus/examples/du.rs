//! Prints the space that folders take, as `du -sk` does, with a task for each folder below them:
//! `cargo run --release -p annulus --features tokio --example du -- /usr/share`

use std::collections::HashSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use annulus::tokio::fs; // `use tokio::fs;` instead takes the files of Tokio
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// The number of folders that are read at a time, each with a descriptor.
const FOLDERS_MAX: usize = 64;

/// Files with several names that have been counted: device and inode.
type Counted = Mutex<HashSet<(u64, u64)>>;

/// The files of a folder, and the folders in it.
struct Usage {
    blocks: u64,
    folders: Vec<PathBuf>,
}

async fn list(folder: &Path, counted: &Counted) -> io::Result<Usage> {
    let (mut blocks, mut folders) = (0, Vec::new());
    let mut entries = fs::read_dir(folder).await?;
    while let Some(entry) = entries.next_entry().await? {
        let metadata = match entry.metadata().await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue, // removed meanwhile
            metadata => metadata?,
        };
        let file = (metadata.dev(), metadata.ino());
        if metadata.is_dir() {
            folders.push(entry.path());
        } else if metadata.nlink() > 1
            && !counted
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(file)
        {
            continue;
        }
        blocks += metadata.blocks();
    }
    Ok(Usage { blocks, folders })
}

/// Returns the blocks of 512 bytes below `path`, and whether all could be read.
async fn measure(path: &Path, counted: &Arc<Counted>) -> io::Result<(u64, bool)> {
    let metadata = fs::symlink_metadata(path).await?;
    let (mut blocks, mut is_complete) = (metadata.blocks(), true);
    let mut folders = if metadata.is_dir() {
        vec![path.to_owned()]
    } else {
        Vec::new()
    };
    let (permits, mut tasks) = (Arc::new(Semaphore::new(FOLDERS_MAX)), JoinSet::new());
    loop {
        for folder in folders.drain(..) {
            let (permits, counted) = (Arc::clone(&permits), Arc::clone(counted));
            tasks.spawn(async move {
                let _permit = permits.acquire().await;
                list(&folder, &counted)
                    .await
                    .map_err(|error| (folder, error))
            });
        }
        match tasks.join_next().await {
            None => return Ok((blocks, is_complete)),
            Some(Err(panicked)) => return Err(panicked.into()),
            Some(Ok(Err((folder, error)))) => {
                eprintln!("du: {}: {error}", folder.display());
                is_complete = false;
            }
            Some(Ok(Ok(found))) => (blocks, folders) = (blocks + found.blocks, found.folders),
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let paths: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if paths.is_empty() {
        eprintln!("usage: du PATH…");
        return ExitCode::from(2);
    }
    let (counted, mut code) = (Arc::new(Counted::default()), ExitCode::SUCCESS);
    for path in paths {
        match measure(&path, &counted).await {
            Ok((blocks, is_complete)) => {
                println!("{}\t{}", blocks.div_ceil(2), path.display());
                if !is_complete {
                    code = ExitCode::FAILURE;
                }
            }
            Err(error) => {
                eprintln!("du: {}: {error}", path.display());
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}
