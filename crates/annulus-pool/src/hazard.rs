//! The hazard slots of the process: each thread owns blocks of slots, and only their owner fills an empty slot. Any
//! thread may empty one, so a guard can be dropped anywhere. Blocks are never freed, because guards have no lifetime;
//! the blocks of a thread that has ended go to the next one that needs some.

use std::cell::{Cell, RefCell};
use std::sync::{Mutex, PoisonError};

use crate::entry;
use crate::sync::AtomicUsize;

/// The slots of a block.
const SLOTS: usize = 62;

/// Slots that one thread fills.
#[repr(align(64))]
#[derive(Debug)]
struct Block {
    slots: [AtomicUsize; SLOTS],
    /// The number of blocks made before this one.
    number: usize,
}

impl Block {
    /// Returns the position of an empty slot.
    fn empty(&self) -> Option<usize> {
        (self.slots.iter()).position(|slot| entry::protected(slot) == 0)
    }
}

#[derive(Default)]
struct Blocks {
    all: Vec<&'static Block>,
    /// Those without an owner.
    unowned: Vec<&'static Block>,
}

static BLOCKS: Mutex<Blocks> = Mutex::new(Blocks {
    all: Vec::new(),
    unowned: Vec::new(),
});

/// The part of a thread's slots that a hit needs. It has no destructor, so that an access is one instruction.
struct Hot {
    /// The slot that was empty last; `FULL` at first.
    slot: Cell<&'static AtomicUsize>,
    /// The number of its block.
    number: Cell<usize>,
    /// The block, and the place of the slot there.
    place: Cell<Option<(&'static Block, usize)>>,
}

impl Hot {
    fn set(&self, block: &'static Block, at: usize) {
        self.slot.set(&block.slots[at]);
        self.number.set(block.number);
        self.place.set(Some((block, at)));
    }
}

/// A slot that is never empty, of no block.
static FULL: AtomicUsize = AtomicUsize::new(1);

thread_local! {
    static HOT: Hot = const { Hot {
        slot: Cell::new(&FULL),
        number: Cell::new(0),
        place: Cell::new(None),
    } };
    static OWNED: Owned = const { Owned(RefCell::new(Vec::new())) };
}

/// The blocks of a thread.
struct Owned(RefCell<Vec<&'static Block>>);

impl Drop for Owned {
    fn drop(&mut self) {
        let _ = HOT.try_with(|hot| {
            hot.slot.set(&FULL);
            hot.place.set(None);
        });
        blocks().unowned.append(&mut self.0.borrow_mut());
    }
}

/// Returns an empty slot, and the number of its owner among the threads of the process. The caller fills it before it
/// asks for another one.
#[inline(always)]
pub(crate) fn empty_slot() -> (&'static AtomicUsize, usize) {
    HOT.with(|hot| {
        let (slot, number) = (hot.slot.get(), hot.number.get());
        if entry::protected(slot) == 0 {
            (slot, number)
        } else {
            next_slot(hot)
        }
    })
}

/// Returns the slot after the last one, which guards of several pages at a time fill in their order.
#[inline(never)]
fn next_slot(hot: &Hot) -> (&'static AtomicUsize, usize) {
    match hot.place.get() {
        Some((block, at)) if entry::protected(&block.slots[(at + 1) % SLOTS]) == 0 => {
            hot.set(block, (at + 1) % SLOTS);
        }
        _ => search(hot),
    }
    (hot.slot.get(), hot.number.get())
}

/// Searches all blocks of the thread, and takes another one if no slot is empty.
#[cold]
fn search(hot: &Hot) {
    let found = OWNED.try_with(|owned| {
        let mut owned = owned.0.borrow_mut();
        let is_hot = |block: &&Block| block.number == hot.number.get();
        let from = owned.iter().position(is_hot).unwrap_or(0);
        let blocks = owned.len();
        for distance in 0..blocks {
            let block = owned[(from + distance) % blocks];
            if let Some(at) = block.empty() {
                return (block, at);
            }
        }
        let (block, at) = take_block();
        owned.push(block);
        (block, at)
    });
    // In a destructor of a thread that ends: a block that stays with it.
    let (block, at) = found.unwrap_or_else(|_| take_block());
    hot.set(block, at);
}

/// Takes a block without an owner, or a new one. Returns it with an empty slot: guards that have outlived the thread
/// that took them keep theirs.
fn take_block() -> (&'static Block, usize) {
    let mut blocks = blocks();
    let empty = |(nth, block): (usize, &&'static Block)| Some((nth, block.empty()?));
    if let Some((nth, at)) = blocks.unowned.iter().enumerate().find_map(empty) {
        return (blocks.unowned.swap_remove(nth), at);
    }
    let block: &'static Block = Box::leak(Box::new(Block {
        slots: [const { AtomicUsize::new(0) }; SLOTS],
        number: blocks.all.len(),
    }));
    blocks.all.push(block);
    (block, 0)
}

/// Returns the addresses from `from` to `to` that a slot protects, as distances from `from`, sorted. To be called after
/// the heavy barrier.
pub(crate) fn in_range(from: usize, to: usize) -> Vec<usize> {
    // A copy, because the lock is taken by threads that need a block.
    let all = blocks().all.clone();
    let addresses = all.iter().flat_map(|block| &block.slots);
    let addresses = addresses.map(entry::protected);
    let mut found: Vec<_> = addresses
        .filter(|address| (from..to).contains(address))
        .map(|address| address - from)
        .collect();
    found.sort_unstable();
    found
}

fn blocks() -> std::sync::MutexGuard<'static, Blocks> {
    // A panic under the lock can only be a failed allocation, before a change.
    BLOCKS.lock().unwrap_or_else(PoisonError::into_inner)
}
