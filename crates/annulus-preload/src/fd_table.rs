//! # Safety
//!
//! The state of each descriptor number, in one array for the life of the process (Owned), whose pages are allocated at
//! first use. `state` determines which thread may use the rest: for a descriptor that belongs to a set, the holder of
//! that set's lock (Held).
#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use annulus::metrics::layout::preload::Why;

use crate::connection::Connection;
use crate::epoll_set::Set;
use crate::identity;
use crate::mapping;
use crate::sys;

/// The kind of file that a number refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Closed, or a file that the library does not track.
    Free,
    /// A TCP socket that listens.
    Listener,
    /// A connected TCP stream that is in no set.
    Stream,
    /// An epoll set.
    Set,
    /// A descriptor of the library, which the program does not know about.
    Library,
    /// A stream that a set serves.
    Served,
    /// A stream that was handed back, and of which the library still holds something.
    HandedBack,
    /// A stream that the program has closed; the ring will close it.
    Closing,
}

const KINDS: [Kind; 8] = [
    Kind::Free,
    Kind::Listener,
    Kind::Stream,
    Kind::Set,
    Kind::Library,
    Kind::Served,
    Kind::HandedBack,
    Kind::Closing,
];

/// The descriptor is non-blocking.
pub(crate) const NONBLOCK: u32 = 1 << 8;
/// Must not be served, for the reason in `WHY_MASK`; see [`never_served`].
const NEVER_SERVED: u32 = 1 << 9;
/// Another set has reported it as a one-shot member, which its kernel's set therefore does not have. Only the kind
/// `HandedBack` keeps the record of that member.
pub(crate) const FIRED_ELSEWHERE: u32 = 1 << 10;
/// Another number or another process refers to it as well.
pub(crate) const SHARED: u32 = 1 << 11;
/// Accepted by this process, and certainly not inherited by another: see [`mark_all_shared`].
pub(crate) const UNSHARED: u32 = 1 << 13;

/// A socket that this process has created and not connected yet: only this program has set options on it.
pub(crate) const CREATED: u32 = 1 << 14;
/// The number's file is no TCP socket. Every call that gives the number another file clears the mark.
pub(crate) const NOT_TCP: u32 = 1 << 15;

const FLAGS: u32 = NONBLOCK | NEVER_SERVED | WHY_MASK | FIRED_ELSEWHERE | SHARED | UNSHARED;

const KIND_MASK: u32 = 7;
/// The reason of `NEVER_SERVED`.
const WHY_MASK: u32 = 31 << WHY_SHIFT;
const WHY_SHIFT: u32 = 3;
const _: () = assert!(Why::ALL.len() <= 32);
const PROCESS_SHIFT: u32 = 16;

/// Returns flags with `NEVER_SERVED` and its reason. The first reason stays: a later one is often its consequence.
pub(crate) fn never_served(flags: u32, why: Why) -> u32 {
    match flags & NEVER_SERVED {
        0 => never_served_now(flags, why),
        _ => flags,
    }
}

/// Returns flags with `NEVER_SERVED` and this reason, instead of an earlier one.
pub(crate) fn never_served_now(flags: u32, why: Why) -> u32 {
    flags & !WHY_MASK | NEVER_SERVED | (why as u32) << WHY_SHIFT
}

/// Returns whether the connections of a listener with this reason are not served either. Those of one that is
/// merely shared are.
pub(crate) fn is_inherited(why: &Why) -> bool {
    *why != Why::Duplicated
}

/// The state of a descriptor number.
#[repr(C, align(64))]
pub(crate) struct Entry {
    /// Kind, flags, and the process that wrote them.
    state: AtomicU32,
    /// The listener's number plus one; 0: the program connected the stream.
    listener: AtomicU32,
    set: AtomicPtr<Set>,
    connection: UnsafeCell<Connection>,
}

// SAFETY: Held: the connection is used under its set's lock.
unsafe impl Sync for Entry {}

impl Entry {
    /// Returns the kind of the number in this process.
    #[inline]
    pub(crate) fn kind(&self) -> Kind {
        let kind = KINDS.get(self.kind_bits() as usize);
        kind.copied().unwrap_or(Kind::Free)
    }

    /// Returns whether the number has a kind in this process.
    #[inline]
    pub(crate) fn is(&self, kind: Kind) -> bool {
        self.kind_bits() == kind as u32
    }

    /// Returns whether a set serves the number, or has handed it back.
    #[inline]
    pub(crate) fn is_connection(&self) -> bool {
        const _: () = assert!(Kind::Served as u32 + 1 == Kind::HandedBack as u32);
        self.kind_bits().wrapping_sub(Kind::Served as u32) <= 1
    }

    /// The kind; a number beyond all kinds if another process has written it.
    #[inline]
    fn kind_bits(&self) -> u32 {
        let process = identity::fork_generation() << PROCESS_SHIFT;
        (self.state.load(Ordering::Acquire) ^ process) & (KIND_MASK | !0 << PROCESS_SHIFT)
    }

