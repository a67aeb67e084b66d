//! Where operations are handed over: the lanes of one engine. Files and engines share one; when the
//! last of them goes, the lanes are stopped and drained.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use super::{Lane, blocking};
use crate::buf::BouncePool;
use crate::fd::CloseFd;
use crate::metrics::{Counter, Metrics};
use crate::op::Op;
use crate::sys::call;
use crate::sys::sqe::opcode;

/// Operations a thread hands to one lane before it turns to the next: enough for a chunk to stay
/// together.
const LANE_RUN: usize = 8;

/// A clock that deadlines are measured by.
pub(crate) trait Clock: Send + Sync {
    /// ns since some fixed moment; never goes back.
    fn now_ns(&self) -> u64;
}

/// A lane, and the thread that drives it.
pub(crate) struct LaneThread {
    pub(crate) lane: Arc<Lane>,
    /// `None` where the calling thread drives the lane itself.
    pub(crate) thread: Option<JoinHandle<()>>,
}

/// The lanes of one engine.
pub(crate) struct Submitter {
    lanes: Vec<Arc<Lane>>,
    /// The lane whose ring polls devices, if there is one.
    polled: Option<Arc<Lane>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    opcodes: Opcodes,
    /// For what the lanes' kernel has no opcode for; made on first use.
    helpers: OnceLock<blocking::Pool>,
    blocking: blocking::Config,
    pub(crate) bounces: Arc<BouncePool>,
    /// Who closes descriptors, where they are not the process's own.
    pub(crate) closer: Option<Arc<dyn CloseFd>>,
    /// The clock of deadlines, where it is not the machine's.
    pub(crate) clock: Option<Arc<dyn Clock>>,
    /// Runs the lanes to their end, where the calling thread does that itself.
    pub(crate) finish_here: Option<fn()>,
    /// Shared by all; each thread starts at a lane of its own.
    threads_seen: AtomicUsize,
    /// Answers that needed no lane.
    inline: Counter,
}

/// Which opcodes a kernel takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opcodes([u64; 4]);

impl Opcodes {
    /// A kernel that takes none: everything runs on blocking threads.
    pub(crate) const NONE: Opcodes = Opcodes([0; 4]);

    pub(crate) fn of(takes: impl Fn(u8) -> bool) -> Opcodes {
        let mut bits = [0; 4];
        for opcode in (0..=u8::MAX).filter(|&opcode| takes(opcode)) {
            bits[usize::from(opcode / 64)] |= 1 << (opcode % 64);
        }
        // The driver's own clock does it.
        bits[usize::from(opcode::SLEEP / 64)] |= 1 << (opcode::SLEEP % 64);
        Opcodes(bits)
    }

    #[inline]
    fn has(&self, opcode: u8) -> bool {
        self.0[usize::from(opcode / 64)] & 1 << (opcode % 64) != 0
    }
}

