//! The thread that writes an access log, and its interface to the cores. There is one thread per log.
//!
//! Cores queue batches of lines under a short lock and wake the thread. The thread sleeps in `poll` on an eventfd and,
//! while a FIFO is full, on the FIFO. Only this thread waits for the file.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::sink::{Sink, Stuck};

/// The time between two attempts to write to a file that failed.
const RETRY: Duration = Duration::from_secs(1);
/// The shortest time between two reports of lost lines.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// The time for which the end of a log waits for its file.
const END_WITHIN: Duration = Duration::from_secs(2);
/// The additional time for the thread, which may be blocked in a write to a file system that does not respond.
const END_SLACK: Duration = Duration::from_millis(500);

/// Lines of one core that are passed to the writer together. Dropping the batch frees its share of the core's limit.
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

/// The state that the cores and the thread share.
pub(super) struct Writer {
    queue: Mutex<Queue>,
    /// Signalled when all lines are written or given up.
    idle: Condvar,
    /// An eventfd that wakes the thread.
    wakeup: OwnedFd,
    lost: AtomicU64,
}

#[derive(Default)]
struct Queue {
    batches: VecDeque<Batch>,
    /// Lines lost since the thread last took this.
    lost: u64,
    reopen: bool,
    closed: bool,
    /// The time at which the remaining lines are given up.
    ends_at: Option<Instant>,
    /// The thread has no lines left.
    is_idle: bool,
}

impl Writer {
    pub(super) fn start(sink: Sink) -> io::Result<Arc<Writer>> {
        let writer = Arc::new(Writer {
            queue: Mutex::new(Queue {
                is_idle: true,
                ..Queue::default()
            }),
            idle: Condvar::new(),
            wakeup: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            lost: AtomicU64::new(0),
        });
        let shared = Arc::clone(&writer);
        let thread = thread::Builder::new().name("access-log".into());
        thread.spawn(move || WriterThread::new(shared, sink).run())?;
        Ok(writer)
    }

    pub(super) fn put(&self, batch: Batch, lost: u64) {
        let mut queue = self.lock();
        queue.lost += lost;
        if batch.lines > 0 {
            queue.batches.push_back(batch);
            queue.is_idle = false;
        }
        drop(queue);
        self.lost.fetch_add(lost, Ordering::Relaxed);
        self.wake();
    }

    pub(super) fn reopen(&self) {
        self.lock().reopen = true;
        self.wake();
    }

    pub(super) fn close(&self) {
        let mut queue = self.lock();
        queue.closed = true;
        queue.ends_at.get_or_insert(Instant::now() + END_WITHIN);
        drop(queue);
        self.wake();
    }

    pub(super) fn finish(&self) {
        let until = Instant::now() + END_WITHIN;
        let mut queue = self.lock();
        queue.ends_at = Some(until);
        // Makes the thread run once more and report lost lines.
        queue.is_idle = false;
        self.wake();
        while !queue.is_idle {
            let left = (until + END_SLACK).saturating_duration_since(Instant::now());
            if left.is_zero() {
                let _ = writeln!(
                    io::stderr(),
                    "annulus: access log: the file accepted no data in time; the last lines are lost"
                );
                break;
            }
            let result = self.idle.wait_timeout(queue, left);
            queue = result.unwrap_or_else(PoisonError::into_inner).0;
        }
        queue.ends_at = None;
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    fn wake(&self) {
        // This fails only if the counter is at its maximum; the thread is awake then.
        let _ = rustix::io::write(&self.wakeup, &1u64.to_ne_bytes());
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state of the thread.
struct WriterThread {
    shared: Arc<Writer>,
    sink: Sink,
    batches: VecDeque<Batch>,
    /// The number of lost lines that are not reported, and the time of the last report.
    lost: u64,
    reported: Option<Instant>,
    /// The reported problem of the file.
    problem: Option<String>,
}

impl WriterThread {
    fn new(shared: Arc<Writer>, sink: Sink) -> WriterThread {
        WriterThread {
            shared,
            sink,
            batches: VecDeque::new(),
            lost: 0,
            reported: None,
            problem: None,
        }
    }

    fn run(mut self) {
        loop {
            let mut queue = self.shared.lock();
            self.batches.append(&mut queue.batches);
            self.lost += std::mem::take(&mut queue.lost);
            let reopen = std::mem::take(&mut queue.reopen);
            let (closed, ends_at) = (queue.closed, queue.ends_at);
            drop(queue);
            if reopen && let Err(error) = self.sink.reopen(&mut self.batches) {
                let message = format!("cannot reopen the file: {error}; the old file stays in use");
                self.report(&message);
            }
            let any = !self.batches.is_empty();
            let stuck = self.sink.write(&mut self.batches).err();
            if any {
                self.report_problem(stuck.as_ref());
            }
            let ends = ends_at.is_some_and(|at| at <= Instant::now());
            if ends {
                self.give_up();
            }
            self.report_lost(closed || ends_at.is_some());
            if self.batches.is_empty() && self.mark_idle(closed) {
                return;
            }
            self.sleep(stuck.as_ref(), ends_at);
        }
    }

    /// Marks the writer as idle. Returns whether the log is closed and nothing follows.
    fn mark_idle(&mut self, closed: bool) -> bool {
        let mut queue = self.shared.lock();
        if !queue.batches.is_empty() {
            return false;
        }
        queue.is_idle = true;
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

    /// Reports that the file accepts no lines, or that it does again.
    fn report_problem(&mut self, stuck: Option<&Stuck>) {
        let problem = match stuck {
            // A slow reader is reported only when lines are lost.
            None | Some(Stuck::Full) => None,
            Some(Stuck::NoReader) => Some("the FIFO has no reader".to_owned()),
            Some(Stuck::Failed(error)) => Some(error.to_string()),
        };
        if problem != self.problem {
            match &problem {
                Some(problem) => {
                    self.report(&format!("{problem}; up to 1 MiB of lines per core is kept"))
                }
                None => self.report("the file accepts lines again"),
            }
            self.problem = problem;
        }
    }

    /// Reports the number of lost lines if `now`, or if the last report is long enough ago.
    fn report_lost(&mut self, now: bool) {
        if self.lost > 0
            && (now
                || self
                    .reported
                    .is_none_or(|reported| reported.elapsed() >= REPORT_EVERY))
        {
            let reason = self.problem.as_deref();
            let reason = reason.unwrap_or("lines are logged faster than the file accepts them");
            self.report(&format!("{} lines are lost: {reason}", self.lost));
            self.lost = 0;
            self.reported = Some(Instant::now());
        }
    }

    fn report(&self, message: &str) {
        let _ = writeln!(
            io::stderr(),
            "annulus: access log {}: {message}",
            self.sink.path().display()
        );
    }

    /// Sleeps until the thread is woken, the FIFO has space, or it is time for another attempt.
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
        // A duration that does not fit into a `Timespec` is longer than any of the times above.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut watched = vec![PollFd::new(&self.shared.wakeup, PollFlags::IN)];
        if let (Some(Stuck::Full), Some(file)) = (stuck, self.sink.file()) {
            watched.push(PollFd::from_borrowed_fd(file, PollFlags::OUT));
        }
        // An interrupted wait only causes another pass.
        let _ = poll(&mut watched, left.as_ref());
        // This fails if the thread was not woken through it.
        let _ = rustix::io::read(&self.shared.wakeup, &mut [0; 8]);
    }
}
