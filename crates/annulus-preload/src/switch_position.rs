//! The position of the operator's switch (`switch` acts on it).

use std::sync::atomic::{AtomicBool, Ordering};

use annulus::metrics::layout::switch::{self, SwitchCounter};

/// In a child of a fork that has not published its switch yet: the parent's switch was set to release.
static INHERITED: AtomicBool = AtomicBool::new(false);

/// Returns whether all connections must be handed back to the kernel.
#[inline]
pub(crate) fn is_released() -> bool {
    switch::is_released() || INHERITED.load(Ordering::Relaxed)
}

/// Publishes the switch of this process.
pub(crate) fn begin() {
    switch::listen(INHERITED.swap(false, Ordering::Relaxed));
}

/// Copies the position of the parent's switch, in a child of a fork that still sees the parent's word.
pub(crate) fn inherit() {
    INHERITED.store(is_released(), Ordering::Relaxed);
}

/// The mark of a set that passes through because the operator released the process. Marked sets are counted.
#[derive(Default)]
pub(crate) struct Released(bool);

impl Released {
    #[inline]
    pub(crate) fn is_marked(&self) -> bool {
        self.0
    }

    pub(crate) fn mark(&mut self) {
        if !self.0 {
            self.0 = true;
            switch::add(SwitchCounter::Released, 1);
        }
    }

    /// Clears the mark of a set that closes, or that passes through for another reason as well.
    pub(crate) fn clear(&mut self) {
        if self.0 {
            self.0 = false;
            switch::add(SwitchCounter::Released, -1);
        }
    }
}
