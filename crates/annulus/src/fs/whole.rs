//! Functions that combine several operations on paths, with the meaning of those in `std::fs`.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;

use super::{OpenOptions, paths};
use crate::buf::IoBuf;
use crate::driver::Submitter;

pub(crate) async fn read(submitter: &Arc<Submitter>, path: &Path) -> io::Result<Vec<u8>> {
    let mut options = OpenOptions::new();
    let file = options.read(true).open(submitter, path).await?;
    let bytes = file.metadata().await?.len();
    let bytes = usize::try_from(bytes).map_err(|_| ErrorKind::OutOfMemory)?;
    // One more, so that a read that ends before it has reached the end of the file. Files of /proc have no length.
    let mut buf = vec![0; bytes.saturating_add(1).max(GROW_BYTES)];
    let mut done = 0;
    loop {
        let (read, rest) = file.read_at(buf.subslice(done..), done as u64).await?;
        buf = rest.into_inner();
        done += read;
        if read == 0 {
            buf.truncate(done);
            return Ok(buf);
        }
        if done == buf.len() {
            buf.resize(done.saturating_mul(2), 0);
        }
    }
}

/// The smallest buffer for a file whose length is unknown, bytes.
const GROW_BYTES: usize = 512;

pub(crate) async fn read_to_string(submitter: &Arc<Submitter>, path: &Path) -> io::Result<String> {
    String::from_utf8(read(submitter, path).await?)
        .map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

pub(crate) async fn write<B: IoBuf>(
    submitter: &Arc<Submitter>,
    path: &Path,
    contents: B,
) -> io::Result<()> {
    let file = paths::to_create().open(submitter, path).await?;
    file.write_all_at(contents, 0).await?;
    Ok(())
}

pub(crate) async fn try_exists(submitter: &Submitter, path: &Path) -> io::Result<bool> {
    match paths::metadata(submitter, path, true).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

pub(crate) async fn create_dir_all(submitter: &Submitter, path: &Path) -> io::Result<()> {
    // From the end, because most directories exist.
    let mut missing = Vec::new();
    for dir in path.ancestors().filter(|dir| *dir != Path::new("")) {
        match ensure_dir(submitter, dir).await {
            Err(error) if error.kind() == ErrorKind::NotFound => missing.push(dir),
            Err(error) => return Err(error),
            Ok(()) => break,
        }
    }
    for dir in missing.into_iter().rev() {
        ensure_dir(submitter, dir).await?;
    }
    Ok(())
}

/// Creates a directory. Succeeds if it exists, perhaps because another task has just created it.
async fn ensure_dir(submitter: &Submitter, path: &Path) -> io::Result<()> {
    let Err(error) = paths::create_dir(submitter, path).await else {
        return Ok(());
    };
    match paths::metadata(submitter, path, true).await {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        _ => Err(error),
    }
}
