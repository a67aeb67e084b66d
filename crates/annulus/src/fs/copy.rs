//! Copies of whole files.

use std::fs::Permissions;
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use super::{File, OpenOptions, PathIn};
use crate::buf::IoBuf;
use crate::driver::{Operation, Submitter};
use crate::narrow::to_usize;
use crate::op::{CopyFile, CopyRange};

/// The smallest and largest buffer of a copy through memory, bytes.
const BUFFER_BYTES: std::ops::RangeInclusive<usize> = 8 << 10..=1 << 20;

pub(crate) async fn copy(
    submitter: &Arc<Submitter>,
    from: PathIn<'_>,
    to: PathIn<'_>,
) -> io::Result<u64> {
    let mut options = OpenOptions::new();
    let source = options.read(true).open(submitter, from).await?;
    let metadata = source.metadata().await?;
    if !metadata.is_file() {
        return Err(refused(
            from.path(),
            "is not a regular file; only those are copied",
        ));
    }
    // Truncated later, because it may be the same file.
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).mode(metadata.mode());
    let target = options.open(submitter, to).await?;
    let old = target.metadata().await?;
    if (old.device(), old.inode()) == (metadata.device(), metadata.inode()) {
        return Err(refused(
            to.path(),
            "is the file to copy; choose another name",
        ));
    }
    let mut copied = 0;
    if old.is_file() {
        if old.len() > 0 {
            target.set_len(0).await?;
        }
        if old.mode() != metadata.mode() {
            let permissions = Permissions::from_mode(metadata.mode());
            target.set_permissions(permissions).await?;
        }
        // Files of /proc report no length, and the kernel would copy as much.
        if metadata.len() > 0 {
            let (from, into) = ((source.fd.clone(), 0), (target.fd.clone(), 0));
            let whole = CopyFile::new(CopyRange::new(from, into, metadata.len()));
            // After an error, the reads and writes below continue, or fail with the same one.
            copied = Operation::new(submitter, whole).await.unwrap_or(0);
        }
    }
    let left = to_usize(metadata.len().saturating_sub(copied)).saturating_add(1);
    let buffer_bytes = left.clamp(*BUFFER_BYTES.start(), *BUFFER_BYTES.end());
    copy_rest(&source, &target, copied, buffer_bytes).await
}

/// Copies the bytes from `at` up to the end of the file through memory. Returns the end.
async fn copy_rest(
    source: &File,
    target: &File,
    mut at: u64,
    buffer_bytes: usize,
) -> io::Result<u64> {
    let mut buf = vec![0; buffer_bytes];
    loop {
        let (bytes, read) = source.read_at(buf, at).await?;
        if bytes == 0 {
            return Ok(at);
        }
        let written = target.write_whole(read.subslice(..bytes), at).await?;
        buf = written.into_inner();
        at += bytes as u64;
    }
}

fn refused(path: &Path, why: &str) -> io::Error {
    let what = format!("copy: {} {why}", path.display());
    io::Error::new(ErrorKind::InvalidInput, what)
}
