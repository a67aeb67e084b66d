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
    /// The block whose slot at `at` was empty last.
    block: Cell<Option<&'static Block>>,
    at: Cell<usize>,
}

thread_local! {
    static HOT: Hot = const { Hot { block: Cell::new(None), at: Cell::new(0) } };
    static OWNED: Owned = const { Owned(RefCell::new(Vec::new())) };
}

/// The blocks of a thread.
struct Owned(RefCell<Vec<&'static Block>>);

impl Drop for Owned {
    fn drop(&mut self) {
        let _ = HOT.try_with(|hot| hot.block.set(None));
        blocks().unowned.append(&mut self.0.borrow_mut());
    }
}

/// Returns an empty slot, and the number of its owner among the threads of the process. The caller fills it before it
/// asks for another one.
#[inline]
pub(crate) fn empty_slot() -> (&'static AtomicUsize, usize) {
    HOT.with(|hot| {
        if let Some(block) = hot.block.get() {
            let slot = &block.slots[hot.at.get() % SLOTS];
            if entry::protected(slot) == 0 {
                return (slot, block.number);
            }
        }
        search(hot)
    })
}

/// Searches all blocks of the thread, and takes another one if no slot is empty.
#[cold]
fn search(hot: &Hot) -> (&'static AtomicUsize, usize) {
    let found = OWNED.try_with(|owned| {
        let mut owned = owned.0.borrow_mut();
        let from = hot.block.get().map_or(0, |hot| {
            let is_hot = |block: &&Block| std::ptr::eq(*block, hot);
            owned.iter().position(is_hot).unwrap_or(0)
        });
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
    hot.block.set(Some(block));
    hot.at.set(at);
    (&block.slots[at], block.number)
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
