//! # Safety
//!
//! The state of each descriptor number. One array for the life of the process (Owned), whose pages are allocated at
//! first use. `state` determines who may use the rest: for a descriptor that belongs to a set, the holder of that set's
//! lock (Held).
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use crate::connection::Connection;
use crate::epoll_set::Set;
use crate::identity;

/// What a number stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Nothing that we know.
    Free,
    /// A TCP socket that listens.
    Listener,
    /// A connected TCP stream that no set has.
    Stream,
    /// An epoll set.
    Set,
    /// A descriptor of the library, which the program does not know.
    Library,
    /// A stream that a set serves.
    Served,
    /// A stream that was handed back and still has buffered bytes.
    HandedBack,
    /// A stream that was closed; the ring is about to do it.
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

/// Known to be non-blocking.
pub(crate) const NONBLOCK: u32 = 1 << 8;
/// Must not be served: it is shared, or the operator excluded it.
pub(crate) const NEVER_SERVED: u32 = 1 << 9;

/// It is left alone because of its listener's port.
pub(crate) const BY_PORT: u32 = 1 << 10;
/// Another number, or another process, has it, too.
pub(crate) const SHARED: u32 = 1 << 11;
/// It is left alone because of an option, or its listener's.
pub(crate) const BY_OPTION: u32 = 1 << 12;
/// Accepted by this process, and certainly in no other: see [`mark_all_shared`].
pub(crate) const UNSHARED: u32 = 1 << 13;

/// A socket that this process has created and not connected yet: all of its options were set by this program.
const CREATED: u32 = 1 << 14;

const FLAGS: u32 = NONBLOCK | NEVER_SERVED | BY_PORT | BY_OPTION | SHARED | UNSHARED;

const KIND_MASK: u32 = 0xff;
const PROCESS_SHIFT: u32 = 16;

/// One descriptor number.
#[repr(C, align(64))]
pub(crate) struct Entry {
    /// Kind, flags, and the process that wrote them.
    state: AtomicU32,
    /// The listener that it was accepted from, and one more; 0: it was connected.
    listener: AtomicU32,
    set: AtomicPtr<Set>,
    connection: UnsafeCell<Connection>,
}

// SAFETY: Held: the connection is used under its set's lock.
unsafe impl Sync for Entry {}

impl Entry {
    /// What it is, in this process.
    #[inline]
    pub(crate) fn kind(&self) -> Kind {
        let state = self.state.load(Ordering::Acquire);
        if state & KIND_MASK == 0 || state >> PROCESS_SHIFT != identity::fork_generation() & 0xffff
        {
            return Kind::Free;
        }
        KINDS[(state & 7) as usize]
    }

    /// What it was in a parent of this process.
    pub(crate) fn inherited(&self) -> Kind {
        let state = self.state.load(Ordering::Acquire);
        if state >> PROCESS_SHIFT == identity::fork_generation() & 0xffff {
            return Kind::Free;
        }
        KINDS[(state & 7) as usize]
    }

    #[inline]
    pub(crate) fn flags(&self) -> u32 {
        self.state.load(Ordering::Relaxed) & FLAGS
    }

    #[inline]
    pub(crate) fn set_kind(&self, kind: Kind, flags: u32) {
        let state = kind as u32 | flags | (identity::fork_generation() & 0xffff) << PROCESS_SHIFT;
        self.state.store(state, Ordering::Release);
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

    /// This process has just made a socket of it.
    pub(crate) fn mark_created(&self) {
        self.set_kind(Kind::Free, CREATED);
        self.set_listener(None);
    }

    /// Whether this process has made it, and not yet connected it to anything that we know.
    pub(crate) fn is_created(&self) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        state & (KIND_MASK | CREATED) == CREATED
            && state >> PROCESS_SHIFT == identity::fork_generation() & 0xffff
    }

    /// The whole state, for [`restore_if_unchanged`](Entry::restore_if_unchanged).
    pub(crate) fn snapshot(&self) -> u32 {
        self.state.load(Ordering::Acquire)
    }

