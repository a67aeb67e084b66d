//! One blocking positional call (`pread` or `pwrite`), for the variants that make it on a thread.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::io::{ReadWriteFlags, pwritev2};

use crate::{Job, Op};

/// Returns the number of system calls of an operation.
pub(crate) fn calls(job: &Job) -> u64 {
    match (job.paths.is_empty(), job.whole) {
        (true, _) => 1,
        (false, false) => 4,
        // The end of the file is a second read.
        (false, true) => 5,
    }
}

/// Runs `op` of `job`.
pub(crate) fn run(job: &Job, op: &Op, bytes: &mut [u8]) -> io::Result<usize> {
    match job.paths.get(op.file as usize) {
        Some(path) if job.whole => copy_whole(&std::fs::read(path)?, bytes),
        Some(path) => read_whole(path, bytes),
        None => call(job.file(op), op, bytes, job.durable),
    }
}

/// Opens a file, queries its metadata, reads it and closes it.
fn read_whole(path: &Path, bytes: &mut [u8]) -> io::Result<usize> {
    let file = File::open(path)?;
    let length = whole(file.metadata()?.len(), bytes.len())?;
    file.read_at(&mut bytes[..length], 0)
}

/// Copies the contents of a file into a buffer that they must fill. Returns the length.
pub fn copy_whole(contents: &[u8], bytes: &mut [u8]) -> io::Result<usize> {
    let length = whole(contents.len() as u64, bytes.len())?;
    bytes.copy_from_slice(contents);
    Ok(length)
}

/// Returns the length of a file, which must be `bytes`.
pub(crate) fn whole(length: u64, bytes: usize) -> io::Result<usize> {
    match usize::try_from(length) {
        Ok(length) if length == bytes => Ok(length),
        _ => Err(io::Error::other(format!(
            "the file has {length} bytes instead of {bytes}"
        ))),
    }
}

/// Runs `op` on `file`. A durable write is a single `pwritev2` with `RWF_DSYNC`.
fn call(file: &File, op: &Op, bytes: &mut [u8], durable: bool) -> io::Result<usize> {
    match (op.write, durable) {
        (false, _) => file.read_at(bytes, op.offset),
        (true, false) => file.write_at(bytes, op.offset),
        (true, true) => write_durably(file, bytes, op.offset),
    }
}

fn write_durably(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    let part = [IoSlice::new(bytes)];
    Ok(pwritev2(file, &part, offset, ReadWriteFlags::DSYNC)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_durable_write_is_there_and_an_error_is_the_kernels() {
        let path = std::env::temp_dir().join(format!("annulus-call-{}", std::process::id()));
        let file = File::create_new(&path).unwrap();
        let reader = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let op = Op {
            write: true,
            offset: 3,
            ..Op::default()
        };
        assert_eq!(call(&file, &op, &mut [7; 5], true).unwrap(), 5);
        let mut back = [0; 8];
        assert_eq!(reader.read_at(&mut back, 0).unwrap(), 8);
        assert_eq!(back, [0, 0, 0, 7, 7, 7, 7, 7]);
        let error = call(&reader, &op, &mut [7; 5], true).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    }
}
