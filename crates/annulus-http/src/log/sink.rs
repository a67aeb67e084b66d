//! The file of an access log: opened and written without ever waiting for it, opened again after it was renamed. The
//! writer's thread has the only one.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::writer::Batch;

/// What a log's file is created with, less the process's umask.
const MODE: Mode = Mode::from_raw_mode(0o666);

pub(super) struct Sink {
    path: PathBuf,
    /// `None`: it is a FIFO that nobody reads, or it could not be opened again after its reader had gone.
    file: Option<OwnedFd>,
    /// Bytes of the first batch that have been written.
    written: usize,
}

/// Why not everything was written.
#[derive(Debug)]
pub(super) enum Stuck {
    /// A FIFO, or a terminal, is full. It can be polled.
    Full,
    /// Nobody reads the FIFO.
    NoReader,
    /// Anything else, such as a full disk: it is tried again later.
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

    /// What to poll for room.
    pub(super) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Opens the path again, after what there is has gone to the old file as far as that takes it. An error leaves
    /// the old file in use.
    pub(super) fn reopen(&mut self, batches: &mut VecDeque<Batch>) -> io::Result<()> {
        // Where it is stuck, the rest goes to the new one.
        let _ = self.write(batches);
        self.file = open(&self.path)?;
        self.begin_line_anew(batches);
        Ok(())
    }

    /// Writes what the file takes now; each batch that is written whole is removed.
    pub(super) fn write(&mut self, batches: &mut VecDeque<Batch>) -> Result<(), Stuck> {
        while let Some(batch) = batches.front() {
            if self.file.is_none() {
                self.file = open(&self.path).map_err(Stuck::Failed)?;
            }
            let Some(file) = &self.file else {
                return Err(Stuck::NoReader);
            };
            // A whole batch at a time: lines of several processes that append stay whole.
            match rustix::io::write(file, &batch.bytes()[self.written..]) {
                Ok(bytes) => self.written += bytes,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) if !is_regular(file) => return Err(Stuck::Full),
                // The reader of a FIFO has gone. Another one may have come.
                Err(Errno::PIPE) => {
                    self.file = None;
                    self.begin_line_anew(batches);
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

    /// The batches are given up. Returns how many of their lines have been written.
    pub(super) fn forget(&mut self, batches: &VecDeque<Batch>) -> u64 {
        let written = std::mem::take(&mut self.written);
        let written = batches.front().map(|batch| &batch.bytes()[..written]);
        written.map_or(0, |bytes| memchr::memchr_iter(b'\n', bytes).count() as u64)
    }

    /// Another file follows: a line that the old one got a part of is written to it from its beginning.
    fn begin_line_anew(&mut self, batches: &VecDeque<Batch>) {
        let written = batches.front().map(|batch| &batch.bytes()[..self.written]);
        let end = written.and_then(|written| memchr::memrchr(b'\n', written));
        self.written = end.map_or(0, |end| end + 1);
    }
}

/// `O_NONBLOCK`: neither this nor a write waits for the other end of a FIFO. `None`: a FIFO that nobody reads.
fn open(path: &Path) -> io::Result<Option<OwnedFd>> {
    let how = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
    let how = how | OFlags::NONBLOCK | OFlags::NOCTTY;
    loop {
        match rustix::fs::open(path, how, MODE) {
            Ok(file) => return Ok(Some(file)),
            Err(Errno::INTR) => {}
            Err(Errno::NXIO) if is_fifo(path) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// `poll` says of a regular file that there is room, always.
fn is_regular(file: &OwnedFd) -> bool {
    let metadata = rustix::fs::fstat(file);
    metadata.is_ok_and(|metadata| FileType::from_raw_mode(metadata.st_mode).is_file())
}

fn is_fifo(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo())
}
