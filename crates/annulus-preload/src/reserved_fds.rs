//! # Safety
//!
//! Descriptors that belong to the library: those of rings, draining connections, the counters and the log. They are
//! numbered from [`lowest`] up, out of the program's way. A program that closes one by a raw system call may get
//! another file with that number, so the library checks that a number still refers to its own file before it uses it
//! (Open).
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use annulus::preload::ServerRing;

use crate::fd_table::{self, Kind};
use crate::placeholders;
use crate::sys;

/// The lowest number that the library uses, if the process's limit allows.
const NUMBER_MIN: i32 = 512;
/// The count of numbers, the highest ones, that the library uses below a smaller limit.
const NUMBERS_FROM_LIMIT: i32 = 8;

/// The number of descriptors of a ring.
pub(crate) const RING_FDS: usize = 2;

/// The way to recognise a descriptor: by its own inode, or by a mark if several files share the inode.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inode {
    Own,
    /// All eventfds and rings share an inode, so the file description itself is marked.
    Shared,
}

/// A descriptor, and the identity of its file.
pub(crate) struct Slot {
    fd: AtomicI32,
    device: AtomicU64,
    number: AtomicU64,
    marked: AtomicI32,
}

/// The library's descriptors. A child closes them, or they would live as long as the child (trap 54).
static RESERVED: [Slot; 1024] = [const { Slot::new() }; 1024];

/// Returns the lowest number that the library uses. It depends on the limit of the process, which can be small.
pub(crate) fn lowest() -> i32 {
    let limit = i32::try_from(sys::fd_limit()).unwrap_or(i32::MAX);
    NUMBER_MIN.min((limit - NUMBERS_FROM_LIMIT).max(limit / 2))
}

/// Records a descriptor as the library's.
pub(crate) fn remember(fd: i32, inode: Inode) {
    if let Some(entry) = fd_table::entry(fd) {
        entry.set_kind(Kind::Library, 0);
    }
    let free = |slot: &&Slot| {
        let claimed = (slot.fd).compare_exchange(-1, fd, Ordering::AcqRel, Ordering::Relaxed);
        claimed.is_ok()
    };
    if let Some(slot) = RESERVED.iter().find(free) {
        slot.identify(fd, inode);
    }
}

fn slot_of(fd: i32) -> Option<&'static Slot> {
    (RESERVED.iter()).find(|slot| fd >= 0 && slot.fd.load(Ordering::Relaxed) == fd)
}

impl Slot {
    pub(crate) const fn new() -> Slot {
        Slot {
            fd: AtomicI32::new(-1),
            device: AtomicU64::new(0),
            number: AtomicU64::new(0),
            marked: AtomicI32::new(0),
        }
    }

    /// Records the file of a descriptor.
    pub(crate) fn identify(&self, fd: i32, inode: Inode) {
        let marked = inode == Inode::Shared && sys::mark(fd);
        let (device, number) = sys::file_id(fd).unwrap_or((0, 0));
        self.device.store(device, Ordering::Relaxed);
        self.number.store(number, Ordering::Relaxed);
        self.marked.store(i32::from(marked), Ordering::Relaxed);
    }

    pub(crate) fn is_same_file(&self, fd: i32) -> bool {
        let identity = (
            self.device.load(Ordering::Relaxed),
            self.number.load(Ordering::Relaxed),
        );
        let marked = self.marked.load(Ordering::Relaxed) != 0;
        sys::file_id(fd) == Some(identity) && (!marked || sys::is_marked(fd))
    }
}

/// Returns whether the number still refers to the library's file.
pub(crate) fn is_same_file(fd: i32) -> bool {
    slot_of(fd).is_some_and(|slot| slot.is_same_file(fd))
}

/// Makes the eventfd readable.
pub(crate) fn wake(fd: i32) {
    if is_same_file(fd) {
        sys::wake(fd);
    }
}

/// Forgets the number. Returns whether it was still the library's.
pub(crate) fn release(fd: i32) -> bool {
    let identity = fd_table::entry(fd).filter(|entry| entry.kind() == Kind::Library);
    if let Some(entry) = identity {
        entry.forget();
    }
    let Some(slot) = slot_of(fd) else {
        // More descriptors than slots were recorded.
        return identity.is_some();
    };
    let still = slot.is_same_file(fd);
    slot.fd.store(-1, Ordering::Release);
    still
}

/// Closes a descriptor, unless the number now refers to another file.
pub(crate) fn close(fd: i32) {
    if release(fd) {
        let _ = sys::close(fd);
    }
}

/// Closes the copies that a child of a fork, or a thread with private descriptors, has got. `forgets`: no other thread
/// has the descriptors.
pub(crate) fn close_copies(forgets: bool) {
    for slot in &RESERVED {
        let fd = match forgets {
            true => slot.fd.swap(-1, Ordering::Relaxed),
            false => slot.fd.load(Ordering::Relaxed),
        };
        if fd >= 0 && slot.is_same_file(fd) {
            let _ = sys::close(fd);
        }
    }
}

/// Duplicates a descriptor to a number of the library's.
pub(crate) fn duplicate(fd: i32) -> Result<i32, i32> {
    let own = sys::dup_above(fd, lowest()).or_else(|_| sys::dup_above(fd, 0))?;
    remember(own, Inode::Own);
    Ok(own)
}

/// Runs `make` while all numbers below [`lowest`] are taken, so that the descriptors that it creates get high numbers.
/// The kernel has no call that creates a ring at a given number, and a mapping keeps the ring's first descriptor.
pub(crate) fn make_high<T>(make: impl FnOnce() -> T) -> T {
    let lowest = lowest();
    let Some((placeholders, is_enough)) = placeholders::take_below(lowest) else {
        return make();
    };
    // If no number was left, the last placeholders make way for the ring.
    let kept = match is_enough {
        true => placeholders.partition_point(|&fd| fd < lowest),
        false => placeholders.len().saturating_sub(RING_FDS),
    };
    let (below, above) = placeholders.split_at(kept);
    placeholders::close(above);
    let made = make();
    placeholders::close(below);
    made
}

/// Closes a ring, which closes its own numbers. If the program has reused a number, its file is restored afterwards; a
/// number that the program has closed stays closed.
///
/// `frees_memory`: the kernel has no pending request, so the ring's memory can be freed, at the cost of another call.
pub(crate) fn close_ring(ring: ServerRing, frees_memory: bool) {
    let (mut moved, mut is_whole) = (Vec::new(), true);
    for fd in ring.descriptors() {
        if release(fd) {
            continue;
        }
        is_whole = false;
        let flags = sys::descriptor_flags(fd);
        match sys::dup_above(fd, lowest()).or_else(|_| sys::dup_above(fd, 0)) {
            Ok(duplicate) => moved.push((fd, duplicate, flags)),
            Err(libc::EBADF) => {}
            // It cannot be moved.
            Err(_) => return std::mem::forget(ring),
        }
    }
    if frees_memory && is_whole {
        ring.end();
    } else {
        drop(ring);
    }
    for (fd, duplicate, flags) in moved {
        let _ = sys::dup_to(duplicate, fd, flags);
        let _ = sys::close(duplicate);
    }
}
