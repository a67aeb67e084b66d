//! # Safety
//!
//! The protocol between those who read a page and those who evict it, on one entry of a file's table and one hazard
//! slot.
//!
//! A reader writes the frame's address into its slot, and reads the entry again: if it still names the frame, the frame
//! stays. To evict a page, a thread unlinks the entry, executes the heavy barrier, and then reads all slots: a frame
//! whose address is in none of them has no reader and gets none. Neither side changes a value atomically on a hit
//! (Guarded; the table is Typed).
#![allow(unsafe_code)]

#[cfg(not(annulus_loom))]
use std::alloc::{Layout, alloc_zeroed};
#[cfg(not(annulus_loom))]
use std::ptr::NonNull;

use crate::barrier;
use crate::mutation::{Mutation, broken};
use crate::sync::{AtomicU32, AtomicUsize, Ordering};

/// A page's entry in the table of its file.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Entry(AtomicU32);

/// The state of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Not in memory. `evicted` is when it left the small queue of the policy; `None` if it did not.
    Absent { evicted: Option<u32> },
    /// Being read; the file's list of loads has it.
    Loading,
    /// In this frame.
    Resident(u32),
}

/// With one comparison, a word is of a resident page: only those are above 0 as `i32`.
const EVICTED: u32 = 0x8000_0000;
const LOADING: u32 = 0xffff_ffff;

/// The largest number of frames of a pool.
pub(crate) const FRAMES_MAX: usize = 0x7fff_ffff;

impl State {
    fn word(self) -> u32 {
        match self {
            State::Absent { evicted: None } => 0,
            // One time of 2^31 is that of its neighbour.
            State::Absent { evicted: Some(at) } => (EVICTED | at).min(LOADING - 1),
            State::Loading => LOADING,
            State::Resident(frame) => frame + 1,
        }
    }

    fn of(word: u32) -> State {
        match word {
            0 => State::Absent { evicted: None },
            LOADING => State::Loading,
            _ if word & EVICTED != 0 => State::Absent {
                evicted: Some(word & !EVICTED),
            },
            _ => State::Resident(word - 1),
        }
    }
}

/// Returns the frame of a resident page.
#[inline(always)]
fn frame(word: u32) -> Option<u32> {
    (word.cast_signed() > 0).then(|| word - 1)
}

impl Entry {
    /// A page that was never in memory.
    #[cfg(annulus_loom)]
    pub(crate) fn new() -> Entry {
        Entry(AtomicU32::new(0))
    }

    #[inline]
    pub(crate) fn state(&self) -> State {
        State::of(self.0.load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn frame(&self) -> Option<u32> {
        frame(self.word())
    }

    #[inline(always)]
    fn word(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Changes the state if it is still `from`.
    pub(crate) fn change(&self, from: State, to: State) -> bool {
        let (from, to) = (from.word(), to.word());
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        self.0.compare_exchange(from, to, order.0, order.1).is_ok()
    }

    /// Sets the state. For the one who loads the page, after the frame has its bytes.
    pub(crate) fn set(&self, state: State) {
        let order = if broken(Mutation::PublishedUnreleased) {
            Ordering::Relaxed
        } else {
            Ordering::Release
        };
        self.0.store(state.word(), order);
    }
}

/// Protects the frame of a resident page with an empty slot, and returns it with its address. Returns `None`, with the
/// slot empty, if the page is not resident.
#[inline(always)]
pub(crate) fn protect(
    entry: &Entry,
    slot: &AtomicUsize,
    address: impl Fn(u32) -> usize,
    fenced: bool,
) -> Option<(u32, usize)> {
    let mut word = entry.word();
    loop {
        let Some(frame) = frame(word) else {
            // Of the round before, if there was one.
            slot.store(0, Ordering::Relaxed);
            return None;
        };
        let address = address(frame);
        slot.store(address, Ordering::Relaxed);
        barrier::light(fenced);
        if broken(Mutation::EntryReadOnce) {
            return Some((frame, address));
        }
        let again = entry.word();
        if again == word {
            return Some((frame, address));
        }
        word = again;
    }
}

/// Protects a frame that is pinned, so it needs no second look.
pub(crate) fn protect_pinned(slot: &AtomicUsize, address: usize) {
    slot.store(address, Ordering::Relaxed);
}

/// Ends the protection: the reads of the frame are before it.
#[inline(always)]
fn release(slot: &AtomicUsize) {
    let order = if broken(Mutation::SlotUnreleased) {
        Ordering::Relaxed
    } else {
        Ordering::Release
    };
    slot.store(0, order);
}

/// Ends the protection, and returns whether someone waits for a frame, who may need to be told. Where readers execute
/// fences, `waiting` is never 0, and the caller looks again after a fence.
#[inline(always)]
pub(crate) fn release_and_look(slot: &AtomicUsize, waiting: &AtomicUsize) -> bool {
    release(slot);
    if broken(Mutation::WaitersForgotten) {
        return false;
    }
    barrier::light(false);
    waiting.load(Ordering::Relaxed) != 0
}

/// Announces that a task waits for a frame. A thread that ends a protection later sees it, and the caller sees the
/// protections that ended before.
pub(crate) fn announce(waiting: &AtomicUsize) {
    waiting.fetch_add(1, Ordering::Relaxed);
    if !broken(Mutation::WaitUnfenced) {
        // Without the barrier, the slots are not read either.
        let _ = barrier::heavy();
    }
}

/// Returns whether an unlinked frame may be filled again. A page that is passed on is pinned until its last receiver
/// has filled a slot, so the pins are read first. Only after the heavy barrier.
pub(crate) fn is_free(pinned: impl FnOnce() -> bool, protected: impl FnOnce() -> bool) -> bool {
    if broken(Mutation::SlotsBeforePins) {
        let protected = protected();
        return !protected && !pinned();
    }
    !pinned() && !protected()
}

/// Returns the address that a slot protects, or 0. Only after the heavy barrier does 0 mean that no one has it.
#[inline]
pub(crate) fn protected(slot: &AtomicUsize) -> usize {
    slot.load(Ordering::Acquire)
}

/// Returns the table of a file: pages that were never in memory. Its own memory is provided as it is touched. Returns
/// `None` if there is no memory.
#[cfg(not(annulus_loom))]
pub(crate) fn table(pages: usize) -> Option<Box<[Entry]>> {
    let layout = Layout::array::<Entry>(pages).ok()?;
    if layout.size() == 0 {
        return Some(Box::default());
    }
    // SAFETY: Typed: the size is not 0.
    let zeros = NonNull::new(unsafe { alloc_zeroed(layout) })?.cast::<Entry>();
    let all = std::ptr::slice_from_raw_parts_mut(zeros.as_ptr(), pages);
    // SAFETY: Typed: allocated above for this many entries; 0 is one.
    Some(unsafe { Box::from_raw(all) })
}