    /// Returns the kind of the number in a parent of this process.
    pub(crate) fn inherited(&self) -> Kind {
        let state = self.state.load(Ordering::Acquire);
        if state >> PROCESS_SHIFT == identity::fork_generation() & 0xffff {
            return Kind::Free;
        }
        KINDS[(state & KIND_MASK) as usize]
    }

    #[inline]
    pub(crate) fn flags(&self) -> u32 {
        self.state.load(Ordering::Relaxed) & FLAGS
    }

    /// Returns the reason why it must not be served, if there is one.
    #[inline]
    pub(crate) fn why_never_served(&self) -> Option<Why> {
        let flags = self.flags();
        let why = || Why::ALL[((flags & WHY_MASK) >> WHY_SHIFT) as usize];
        (flags & NEVER_SERVED != 0).then(why)
    }

    #[inline]
    pub(crate) fn set_kind(&self, kind: Kind, flags: u32) {
        let state = kind as u32 | flags | (identity::fork_generation() & 0xffff) << PROCESS_SHIFT;
        self.state.store(state, Ordering::Release);
    }

    /// Sets a flag, and changes nothing else.
    pub(crate) fn set_flag(&self, flag: u32) {
        self.state.fetch_or(flag, Ordering::AcqRel);
    }

    /// Clears a flag, and changes nothing else.
    pub(crate) fn clear_flag(&self, flag: u32) {
        self.state.fetch_and(!flag, Ordering::AcqRel);
    }

    /// Makes a stream served, for the holder of its set's lock. Returns `false` if it must not be served: another
    /// thread may be reading it at this moment ([`refuse`](Entry::refuse)).
    pub(crate) fn claim(&self) -> bool {
        let served = |state: u32| {
            let may_be_served = state & (KIND_MASK | NEVER_SERVED) == Kind::Stream as u32;
            let kept = FLAGS | !0 << PROCESS_SHIFT;
            may_be_served.then_some(state & kept | Kind::Served as u32)
        };
        (self.state)
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, served)
            .is_ok()
    }

    /// Records that a stream must not be served. Returns `false` if it is no stream any more.
    pub(crate) fn refuse(&self, why: Why) -> bool {
        let refused = |state: u32| {
            let is_stream = state & KIND_MASK == Kind::Stream as u32;
            is_stream.then(|| never_served(state, why))
        };
        (self.state)
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, refused)
            .is_ok()
    }

    /// Forgets the state of the number.
    #[inline]
    pub(crate) fn forget(&self) {
        self.state.store(0, Ordering::Release);
    }

    /// Returns whether the number has never had a state, in this process or a parent.
    #[inline]
    pub(crate) fn is_unknown(&self) -> bool {
        self.state.load(Ordering::Relaxed) == 0
    }

    /// Records that this process has just created a socket with this number.
    pub(crate) fn mark_created(&self) {
        self.set_epoll_set(ptr::null_mut());
        self.set_kind(Kind::Free, CREATED);
        self.set_listener(None);
    }

    /// Returns whether the kernel's set of the entry's epoll set may have the number: a stream, or a socket that may
    /// have been added before it was connected.
    pub(crate) fn may_be_kernel_member(&self) -> bool {
        self.kind() == Kind::Stream || self.has_mark(CREATED)
    }

    /// Returns whether this process has set `mark`, and not given the number a kind since.
    #[inline]
    pub(crate) fn has_mark(&self, mark: u32) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        state & (KIND_MASK | mark) == mark
            && state >> PROCESS_SHIFT == identity::fork_generation() & 0xffff
    }

    /// Records that the number's file is no TCP socket, if the state is still `was`. The kernel is then asked once.
    pub(crate) fn mark_not_tcp(&self, was: u32) {
        let not_tcp = NOT_TCP | (identity::fork_generation() & 0xffff) << PROCESS_SHIFT;
        self.restore_if_unchanged(was, not_tcp);
    }

    /// Returns the whole state, for [`restore_if_unchanged`](Entry::restore_if_unchanged).
    pub(crate) fn snapshot(&self) -> u32 {
        self.state.load(Ordering::Acquire)
    }

    /// Restores the state `was`, if the state is still `made`.
    pub(crate) fn restore_if_unchanged(&self, made: u32, was: u32) {
        let _ = (self.state).compare_exchange(made, was, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Returns the listener that accepted it. `None`: the program connected it.
    pub(crate) fn listener(&self) -> Option<&'static Entry> {
        entry(self.listener.load(Ordering::Relaxed).checked_sub(1)? as i32)
    }

    pub(crate) fn set_listener(&self, listener_fd: Option<i32>) {
        let name = listener_fd.map_or(0, |fd| fd as u32 + 1);
        self.listener.store(name, Ordering::Relaxed);
    }

    /// Returns the set: not null for an epoll set, and for a connection that a set has or had.
    #[inline]
    pub(crate) fn set(&self) -> *mut Set {
        self.set.load(Ordering::Acquire)
    }

    pub(crate) fn set_epoll_set(&self, set: *mut Set) {
        self.set.store(set, Ordering::Release);
    }

    /// Returns the connection. Held: only the holder of the set's lock, or the only thread of a child, uses it.
    #[inline]
    pub(crate) fn connection(&self) -> *mut Connection {
        self.connection.get()
    }
}

