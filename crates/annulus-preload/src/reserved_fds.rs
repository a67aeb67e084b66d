//! # Safety
//!
//! The library's own descriptors: those of rings, of what was closed with a rest to send, of the counts and the log.
//! They lie at [`lowest`] or above, out of the program's way. A program that closes them by calls of its own may have
//! another file at such a number: nothing is done to a number that is not the library's any more (Open).
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use annulus::preload::ServerRing;

use crate::fd_table::{self, Kind};
use crate::sys;

/// The library's numbers are not below this, where the limit of the process leaves room above it.
const NUMBER_MIN: i32 = 512;
/// Below a lower limit the library's numbers are the last ones, so many.
const LAST_ONES: i32 = 8;

/// A ring has so many descriptors.
const MADE_AT_ONCE: usize = 2;

/// What is told of a descriptor by its number: a file of its own, or one of those that share an inode.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inode {
    Own,
    /// As all eventfds and rings do: the description itself is marked.
    Shared,
}

/// One descriptor, and which file it is of.
struct Place {
    fd: AtomicI32,
    device: AtomicU64,
    number: AtomicU64,
    marked: AtomicI32,
}

/// A child closes them, or they would live as long as it (trap 54).
static OURS: [Place; 1024] = [const {
    Place {
        fd: AtomicI32::new(-1),
        device: AtomicU64::new(0),
        number: AtomicU64::new(0),
        marked: AtomicI32::new(0),
    }
}; 1024];

/// The lowest number of the library's own. It follows the limit of the process, which is smaller in a few.
pub(crate) fn lowest() -> i32 {
    let limit = i32::try_from(sys::numbers_max()).unwrap_or(i32::MAX);
    NUMBER_MIN.min((limit - LAST_ONES).max(limit / 2))
}

/// The descriptor is the library's from now on.
pub(crate) fn remember(fd: i32, inode: Inode) {
    if let Some(entry) = fd_table::entry(fd) {
        entry.become_kind(Kind::Ours, 0);
    }
    let marked = inode == Inode::Shared && sys::mark(fd);
    let (device, number) = sys::identity(fd).unwrap_or((0, 0));
    let free = |place: &&Place| {
        let taken = (place.fd).compare_exchange(-1, fd, Ordering::AcqRel, Ordering::Relaxed);
        taken.is_ok()
    };
    if let Some(place) = OURS.iter().find(free) {
        place.device.store(device, Ordering::Relaxed);
        place.number.store(number, Ordering::Relaxed);
        place.marked.store(i32::from(marked), Ordering::Relaxed);
    }
}

fn place_of(fd: i32) -> Option<&'static Place> {
    (OURS.iter()).find(|place| fd >= 0 && place.fd.load(Ordering::Relaxed) == fd)
}

impl Place {
    fn is_still(&self, fd: i32) -> bool {
        let known = (
            self.device.load(Ordering::Relaxed),
            self.number.load(Ordering::Relaxed),
        );
        let marked = self.marked.load(Ordering::Relaxed) != 0;
        sys::identity(fd) == Some(known) && (!marked || sys::is_marked(fd))
    }
}

/// Whether the number is still of the file that the library had there.
pub(crate) fn is_still(fd: i32) -> bool {
    place_of(fd).is_some_and(|place| place.is_still(fd))
}

/// Wakes whoever waits for that eventfd.
pub(crate) fn wake(fd: i32) {
    if is_still(fd) {
        sys::wake(fd);
    }
}

/// The library lets go of the number. True: it was still its own.
pub(crate) fn forget(fd: i32) -> bool {
    let known = fd_table::entry(fd).filter(|entry| entry.kind() == Kind::Ours);
    if let Some(entry) = known {
        entry.forget();
    }
    let Some(place) = place_of(fd) else {
        // More than there are places for.
        return known.is_some();
    };
    let still = place.is_still(fd);
    place.fd.store(-1, Ordering::Release);
    still
}

/// Closes it, unless the number is another file's by now.
pub(crate) fn close(fd: i32) {
    if forget(fd) {
        let _ = sys::close(fd);
    }
}

/// In a child of a fork: all of them are its parent's.
pub(crate) fn close_in_child() {
    for place in &OURS {
        let fd = place.fd.swap(-1, Ordering::Relaxed);
        if fd >= 0 && place.is_still(fd) {
            let _ = sys::close(fd);
        }
    }
}

/// A second number of a descriptor, the library's.
pub(crate) fn second(fd: i32) -> Result<i32, i32> {
    let own = sys::dup_above(fd, lowest()).or_else(|_| sys::dup_above(fd, 0))?;
    remember(own, Inode::Own);
    Ok(own)
}

/// Makes descriptors that get the lowest numbers that are free, as those of a ring do, while the numbers below
/// [`lowest`] are taken: the kernel has no call that makes a ring at another number, and who maps it keeps its first.
pub(crate) fn make_high<T>(make: impl FnOnce() -> T) -> T {
    let lowest = lowest();
    let Ok([read, write]) = sys::pipe() else {
        return make();
    };
    let file = sys::identity(read);
    // Another thread may have given the number to another file.
    let close = |fd: i32| {
        if file.is_some() && sys::identity(fd) == file {
            let _ = sys::close(fd);
        }
    };
    let _ = sys::close(write);
    let mut taken = vec![read];
    let mut is_full = false;
    while taken.last().is_some_and(|&fd| fd < lowest) && !is_full {
        match sys::dup_above(read, read + 1) {
            Ok(fd) => taken.push(fd),
            Err(_) => is_full = true,
        }
    }
    // The last one is not below; where there is none left, the last ones are for what is made.
    let spare = if is_full { MADE_AT_ONCE } else { 1 };
    taken
        .drain(taken.len().saturating_sub(spare)..)
        .for_each(close);
    let made = make();
    taken.into_iter().for_each(close);
    made
}

/// Ends a ring. It closes its own numbers: one that the program has given to another file meanwhile has that file
/// again afterwards, and one that it has closed stays closed.
///
/// `gives_back`: nothing is with the kernel, so that the ring's memory can be let go of, by a call more.
pub(crate) fn close_ring(ring: ServerRing, gives_back: bool) {
    let (mut aside, mut is_whole) = (Vec::new(), true);
    for fd in ring.descriptors() {
        if forget(fd) {
            continue;
        }
        is_whole = false;
        let flags = sys::descriptor_flags(fd);
        match sys::dup_above(fd, lowest()).or_else(|_| sys::dup_above(fd, 0)) {
            Ok(second) => aside.push((fd, second, flags)),
            Err(libc::EBADF) => {}
            // It can't be put aside.
            Err(_) => return std::mem::forget(ring),
        }
    }
    if gives_back && is_whole {
        ring.end();
    } else {
        drop(ring);
    }
    for (fd, second, flags) in aside {
        let _ = sys::dup_to(second, fd, flags);
        let _ = sys::close(second);
    }
}
