//! The switch of a process under the preload library. An operator outside the process requests that everything is
//! handed back to the kernel, or served again. The process counts what it has done. Both are words of the header of the
//! shared file, after those that describe the counters, so that a program that counts other things can also use a
//! switch. `annulus-observe` has the operator's half. Only for `annulus-preload` and the tool; has no stable interface.

use std::sync::atomic::{AtomicU64, Ordering};

use super::HEADER_SAYS;
use crate::metrics::record::PAGE_WORDS;
use crate::metrics::registry::SHARED;

/// Word of the header: not 0 if the process obeys requests.
pub const LISTENS: usize = HEADER_SAYS;
/// Word of the header: the request. Odd if the kernel is to serve everything. Each change increments it, so that none
/// is missed.
pub const REQUEST: usize = LISTENS + 1;
/// The offset of that word in the file, in bytes.
pub const REQUEST_OFFSET: usize = REQUEST * size_of::<u64>();
/// The first word of the counters, which are in the order of [`SwitchCounter`].
pub const COUNTERS: usize = REQUEST + 1;
const _: () = assert!(COUNTERS + SwitchCounter::ALL.len() < PAGE_WORDS);

/// A counter of the process for the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum SwitchCounter {
    /// Epoll sets that have a ring now.
    Serving,
    /// Epoll sets that have no ring now because of a request.
    Released,
    /// Epoll sets that were handed back, since the start.
    SetsHandedBack,
    /// Connections of these sets.
    HandedBack,
    /// Epoll sets that were served again, since the start.
    SetsServedAgain,
    /// Connections of these sets.
    ServedAgain,
}

impl SwitchCounter {
    /// All of them, in the order of their words.
    pub const ALL: [SwitchCounter; 6] = [
        SwitchCounter::Serving,
        SwitchCounter::Released,
        SwitchCounter::SetsHandedBack,
        SwitchCounter::HandedBack,
        SwitchCounter::SetsServedAgain,
        SwitchCounter::ServedAgain,
    ];
}

/// Declares that this process obeys requests from now on, beginning with `released`. Has no effect in a process that
/// does not share its counters.
pub fn listen(released: bool) {
    if let Some(header) = SHARED.get() {
        header[REQUEST].fetch_or(u64::from(released), Ordering::Relaxed);
        header[LISTENS].store(1, Ordering::Release);
    }
}

/// Returns whether the kernel is to serve everything of this process. Makes no system call and takes no lock.
#[inline]
pub fn is_released() -> bool {
    SHARED
        .get()
        .is_some_and(|header| header[REQUEST].load(Ordering::Relaxed) & 1 != 0)
}

/// Returns the word that changes with each request. It lasts as long as the process. `None` if the process does not
/// share its counters.
pub fn request_word() -> Option<&'static AtomicU64> {
    SHARED.get().map(|header| &header[REQUEST])
}

/// Changes a counter by `by`. Any thread may call this.
pub fn add(what: SwitchCounter, by: i64) {
    if let Some(header) = SHARED.get() {
        header[COUNTERS + what as usize].fetch_add(by.cast_unsigned(), Ordering::AcqRel);
    }
}
