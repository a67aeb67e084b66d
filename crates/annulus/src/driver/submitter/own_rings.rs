//! The rings that threads of an executor have for themselves, as a part of the submitter.

use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, OnceLock};

use super::Submitter;
use crate::driver::handle::DriverHandle;
use crate::driver::limits::Limits;
use crate::driver::threadless::ThreadlessDriver;
use crate::driver::threadless_state::Drive;
use crate::driver::uring::Tuning;
use crate::error::SetupError;
use crate::sys::ring::{Ring, RingConfig};

/// The maximum number of threads with their own rings per engine. Further threads submit to the engine's drivers.
const OWN_RINGS_MAX: usize = 256;

/// The configuration of the rings of threads.
#[derive(Clone, Debug)]
pub(crate) struct ThreadRingConfig {
    pub(crate) ring: RingConfig,
    pub(crate) limits: Limits,
    pub(crate) tuning: Tuning,
}

/// A ring of a thread: the index of its driver handle, its driver, and the descriptor to poll.
pub(crate) type MadeRing = (usize, Arc<ThreadlessDriver<Ring>>, OwnedFd);

impl Submitter {
    /// Returns whether threads may have rings.
    pub(crate) fn makes_rings(&self) -> bool {
        self.executors_make_rings && self.serves()
    }

    /// Returns a driver that `make_own` has created, or that `core_handle` names.
    #[inline]
    pub(crate) fn own_handle(&self, index: usize) -> Option<&DriverHandle> {
        let handle = match index.checked_sub(OWN_RINGS_MAX) {
            None => self.own.get()?.get(index)?.get()?,
            Some(core) => self.handles.get(core)?,
        };
        Some(handle)
    }

    /// Returns the drivers of all threads with their own rings.
    pub(super) fn own_handles(&self) -> impl Iterator<Item = &Arc<DriverHandle>> {
        let handles = self.own.get().into_iter().flatten();
        handles.map_while(OnceLock::get)
    }

    /// Creates a ring for the calling thread.
    pub(crate) fn make_own(&self) -> Result<MadeRing, SetupError> {
        let Some(ThreadRingConfig {
            ring: config,
            limits,
            tuning,
        }) = self.thread_ring_config.clone()
        else {
            return Err(SetupError::Config("this engine has no rings".to_owned()));
        };
        let mut ring = Ring::new(config)?;
        ring.prepare_thread();
        ring.enter_on_foreign_threads();
        let limits = limits.within(ring.cq_entries());
        let pollable = ring
            .pollable()
            .map_err(|error| SetupError::Os { what: "dup", error })?;
        let Some((index, handle)) = self.free_own_handle() else {
            return Err(SetupError::Config(format!(
                "{OWN_RINGS_MAX} threads have their own rings; further threads submit to the engine's drivers"
            )));
        };
        let interrupt = Box::new(ring.waker());
        let driver = ThreadlessDriver::new(Arc::clone(handle), ring, interrupt, limits, tuning);
        // The end stores `ended`, and then looks at the handles (Dekker's pattern).
        fence(Ordering::SeqCst);
        if self.ended.load(Ordering::SeqCst) {
            // The engine ended meanwhile, and may not have seen this driver.
            driver.drain(None);
        }
        Ok((index, driver, pollable))
    }

    /// Returns a driver handle that no thread uses.
    fn free_own_handle(&self) -> Option<(usize, &Arc<DriverHandle>)> {
        let cells = self
            .own
            .get_or_init(|| (0..OWN_RINGS_MAX).map(|_| OnceLock::new()).collect());
        cells.iter().enumerate().find_map(|(index, cell)| {
            let mut made = false;
            let handle = cell.get_or_init(|| {
                made = true;
                let handle = Arc::new(DriverHandle::threadless());
                handle.follow(&self.arenas);
                self.label(&handle, index);
                handle
            });
            (made || handle.reopen()).then_some((index, handle))
        })
    }

    /// Notes the reason why a thread has no ring.
    pub(crate) fn refused(&self, error: SetupError) {
        let _ = self.refusal.set(error);
    }

    /// Notes the reason why the executor of a thread cannot drive a ring.
    pub(crate) fn no_thread_ring(&self, reason: &str) {
        if self.refusal.get().is_none() {
            self.refused(SetupError::Config(reason.to_owned()));
        }
    }

    /// Returns the cell with the first reason why a thread has no ring.
    pub(crate) fn refusal_cell(&self) -> &Arc<OnceLock<SetupError>> {
        &self.refusal
    }

    /// Returns the first reason why a thread has no ring.
    pub(crate) fn refusal(&self) -> Option<&SetupError> {
        self.refusal.get()
    }

    /// Returns the index of a core's driver among the drivers of threads.
    #[cfg(feature = "net")]
    pub(crate) fn core_handle(&self, handle: &Arc<DriverHandle>) -> Option<usize> {
        let core = self
            .handles
            .iter()
            .position(|one| Arc::ptr_eq(one, handle))?;
        Some(OWN_RINGS_MAX + core)
    }
}