static BASE: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The maximum number of descriptors that are tracked; all others pass through.
pub(crate) const COUNT_MAX: usize = 1 << 17;
const COUNT_MIN: usize = 1 << 16;

/// Creates the table, for as many descriptors as the process may ever have.
pub(crate) fn make() {
    let count = (sys::fd_limits().1 as usize).clamp(COUNT_MIN, COUNT_MAX);
    if let Some(base) = mapping::map_zeroed(count * size_of::<Entry>()) {
        // Zero bytes are valid entries of the kind `Free`, and connections.
        BASE.store(base.cast(), Ordering::Release);
        COUNT.store(count, Ordering::Release);
    }
}

/// Returns the entry of a descriptor. `None`: the number is too high, there is no table, or the calling thread has
/// private descriptors.
#[inline]
pub(crate) fn entry(fd: i32) -> Option<&'static Entry> {
    let at = fd as usize;
    if at >= COUNT.load(Ordering::Acquire) {
        return shared_entry(at);
    }
    // SAFETY: Owned: within the mapping, which stays.
    Some(unsafe { &*BASE.load(Ordering::Relaxed).add(at) })
}

/// Returns whether a number has a kind in this process.
pub(crate) fn is(fd: i32, kind: Kind) -> bool {
    entry(fd).is_some_and(|entry| entry.is(kind))
}

/// The number of entries, while [`COUNT`] is 0 because a thread has private descriptors.
static COUNT_OF_SHARED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The calling thread shares its descriptors with no thread that the library serves.
    static IS_PRIVATE: Cell<bool> = const { Cell::new(false) };
}

/// Not inlined: a thread-local address would be computed for each look-up.
#[cold]
#[inline(never)]
fn shared_entry(at: usize) -> Option<&'static Entry> {
    if at >= COUNT_OF_SHARED.load(Ordering::Acquire) || IS_PRIVATE.get() {
        return None;
    }
    // SAFETY: Owned: within the mapping, which stays.
    Some(unsafe { &*BASE.load(Ordering::Relaxed).add(at) })
}

/// Records that the calling thread has private descriptors: all its calls pass through from now on. From now on each
/// thread is asked whether it is such a thread.
pub(crate) fn make_private() {
    IS_PRIVATE.set(true);
    let count = COUNT.load(Ordering::Acquire);
    if count > 0 {
        COUNT_OF_SHARED.store(count, Ordering::Release);
        COUNT.store(0, Ordering::Release);
    }
}

/// Returns whether the calling thread has private descriptors.
#[inline]
pub(crate) fn is_private() -> bool {
    COUNT.load(Ordering::Acquire) == 0 && IS_PRIVATE.get()
}

/// The highest number that was accepted, plus one.
static ACCEPTED_MAX: AtomicI32 = AtomicI32::new(0);
/// The number that was accepted last, or -1 if a thread has waited or written to it since.
static ACCEPTED_LAST: AtomicI32 = AtomicI32::new(-1);

pub(crate) fn on_accepted(fd: i32) {
    ACCEPTED_LAST.store(fd, Ordering::Relaxed);
    if fd >= ACCEPTED_MAX.load(Ordering::Relaxed) {
        ACCEPTED_MAX.fetch_max(fd.saturating_add(1), Ordering::Relaxed);
    }
}

/// Returns whether it was accepted a moment ago, so that it can be assumed to be connected.
#[inline]
pub(crate) fn is_just_accepted(fd: i32) -> bool {
    ACCEPTED_LAST.load(Ordering::Relaxed) == fd
}

/// Forgets the last accepted number, as a thread is about to wait.
#[inline]
pub(crate) fn clear_just_accepted() {
    if ACCEPTED_LAST.load(Ordering::Relaxed) != -1 {
        ACCEPTED_LAST.store(-1, Ordering::Relaxed);
    }
}

/// Records that the program writes to a descriptor that is not in a set yet.
#[inline]
pub(crate) fn on_written(fd: i32) {
    if is_just_accepted(fd) {
        clear_just_accepted();
    }
}

/// Clears `UNSHARED` of all descriptors before a fork: the child inherits everything that is open.
pub(crate) fn mark_all_shared() {
    for entry in (0..ACCEPTED_MAX.load(Ordering::Relaxed)).map_while(entry) {
        entry.state.fetch_and(!UNSHARED, Ordering::AcqRel);
    }
}

/// Returns the number of entries.
pub(crate) fn count() -> usize {
    let count = COUNT.load(Ordering::Acquire);
    count.max(COUNT_OF_SHARED.load(Ordering::Acquire))
}