thread_local! {
    /// Operations handed over by this thread, plus its starting point.
    static TURN: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The number that stands for the helpers in place of a lane's.
const HELPERS: usize = usize::MAX;
/// The same for the lane whose ring polls devices.
const POLLED: usize = usize::MAX - 1;

impl Submitter {
    pub(crate) fn new(
        lanes: Vec<LaneThread>,
        opcodes: Opcodes,
        blocking: blocking::Config,
    ) -> Submitter {
        let mut threads = Vec::new();
        let lanes = lanes
            .into_iter()
            .map(|LaneThread { lane, thread }| {
                threads.extend(thread);
                lane
            })
            .collect();
        Submitter {
            lanes,
            polled: None,
            threads: Mutex::new(threads),
            opcodes,
            helpers: OnceLock::new(),
            blocking,
            bounces: Arc::default(),
            closer: None,
            clock: None,
            finish_here: None,
            threads_seen: AtomicUsize::new(0),
            inline: Counter::default(),
        }
    }

    /// Adds the lane whose ring polls devices.
    pub(crate) fn with_polled(mut self, LaneThread { lane, thread }: LaneThread) -> Submitter {
        self.polled = Some(lane);
        let threads = self
            .threads
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        threads.extend(thread);
        self
    }

    /// Whether there is a ring that polls devices.
    pub(crate) fn has_polled(&self) -> bool {
        self.polled.is_some()
    }

    fn all_lanes(&self) -> impl Iterator<Item = &Arc<Lane>> {
        self.lanes.iter().chain(&self.polled)
    }

    /// The number of the lane for this operation.
    #[inline]
    pub(crate) fn lane_for<T: Op>(&self, op: &T) -> usize {
        if op.is_polled() && self.has_polled() {
            return POLLED;
        }
        self.next_lane(T::INFO.opcode)
    }

    /// The number of the lane that this thread's next operation goes to.
    #[inline]
    pub(crate) fn next_lane(&self, opcode: u8) -> usize {
        if self.lanes.is_empty() || !self.opcodes.has(opcode) {
            return HELPERS;
        }
        if self.lanes.len() == 1 {
            return 0;
        }
        let mut turn = TURN.get();
        if turn == usize::MAX {
            turn = self.threads_seen.fetch_add(LANE_RUN, Ordering::Relaxed);
        }
        TURN.set(turn.wrapping_add(1));
        turn / LANE_RUN % self.lanes.len()
    }

    /// The lane of a number that `lane_for` or `next_lane` gave.
    #[inline]
    pub(crate) fn lane(&self, number: usize) -> &Lane {
        match (self.lanes.get(number), &self.polled) {
            (Some(lane), _) => lane,
            (None, Some(polled)) if number == POLLED => polled,
            (None, _) => self
                .helpers
                .get_or_init(|| blocking::Pool::new(self.blocking))
                .lane(),
        }
    }

    /// Now, on the clock of this engine's deadlines, ns.
    pub(crate) fn now_ns(&self) -> u64 {
        self.clock
            .as_ref()
            .map_or_else(call::now_ns, |clock| clock.now_ns())
    }

    /// The errno that ended the kernel behind one of the lanes.
    pub(crate) fn failed(&self) -> Option<i32> {
        let mut errnos = self
            .all_lanes()
            .map(|lane| lane.failed.load(Ordering::Acquire));
        errnos.find(|&errno| errno != 0)
    }

    /// Whether this process is known to have rings.
    pub(crate) fn has_rings(&self) -> bool {
        !self.lanes.is_empty()
    }

    /// Counts answers that needed no driver.
    pub(crate) fn count_inline(&self, answers: u64) {
        self.inline.add_shared(answers);
    }

    /// What all lanes together have counted.
    pub(crate) fn metrics(&self) -> Metrics {
        let mut metrics = Metrics {
            inline: self.inline.get(),
            ..Metrics::default()
        };
        for lane in self.all_lanes() {
            metrics.add(&lane.counters);
        }
        if let Some(polled) = &self.polled {
            metrics.polled = polled.counters.completed.get();
        }
        if let Some(helpers) = self.helpers.get() {
            metrics.add(&helpers.lane().counters);
        }
        metrics
    }

    /// Stops every lane and waits until nothing is in flight, or the drain timeout has passed.
    pub(crate) fn drain(&self) {
        for lane in self.all_lanes() {
            lane.request_stop();
        }
        if let Some(finish) = self.finish_here {
            finish();
        }
        let threads: Vec<_> = {
            let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
            threads.drain(..).collect()
        };
        for thread in threads {
            // A waker or a buffer's drop may run on a driver and hold the last handle: a thread can't
            // wait for itself. It will find the stop flag when it returns to its loop.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
        if let Some(helpers) = self.helpers.get() {
            helpers.drain();
        }
    }
}

impl Drop for Submitter {
    fn drop(&mut self) {
        self.drain();
    }
}

impl fmt::Debug for Submitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submitter")
            .field("lanes", &self.lanes.len())
            .finish_non_exhaustive()
    }
}
