//! # Safety
//!
//! All sets that were ever created, in a list that only grows (Owned: they are never freed). It can be walked at any
//! time without a lock, including by signal handlers and by children of a fork.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::epoll_set::{Set, SetGuard};
use crate::fd_table::{self, Entry, Kind};
use crate::member_list::MemberList;

static NEWEST: AtomicPtr<Set> = AtomicPtr::new(ptr::null_mut());

static WORDS: [AtomicU64; fd_table::COUNT_MAX / 64] =
    [const { AtomicU64::new(0) }; fd_table::COUNT_MAX / 64];
static NUMBERS: MemberList = MemberList::of(&WORDS);

/// Makes a number that of a set.
pub(crate) fn name(entry: &Entry, fd: i32, set: &'static Set) {
    entry.set_epoll_set(ptr::from_ref(set).cast_mut());
    entry.set_kind(Kind::Set, 0);
    NUMBERS.add(fd);
}

/// Returns the numbers of all sets. Few of a process's descriptors are sets, so this does not look at all of them.
pub(crate) fn numbers() -> impl Iterator<Item = (i32, &'static Set)> {
    let is_set = |entry: &Entry| entry.kind() == Kind::Set;
    (NUMBERS.walk(move |fd| fd_table::entry(fd).is_none_or(is_set)))
        .filter_map(|fd| Some((fd, Set::of(fd_table::entry(fd)?)?)))
}

/// Adds a new set to the list.
pub(crate) fn add(set: Set) -> &'static Set {
    let set: &'static Set = Box::leak(Box::new(set));
    let this = ptr::from_ref(set).cast_mut();
    let mut newest = NEWEST.load(Ordering::Acquire);
    loop {
        set.older.store(newest, Ordering::Relaxed);
        match NEWEST.compare_exchange_weak(newest, this, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return set,
            Err(other) => newest = other,
        }
    }
}

/// Returns all sets, including closed ones.
pub(crate) fn all() -> impl Iterator<Item = &'static Set> {
    // SAFETY: Owned: null, or a set.
    let follow = |at: &AtomicPtr<Set>| unsafe { at.load(Ordering::Acquire).as_ref() };
    std::iter::successors(follow(&NEWEST), move |set| follow(&set.older))
}

/// Calls `each` for every open set of this process.
pub(crate) fn for_each(mut each: impl FnMut(&mut SetGuard)) {
    for set in all() {
        if let Some(mut guard) = set.take()
            && guard.fd_count > 0
        {
            each(&mut guard);
        }
    }
}

/// Calls `each` for every set of this process, also while its owner is in the kernel: `each` does not use the ring.
/// Returns `false` in a signal handler that has interrupted the holder of a lock.
pub(crate) fn for_each_during_enter(mut each: impl FnMut(&mut SetGuard)) -> bool {
    let mut all_taken = true;
    for set in all().filter(|set| set.is_of_this_process()) {
        match set.take_during_enter() {
            Some(mut guard) => each(&mut guard),
            None => all_taken = false,
        }
    }
    all_taken
}

/// Calls `each` for every set with queued bytes, with the time of the first of them; without the set's lock.
pub(crate) fn for_each_queued(mut each: impl FnMut(&'static Set, u64)) {
    for set in all() {
        let since_ns = set.queued_since_ns();
        if since_ns != 0 {
            each(set, since_ns);
        }
    }
}

pub(crate) fn none_is_queued() -> bool {
    all().all(|set| set.queued_since_ns() == 0)
}

/// Makes a thread that the program has cancelled leave its sleep in a set.
pub(crate) fn cancel_sleep_of(thread_id: usize) {
    all()
        .filter(|set| set.owner() == thread_id)
        .for_each(Set::cancel_sleep);
}

/// Calls `each` for every set that the calling thread waits on.
pub(crate) fn for_each_owned(mut each: impl FnMut(&mut SetGuard)) {
    for set in all().filter(|set| set.is_owner()) {
        if let Some(mut guard) = set.take() {
            each(&mut guard);
        }
    }
}
