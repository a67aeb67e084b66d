//! The access log: one line per response.
//!
//! Each core gathers lines in memory and passes them to the log's thread (`writer.rs`). Only that thread uses the file.
//! If the file accepts no data, lines are lost and counted, but neither responses nor the end of the server are
//! delayed.

mod line;
mod sink;
mod writer;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) use self::line::Line;
use self::sink::Sink;
use self::writer::{Batch, Writer};
use crate::clock::Clock;

/// The number of gathered bytes that are passed to the writer before the next tick.
const BATCH_BYTES: usize = 64 << 10;
/// The memory of one core for lines that are not written yet. Further lines are lost.
const WAITING_BYTES_MAX: usize = 1 << 20;

/// The format of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogFormat {
    /// The Common Log Format of the NCSA server, which most tools read.
    Common,
    /// The Common Log Format with the fields `Referer` and `User-Agent`.
    Combined,
    /// One JSON object per line.
    Json,
}

/// An access log: a file and the thread that writes to it. Clones share both.
///
/// Lines are written within half a second, or earlier if there are many. No core waits for the file. If the file
/// accepts no data (a full disk, a FIFO without a reader), up to 1 MiB of lines per core are kept, and further lines
/// are lost. Errors and the number of lost lines are reported on standard error.
///
/// The thread ends after the last clone was dropped and all lines are written or given up.
#[derive(Clone)]
pub struct AccessLog {
    writer: Arc<Closes>,
    path: PathBuf,
    format: LogFormat,
}

/// Closes the writer when the last clone of a log is dropped.
struct Closes(Arc<Writer>);

impl Drop for Closes {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl AccessLog {
    /// Opens `path` for appending, creates it if it does not exist, and starts the log's thread.
    ///
    /// A FIFO without a reader is opened once it has one. Lines are kept until then.
    ///
    /// # Errors
    ///
    /// Fails with any error of opening the file, and if the thread cannot be started.
    pub fn open(path: impl AsRef<Path>, format: LogFormat) -> io::Result<AccessLog> {
        let path = path.as_ref();
        let writer = Writer::start(Sink::open(path)?)?;
        Ok(AccessLog {
            writer: Arc::new(Closes(writer)),
            path: path.to_owned(),
            format,
        })
    }

    /// Opens the path again. Call it after the file was renamed.
    ///
    /// It does not wait. Lines that were logged before go to the old file. If the path cannot be opened, the old file
    /// stays in use and the error is reported on standard error.
    pub fn reopen(&self) {
        self.writer.0.reopen();
    }

    /// Waits until all lines are written, for at most two seconds. The remaining lines are then counted as lost.
    ///
    /// Call it at the end of a server, when the runtime has ended.
    pub fn finish(&self) {
        self.writer.0.finish();
    }

    /// Returns the number of lost lines.
    pub fn lost(&self) -> u64 {
        self.writer.0.lost()
    }
}

impl fmt::Debug for AccessLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessLog")
            .field("path", &self.path)
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

/// One core's lines.
pub(crate) struct Log {
    log: AccessLog,
    lines: RefCell<Vec<u8>>,
    /// The number of gathered lines.
    count: Cell<u64>,
    /// Lines that did not fit, and that the writer has not counted yet.
    lost: Cell<u64>,
    /// The bytes that this core has passed to the writer and that are not written yet.
    handed: Arc<AtomicUsize>,
}

impl Log {
    pub(crate) fn new(log: AccessLog) -> Log {
        Log {
            log,
            lines: RefCell::default(),
            count: Cell::new(0),
            lost: Cell::new(0),
            handed: Arc::default(),
        }
    }

    pub(crate) fn note(&self, clock: &Clock, line: &Line<'_>) {
        let mut lines = self.lines.borrow_mut();
        // Relaxed, because it only bounds memory.
        if lines.len() + self.handed.load(Ordering::Relaxed) >= WAITING_BYTES_MAX {
            self.lost.set(self.lost.get() + 1);
            return;
        }
        line.write(&mut lines, self.log.format, clock);
        self.count.set(self.count.get() + 1);
        let enough = lines.len() >= BATCH_BYTES;
        drop(lines);
        if enough {
            self.pass_to_writer();
        }
    }

    /// Returns whether there are lines for the writer.
    pub(crate) fn has_lines(&self) -> bool {
        self.count.get() > 0 || self.lost.get() > 0
    }

    /// Passes the gathered lines to the writer. Never waits for the file.
    pub(crate) fn pass_to_writer(&self) {
        if !self.has_lines() {
            return;
        }
        let batch = Batch::new(self.lines.take(), self.count.take(), &self.handed);
        self.log.writer.0.put(batch, self.lost.take());
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.pass_to_writer();
    }
}
