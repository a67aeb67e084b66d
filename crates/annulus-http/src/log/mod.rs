//! The access log: a line for each response. Each core gathers lines in memory and hands them to the log's own thread
//! (`writer.rs`), which is the only one that touches the file. A file that takes nothing costs lines, which are
//! counted, and delays neither a response nor the end of the server.

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

/// Once this number of bytes is gathered, the writer gets them without waiting for the next tick.
const BATCH_BYTES: usize = 64 << 10;
/// The memory of one core for lines that have not been written. Further lines are lost.
const WAITING_BYTES_MAX: usize = 1 << 20;

/// How a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogFormat {
    /// The format of NCSA's server, which most tools read.
    Common,
    /// The same, with where the client came from and what it calls itself.
    Combined,
    /// An object a line.
    Json,
}

/// An access log: a file and the thread that writes to it. Clones share both.
///
/// Lines are written within half a second, and earlier where many come. No core waits for the file: when it takes
/// nothing (a full disk, a FIFO that is not read), 1 MiB of lines per core waits for it, and further lines are lost.
/// Errors, and how many lines were lost, are reported on standard error.
///
/// The thread ends when the last clone is dropped and all lines are written or given up.
#[derive(Clone)]
pub struct AccessLog {
    writer: Arc<Closes>,
    path: PathBuf,
    format: LogFormat,
}

/// Tells the writer when the last clone of a log is gone.
struct Closes(Arc<Writer>);

impl Drop for Closes {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl AccessLog {
    /// Opens `path` to append to it, creates it if it does not exist, and starts the log's thread.
    ///
    /// A FIFO that nobody reads is opened as soon as somebody does; lines wait until then.
    ///
    /// # Errors
    ///
    /// The file can't be opened, or a thread can't be started.
    pub fn open(path: impl AsRef<Path>, format: LogFormat) -> io::Result<AccessLog> {
        let path = path.as_ref();
        let writer = Writer::start(Sink::open(path)?)?;
        Ok(AccessLog {
            writer: Arc::new(Closes(writer)),
            path: path.to_owned(),
            format,
        })
    }

    /// Opens the path again: call it after the file was renamed. Returns at once. Lines that were logged before
    /// go to the old file. If the path can't be opened the old file stays in use, and standard error says why.
    pub fn reopen(&self) {
        self.writer.0.reopen();
    }

    /// Waits until all lines are written, for at most two seconds; what is left then is given up and counted as lost.
    /// For the end of a server: call it when the runtime has ended.
    pub fn finish(&self) {
        self.writer.0.finish();
    }

    /// How many lines have been lost so far.
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
    /// How many lines that is.
    count: Cell<u64>,
    /// Lines for which there was no room, and which the writer has not been told of.
    lost: Cell<u64>,
    /// Bytes that this core has passed to the writer and that are not written yet.
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
        // Relaxed: it only bounds memory.
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
