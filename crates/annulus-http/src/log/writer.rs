//! The thread that writes an access log, and how cores reach it: one per log, for all cores.
//!
//! Cores put batches of lines under a lock that is held for a moment, and ring; the thread sleeps in `poll`, on the
//! bell and, while a FIFO is full, on the FIFO. Nothing but this thread waits for the file.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::sink::{Sink, Stuck};

/// A file that failed is tried again this often.
const RETRY: Duration = Duration::from_secs(1);
/// Lost lines are told at most this often.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// How long the end of a log waits for a file that takes nothing.
const END_WITHIN: Duration = Duration::from_secs(2);
/// By how much longer it waits for the thread, which may be inside a write to a file system that does not answer.
const END_SLACK: Duration = Duration::from_millis(500);

/// Lines of one core, passed to the writer together. Dropping the batch frees its share of the core's limit.
pub(super) struct Batch {
    bytes: Vec<u8>,
    lines: u64,
    handed: Arc<AtomicUsize>,
}

impl Batch {
    /// `handed` counts the bytes that the core has passed to the writer and that are not written yet.
    pub(super) fn new(bytes: Vec<u8>, lines: u64, handed: &Arc<AtomicUsize>) -> Batch {
        handed.fetch_add(bytes.len(), Ordering::Relaxed);
        Batch {
            bytes,
            lines,
            handed: Arc::clone(handed),
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.handed.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

/// What cores and the thread share.
pub(super) struct Writer {
    orders: Mutex<Orders>,
    /// Signalled when everything has been written or given up.
    idle: Condvar,
    /// An eventfd that wakes the thread.
    bell: OwnedFd,
    lost: AtomicU64,
}

#[derive(Default)]
struct Orders {
    batches: VecDeque<Batch>,
    /// Lines that were lost since the thread last looked.
    lost: u64,
    reopen: bool,
    closed: bool,
    /// When what is left is given up.
    ends_at: Option<Instant>,
    /// The thread has nothing left of what it took.
    is_idle: bool,
}

impl Writer {
    pub(super) fn start(sink: Sink) -> io::Result<Arc<Writer>> {
        let writer = Arc::new(Writer {
            orders: Mutex::new(Orders {
                is_idle: true,
                ..Orders::default()
            }),
            idle: Condvar::new(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            lost: AtomicU64::new(0),
        });
        let shared = Arc::clone(&writer);
        let thread = thread::Builder::new().name("access-log".into());
        thread.spawn(move || WriterThread::new(shared, sink).run())?;
        Ok(writer)
    }

    pub(super) fn put(&self, batch: Batch, lost: u64) {
        let mut orders = self.lock();
        orders.lost += lost;
        if batch.lines > 0 {
            orders.batches.push_back(batch);
            orders.is_idle = false;
        }
        drop(orders);
        self.lost.fetch_add(lost, Ordering::Relaxed);
        self.ring();
    }

    pub(super) fn reopen(&self) {
        self.lock().reopen = true;
        self.ring();
    }

    pub(super) fn close(&self) {
        let mut orders = self.lock();
        orders.closed = true;
        orders.ends_at.get_or_insert(Instant::now() + END_WITHIN);
        drop(orders);
        self.ring();
    }

    pub(super) fn finish(&self) {
        let until = Instant::now() + END_WITHIN;
        let mut orders = self.lock();
        orders.ends_at = Some(until);
        // So that the thread looks once more, and says what was lost.
        orders.is_idle = false;
        self.ring();
        while !orders.is_idle {
            let left = (until + END_SLACK).saturating_duration_since(Instant::now());
            if left.is_zero() {
                eprintln!("annulus: access log: its file does not answer; the last lines are lost");
                break;
            }
            let waited = self.idle.wait_timeout(orders, left);
            orders = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        orders.ends_at = None;
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    fn ring(&self) {
        // Refused only if the count is at its end; the thread is awake then.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    fn lock(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the thread has of its own.
struct WriterThread {
    shared: Arc<Writer>,
    sink: Sink,
    batches: VecDeque<Batch>,
    /// Lost lines that have not been told, and when some were told last.
    lost: u64,
    reported: Option<Instant>,
    /// What is wrong with the file, as it was reported.
    trouble: Option<String>,
}

impl WriterThread {
    fn new(shared: Arc<Writer>, sink: Sink) -> WriterThread {
        WriterThread {
            shared,
            sink,
            batches: VecDeque::new(),
            lost: 0,
            reported: None,
            trouble: None,
        }
    }

    fn run(mut self) {
        loop {
            let mut orders = self.shared.lock();
            self.batches.append(&mut orders.batches);
            self.lost += std::mem::take(&mut orders.lost);
            let reopen = std::mem::take(&mut orders.reopen);
            let (closed, ends_at) = (orders.closed, orders.ends_at);
            drop(orders);
            if reopen && let Err(error) = self.sink.reopen(&mut self.batches) {
                let says = format!("opening it again: {error}; the old file stays in use");
                self.report(&says);
            }
            let any = !self.batches.is_empty();
            let stuck = self.sink.write(&mut self.batches).err();
            if any {
                self.note_trouble(stuck.as_ref());
            }
            let ends = ends_at.is_some_and(|at| at <= Instant::now());
            if ends {
                self.give_up();
            }
            self.report_lost(closed || ends_at.is_some());
            if self.batches.is_empty() && self.settle(closed) {
                return;
            }
            self.sleep(stuck.as_ref(), ends_at);
        }
    }

    /// Nothing is left. True: nothing follows either.
    fn settle(&mut self, closed: bool) -> bool {
        let mut orders = self.shared.lock();
        if !orders.batches.is_empty() {
            return false;
        }
        orders.is_idle = true;
        self.shared.idle.notify_all();
        closed
    }

    fn give_up(&mut self) {
        let lines = self.batches.iter().map(|batch| batch.lines).sum::<u64>();
        let lost = lines - self.sink.forget(&self.batches);
        self.batches.clear();
        self.lost += lost;
        self.shared.lost.fetch_add(lost, Ordering::Relaxed);
    }

    /// Says that the file does not take lines, or that it does again.
    fn note_trouble(&mut self, stuck: Option<&Stuck>) {
        let trouble = match stuck {
            // A reader that is slow is not worth a word until lines are lost.
            None | Some(Stuck::Full) => None,
            Some(Stuck::NoReader) => Some("nobody reads this FIFO".to_owned()),
            Some(Stuck::Failed(error)) => Some(error.to_string()),
        };
        if trouble != self.trouble {
            match &trouble {
                Some(trouble) => {
                    self.report(&format!("{trouble}; lines wait, at most 1 MiB per core"))
                }
                None => self.report("written again"),
            }
            self.trouble = trouble;
        }
    }

    /// Says how many lines were lost, if it is `now` or long enough ago that it was reported last.
    fn report_lost(&mut self, now: bool) {
        if self.lost > 0
            && (now
                || self
                    .reported
                    .is_none_or(|reported| reported.elapsed() >= REPORT_EVERY))
        {
            let why = self.trouble.as_deref();
            let why = why.unwrap_or("lines came faster than the file takes them");
            self.report(&format!("{} lines are lost: {why}", self.lost));
            self.lost = 0;
            self.reported = Some(Instant::now());
        }
    }

    fn report(&self, what: &str) {
        eprintln!("annulus: access log {}: {what}", self.sink.path().display());
    }

    /// Until somebody rings, the FIFO has room, or it is time for another try.
    fn sleep(&self, stuck: Option<&Stuck>, ends_at: Option<Instant>) {
        let now = Instant::now();
        let retry = match stuck {
            Some(Stuck::Failed(_) | Stuck::NoReader) => Some(now + RETRY),
            Some(Stuck::Full) | None => None,
        };
        let report = (self.lost > 0).then(|| {
            self.reported
                .map_or(now, |reported| reported + REPORT_EVERY)
        });
        let end = ends_at.filter(|_| !self.batches.is_empty());
        let until = [retry, report, end].into_iter().flatten().min();
        let left = until.map(|until| until.saturating_duration_since(now));
        // What is no `Timespec` is longer than any of the times above.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut watched = vec![PollFd::new(&self.shared.bell, PollFlags::IN)];
        if let (Some(Stuck::Full), Some(file)) = (stuck, self.sink.file()) {
            watched.push(PollFd::from_borrowed_fd(file, PollFlags::OUT));
        }
        // An interrupted wait is a look more.
        let _ = poll(&mut watched, left.as_ref());
        // Refused if no thread has signalled.
        let _ = rustix::io::read(&self.shared.bell, &mut [0; 8]);
    }
}
