//! The end of a guard. It empties its slot, and then looks for tasks that wait for a frame, and for memory that has
//! outlived its pool; usually there are none.

use std::sync::{Mutex, Weak};

use annulus::IoBuf;
use annulus::buf::ArenaBuf;

use crate::barrier;
use crate::entry;
use crate::forked;
use crate::hazard;
use crate::sync::{AtomicUsize, Ordering, lock};

/// A pool in which someone waits for a frame.
pub(crate) trait Pool: Send + Sync {
    /// Reports that a guard was dropped.
    fn tell(&self);
}

/// The number of those who wait, and of frames in `LEFT`. With [`FENCED`], so that the usual end of a guard looks at
/// nothing else.
static WAITING: AtomicUsize = AtomicUsize::new(0);
/// The pools in which someone waits for a frame, or has waited.
static POOLS: Mutex<Vec<Weak<dyn Pool>>> = Mutex::new(Vec::new());
/// Frames that guards of ended pools protect.
static LEFT: Mutex<Vec<ArenaBuf>> = Mutex::new(Vec::new());

/// The end of a guard executes a fence before it looks who waits.
const FENCED: usize = 1 << (usize::BITS - 1);

/// Finds out how the barriers work. Each pool calls it before anything else.
pub(crate) fn prepare() {
    barrier::prepare();
    if barrier::is_fenced() {
        WAITING.fetch_or(FENCED, Ordering::Relaxed);
    }
}

/// Ends the protection of the frame at `address` by a slot.
#[inline(always)]
pub(crate) fn release(slot: &AtomicUsize, address: usize) {
    if entry::release_and_look(slot, &WAITING) {
        look(address);
    }
}

/// Announces one who waits for a frame of `pool`. From then on, the end of each guard evicts.
pub(crate) fn announce(pool: Weak<dyn Pool>) {
    let mut pools = lock(&POOLS);
    pools.retain(|other| other.strong_count() > 0 && !Weak::ptr_eq(other, &pool));
    pools.push(pool);
    drop(pools);
    entry::announce(&WAITING);
}

/// Takes an announcement back.
pub(crate) fn withdraw() {
    WAITING.fetch_sub(1, Ordering::Relaxed);
}

/// Keeps the memory of an ended pool that guards protect, and drops the rest.
pub(crate) fn leave(bufs: Vec<ArenaBuf>) {
    let count = bufs.len();
    if count == 0 {
        return;
    }
    WAITING.fetch_add(count - 1, Ordering::Relaxed);
    entry::announce(&WAITING);
    lock(&LEFT).extend(bufs);
    drop_left(|_| true);
}

#[cold]
fn look(address: usize) {
    // In a forked child that has made no pool, threads of the parent may hold the locks.
    if forked::process() == 0 {
        return;
    }
    if barrier::is_fenced() {
        barrier::light(true);
        if WAITING.load(Ordering::Relaxed) == FENCED {
            return;
        }
    }
    let pools = lock(&POOLS).clone();
    pools
        .iter()
        .filter_map(Weak::upgrade)
        .for_each(|core| core.tell());
    drop_left(|frame| frame == address);
}

/// Drops the memory of ended pools that no guard protects any more, if a frame there is at such an address: not for
/// each guard of the other pools, because the barrier interrupts all processors.
fn drop_left(is_meant: impl Fn(usize) -> bool) {
    let mut left = lock(&LEFT);
    if !left.iter().any(|buf| is_meant(buf.stable_ptr().addr())) || !barrier::heavy() {
        return;
    }
    let protected = hazard::in_range(0, usize::MAX);
    let is_free = |buf: &mut ArenaBuf| protected.binary_search(&buf.stable_ptr().addr()).is_err();
    let gone: Vec<ArenaBuf> = left.extract_if(.., is_free).collect();
    drop(left);
    WAITING.fetch_sub(gone.len(), Ordering::Relaxed);
    drop(gone);
}
