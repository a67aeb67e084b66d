//! Decides whether the library may make and use rings. After the program has set a system call filter, it may not: the
//! filter may end the program for a call that only this library makes. After the program has changed its user or group,
//! new rings do not use SQPOLL.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use annulus::preload::ServerRing;

use crate::config;
use crate::counters::Why;
use crate::sys;

/// The program has changed its credentials: no kernel thread polls for a ring any more.
static CREDENTIALS_CHANGED: AtomicBool = AtomicBool::new(false);

/// Remaining checks for a new filter: a thread that sets `no_new_privs` often sets a filter next.
static FILTER_CHECKS: AtomicU32 = AtomicU32::new(0);
const FILTER_CHECKS_MAX: u32 = 64;
/// The number of filters that the last such thread had before: those that it inherited, as in a container.
static FILTERS_BEFORE: AtomicU32 = AtomicU32::new(0);
/// In place of a count: no ring is created or entered any more.
const NO_RINGS: u32 = u32::MAX;

/// The reason for which no ring is created or entered any more.
static WHY: AtomicU8 = AtomicU8::new(Why::Filtered as u8);

/// Forbids rings permanently.
pub(crate) fn forbid_rings(why: Why) {
    WHY.store(why as u8, Ordering::Relaxed);
    FILTER_CHECKS.store(NO_RINGS, Ordering::Relaxed);
}

/// Returns the reason of [`forbid_rings`].
pub(crate) fn why_no_rings() -> Why {
    Why::ALL[usize::from(WHY.load(Ordering::Relaxed))]
}

fn are_forbidden() -> bool {
    FILTER_CHECKS.load(Ordering::Relaxed) == NO_RINGS
}

/// Returns the reason in words, if it is a filter.
pub(crate) fn why_filtered() -> &'static str {
    if has_new_filter() {
        "the program has set a system call filter"
    } else {
        "the program may set a system call filter: a thread that was served has set no_new_privs"
    }
}

/// Counts the filters before the program may set another one.
pub(crate) fn count_filters() {
    let before = if sys::has_filter() {
        ServerRing::filters()
    } else {
        None
    };
    FILTERS_BEFORE.store(before.unwrap_or(0), Ordering::Relaxed);
}

/// Returns whether the thread has a filter that it did not have before. If the number is unknown, any may be new.
fn has_new_filter() -> bool {
    let before = FILTERS_BEFORE.load(Ordering::Relaxed);
    let has_more = || ServerRing::filters().is_none_or(|now| now > before);
    sys::has_filter() && (before == 0 || has_more())
}

/// Starts to check for a filter, which the program may be about to set.
pub(crate) fn expect_filter() {
    if !are_forbidden() {
        FILTER_CHECKS.store(FILTER_CHECKS_MAX, Ordering::Relaxed);
    }
}

/// Returns whether the program may have set a filter, which may forbid calls that only this library makes.
pub(crate) fn may_be_filtered() -> bool {
    are_forbidden() && why_no_rings() == Why::Filtered
}

/// Returns whether the program may have set a filter, also since the last check.
pub(crate) fn may_soon_be_filtered() -> bool {
    let is_expected = !are_forbidden() && FILTER_CHECKS.load(Ordering::Relaxed) > 0;
    is_expected || may_be_filtered()
}

/// Returns whether rings are forbidden, also by a filter that was set since the last check.
#[inline]
pub(crate) fn are_rings_forbidden() -> bool {
    FILTER_CHECKS.load(Ordering::Relaxed) > 0 && check_filter()
}

#[cold]
fn check_filter() -> bool {
    let left = |checks: u32| (checks != NO_RINGS && checks > 0).then(|| checks - 1);
    let updated = FILTER_CHECKS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
    if updated.is_ok() && has_new_filter() {
        forbid_rings(Why::Filtered);
    }
    are_forbidden()
}

/// Fails with the reason if a filter that the process inherited would end it for a ring. Filters are never removed, all
/// threads inherit those from before the start, and no ring is made after another one is set. So one probe is enough
/// for the process and its children.
pub(crate) fn check_inherited_filter() -> Result<(), String> {
    static PROBED: OnceLock<Result<(), String>> = OnceLock::new();
    if !sys::has_filter() {
        return Ok(());
    }
    if let Some(probed) = PROBED.get() {
        return probed.clone();
    }
    // Not within `get_or_init`: another thread may fork meanwhile.
    let probed = ServerRing::check_filter().map_err(|error| error.to_string());
    let _ = PROBED.set(probed.clone());
    probed
}

/// Forbids SQPOLL for later rings. Returns whether it was allowed until now.
pub(crate) fn forbid_sqpoll() -> bool {
    !CREDENTIALS_CHANGED.swap(true, Ordering::Relaxed) && config::get().sqpoll
}

/// Returns whether a kernel thread may poll for the next ring.
pub(crate) fn may_use_sqpoll() -> bool {
    config::get().sqpoll && !CREDENTIALS_CHANGED.load(Ordering::Relaxed)
}
