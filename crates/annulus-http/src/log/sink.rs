//! The file of an access log, used by the writer's thread. It is opened and written without waiting, and can be
//! reopened after it was renamed.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::writer::Batch;

/// The mode of a new log file, subject to the umask.
const MODE: Mode = Mode::from_raw_mode(0o666);

pub(super) struct Sink {
    path: PathBuf,
    /// `None` for a FIFO without a reader, or if it could not be reopened after its reader left.
    file: Option<OwnedFd>,
    /// The bytes of the first batch that have been written.
    written: usize,
}

/// The reason why not everything was written.
#[derive(Debug)]
pub(super) enum Stuck {
    /// A FIFO or a terminal is full. It can be polled.
    Full,
    /// The FIFO has no reader.
    NoReader,
    /// Any other error, such as a full disk. Another attempt follows later.
    Failed(io::Error),
}

impl Sink {
    pub(super) fn open(path: &Path) -> io::Result<Sink> {
        Ok(Sink {
            path: path.to_owned(),
            file: open(path)?,
            written: 0,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file to poll for space.
    pub(super) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Opens the path again after writing as much as possible to the old file. On an error the old file stays in use.
    pub(super) fn reopen(&mut self, batches: &mut VecDeque<Batch>) -> io::Result<()> {
        // If the old file accepts no more, the rest goes to the new one.
        let _ = self.write(batches);
        self.file = open(&self.path)?;
        self.restart_line(batches);
        Ok(())
    }

    /// Writes as much as the file accepts, and removes the batches that are written completely.
    pub(super) fn write(&mut self, batches: &mut VecDeque<Batch>) -> Result<(), Stuck> {
        while let Some(batch) = batches.front() {
            if self.file.is_none() {
                self.file = open(&self.path).map_err(Stuck::Failed)?;
            }
            let Some(file) = &self.file else {
                return Err(Stuck::NoReader);
            };
            // A batch is written at once, so that lines of several appending processes stay intact.
            match rustix::io::write(file, &batch.bytes()[self.written..]) {
                Ok(bytes) => self.written += bytes,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) if !is_regular(file) => return Err(Stuck::Full),
                // The reader of the FIFO has left. There may be another one.
                Err(Errno::PIPE) => {
                    self.file = None;
                    self.restart_line(batches);
                    continue;
                }
                Err(error) => return Err(Stuck::Failed(error.into())),
            }
            if self.written == batch.bytes().len() {
                batches.pop_front();
                self.written = 0;
            }
        }
        Ok(())
    }

    /// Gives up the batches. Returns the number of their lines that have been written.
    pub(super) fn forget(&mut self, batches: &VecDeque<Batch>) -> u64 {
        let written = std::mem::take(&mut self.written);
        let written = batches.front().map(|batch| &batch.bytes()[..written]);
        written.map_or(0, |bytes| memchr::memchr_iter(b'\n', bytes).count() as u64)
    }

    /// Continues with another file: a line that was written in part is written to it in full.
    fn restart_line(&mut self, batches: &VecDeque<Batch>) {
        let written = batches.front().map(|batch| &batch.bytes()[..self.written]);
        let end = written.and_then(|written| memchr::memrchr(b'\n', written));
        self.written = end.map_or(0, |end| end + 1);
    }
}

/// Opens the file with `O_NONBLOCK`, so that neither this nor a write waits for the reader of a FIFO. Returns `None`
/// for a FIFO without a reader.
fn open(path: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY;
    loop {
        match rustix::fs::open(path, flags, MODE) {
            Ok(file) => return Ok(Some(file)),
            Err(Errno::INTR) => {}
            Err(Errno::NXIO) if is_fifo(path) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns whether the file is regular. `poll` always reports a regular file as writable.
fn is_regular(file: &OwnedFd) -> bool {
    let metadata = rustix::fs::fstat(file);
    metadata.is_ok_and(|metadata| FileType::from_raw_mode(metadata.st_mode).is_file())
}

fn is_fifo(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo())
}
