//! The state that all workers of a run share: its work, its clock and its end.

use std::sync::atomic::{
    AtomicBool, AtomicU64, Ordering::AcqRel, Ordering::Relaxed, Ordering::Release,
};
use std::time::Instant;

use super::work::Work;
use crate::bench::timeline::CallSamples;

/// The state that all workers of a run share.
pub(crate) struct Shared {
    epoch: Instant,
    /// The start of the measured time, zero before the run has started.
    pub(crate) measured_from_ns: AtomicU64,
    pub(crate) end_ns: AtomicU64,
    pub(crate) ran_out: AtomicBool,
    /// The time at which the last worker was taken back.
    pub(crate) done_ns: AtomicU64,
    pub(crate) work: Work,
    pub(crate) blocks_per_file: u64,
    pub(crate) calls: CallSamples,
}

impl Shared {
    /// Returns the state of a run whose clock counts from `epoch`.
    pub(crate) fn new(epoch: Instant, work: Work) -> Shared {
        Shared {
            epoch,
            measured_from_ns: AtomicU64::new(0),
            end_ns: AtomicU64::new(u64::MAX),
            ran_out: AtomicBool::new(false),
            done_ns: AtomicU64::new(0),
            blocks_per_file: work.blocks_per_file(),
            calls: CallSamples::default(),
            work,
        }
    }

    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    pub(crate) fn runtime_ns(&self) -> Option<u64> {
        Some(self.work.runtime?.as_nanos() as u64)
    }

    /// Starts the clock at `begin_ns`, with the ramp.
    pub(crate) fn start(&self, begin_ns: u64) {
        let from_ns = begin_ns + self.work.ramp.as_nanos() as u64;
        let end_ns = (self.runtime_ns()).map_or(u64::MAX, |ns| from_ns.saturating_add(ns));
        // A swap, not a store: if a signal has already set an end, this synchronizes with it.
        self.end_ns.swap(end_ns, AcqRel);
        self.measured_from_ns.store(from_ns.max(1), Release);
    }

    /// Ends the run for all workers, because no block is left. A run that uses each block once ends with its last
    /// completion instead.
    #[cold]
    pub(crate) fn ran_out(&self, now_ns: u64) {
        if !self.work.once {
            self.end_ns.fetch_min(now_ns, Relaxed);
        }
        self.ran_out.store(true, Relaxed);
    }

    /// Ends the run for all workers. Operations in flight still complete.
    pub(crate) fn stop(&self) {
        self.end_ns.fetch_min(self.now_ns(), AcqRel);
    }
}
