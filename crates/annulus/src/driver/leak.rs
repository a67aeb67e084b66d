//! Memory that is leaked deliberately.

use std::sync::{Mutex, PoisonError};

/// Leaks memory that a kernel may still use. The address stays reachable, so that a leak checker can distinguish this
/// from an accidental leak.
pub(crate) fn leak<T>(value: T) {
    static KEPT: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    let address = Box::into_raw(Box::new(value)).expose_provenance();
    KEPT.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(address);
}
