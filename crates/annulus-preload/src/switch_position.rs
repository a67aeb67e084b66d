//! The position of the operator's switch (`switch` acts on it).

use std::sync::atomic::{AtomicBool, Ordering};

use annulus::metrics::layout::switch;

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