    /// Puts back what was, if it still is what was made of it.
    pub(crate) fn restore_if_unchanged(&self, made: u32, was: u32) {
        let _ = (self.state).compare_exchange(made, was, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The listener that it was accepted from. `None`: the program has connected it.
    pub(crate) fn listener(&self) -> Option<&'static Entry> {
        entry(self.listener.load(Ordering::Relaxed).checked_sub(1)? as i32)
    }

    pub(crate) fn set_listener(&self, listener_fd: Option<i32>) {
        let name = listener_fd.map_or(0, |fd| fd as u32 + 1);
        self.listener.store(name, Ordering::Relaxed);
    }

    /// The set that it belongs to; not null if it is one, or a connection that one has or had.
    #[inline]
    pub(crate) fn set(&self) -> *mut Set {
        self.set.load(Ordering::Acquire)
    }

    pub(crate) fn set_epoll_set(&self, set: *mut Set) {
        self.set.store(set, Ordering::Release);
    }

    /// Held: used by the holder of the set's lock, or by the only thread of a child.
    #[inline]
    pub(crate) fn connection(&self) -> *mut Connection {
        self.connection.get()
    }
}

static BASE: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The most descriptors that are looked after; the others pass through.
const COUNT_MAX: usize = 1 << 17;
const COUNT_MIN: usize = 1 << 16;

/// Makes the table, for as many descriptors as the process may ever have.
pub(crate) fn make() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: Typed: a valid pointer for the result.
    let has_limit = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    let requested = if has_limit {
        limit.rlim_max as usize
    } else {
        0
    };
    let count = requested.clamp(COUNT_MIN, COUNT_MAX);
    // SAFETY: Owned: a new mapping; zero bytes are valid entries of the kind `Free`, and connections.
    let base = unsafe {
        libc::mmap(
            ptr::null_mut(),
            count * size_of::<Entry>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if base != libc::MAP_FAILED {
        BASE.store(base.cast(), Ordering::Release);
        COUNT.store(count, Ordering::Release);
    }
}

/// The entry of a descriptor; `None` also if there is no table.
#[inline]
pub(crate) fn entry(fd: i32) -> Option<&'static Entry> {
    let at = fd as usize;
    if at >= COUNT.load(Ordering::Acquire) {
        return None;
    }
    // SAFETY: Owned: within the mapping, which stays.
    Some(unsafe { &*BASE.load(Ordering::Relaxed).add(at) })
}

/// The highest number that was accepted, and one more.
static ACCEPTED_MAX: AtomicI32 = AtomicI32::new(0);
/// The number that was accepted last, if no thread has waited since and nothing was written to it; else -1.
static ACCEPTED_LAST: AtomicI32 = AtomicI32::new(-1);

pub(crate) fn on_accepted(fd: i32) {
    ACCEPTED_LAST.store(fd, Ordering::Relaxed);
    if fd >= ACCEPTED_MAX.load(Ordering::Relaxed) {
        ACCEPTED_MAX.fetch_max(fd.saturating_add(1), Ordering::Relaxed);
    }
}

/// Whether it was accepted a moment ago: it is connected, as far as anybody can know.
#[inline]
pub(crate) fn is_just_accepted(fd: i32) -> bool {
    ACCEPTED_LAST.load(Ordering::Relaxed) == fd
}

/// A thread is about to wait.
#[inline]
pub(crate) fn clear_just_accepted() {
    if ACCEPTED_LAST.load(Ordering::Relaxed) != -1 {
        ACCEPTED_LAST.store(-1, Ordering::Relaxed);
    }
}

/// The program writes to it before a set has it.
#[inline]
pub(crate) fn on_written(fd: i32) {
    if is_just_accepted(fd) {
        clear_just_accepted();
    }
}

/// The process is about to have a child, which has all that is open now.
pub(crate) fn mark_all_shared() {
    for entry in (0..ACCEPTED_MAX.load(Ordering::Relaxed)).map_while(entry) {
        entry.state.fetch_and(!UNSHARED, Ordering::AcqRel);
    }
}

/// How many numbers it has.
pub(crate) fn count() -> usize {
    COUNT.load(Ordering::Acquire)
}
