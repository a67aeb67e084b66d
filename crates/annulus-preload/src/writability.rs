//! # Safety
//!
//! Waits until sockets are writable, on behalf of a program that waits elsewhere. The flush thread (`flush_thread`)
//! sleeps in a kernel epoll set with edge-triggered members, which cost nothing until they are writable, and an eventfd
//! that wakes the thread (Lent, Typed: structures of this stack, and numbers).
//!
//! The set is created when the first socket is added to it.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use crate::reserved_fds::{self, Inode};
use crate::sys;

/// The kernel's set, and the eventfd that wakes the thread; -1: not created.
static SET: AtomicI32 = AtomicI32::new(-1);
static WAKE: AtomicI32 = AtomicI32::new(-1);
/// The key of `WAKE` in the set, which no connection has.
const WOKEN: u64 = u64::MAX;
/// Stands for no limit, µs.
const FOREVER_US: u64 = 3_600_000_000;
/// The number of events of one call.
const EVENTS_MAX: usize = 16;

/// Watches a descriptor: `key` is reported once each time that it becomes writable or has an error. `false`: it cannot
/// be watched.
pub(crate) fn watch(fd: i32, key: u64, events: u32) -> bool {
    let Some(set) = set() else { return false };
    let events = events | libc::EPOLLET as u32;
    // Changing a member makes the kernel check its readiness again.
    match sys::control(set, libc::EPOLL_CTL_ADD, fd, events, key) {
        Err(libc::EEXIST) => sys::control(set, libc::EPOLL_CTL_MOD, fd, events, key).is_ok(),
        ret => ret.is_ok(),
    }
}

pub(crate) fn forget(fd: i32) {
    let set = SET.load(Ordering::Acquire);
    let _ = sys::control(set, libc::EPOLL_CTL_DEL, fd, 0, 0);
}

/// Returns the kernel's set; -1: not created.
pub(crate) fn descriptor() -> i32 {
    SET.load(Ordering::Acquire)
}

/// Closes the set, which no thread uses. Returns whether there was one.
pub(crate) fn release() -> bool {
    let fds = [&SET, &WAKE].map(|fd| fd.swap(-1, Ordering::AcqRel));
    let open = fds.into_iter().filter(|&fd| fd >= 0);
    open.map(reserved_fds::close).count() > 0
}

fn set() -> Option<i32> {
    let set = SET.load(Ordering::Acquire);
    if set >= 0 {
        return Some(set);
    }
    let set = move_high(sys::epoll_create().ok()?)?;
    let wake = sys::eventfd().ok().and_then(move_high)?;
    sys::control(set, libc::EPOLL_CTL_ADD, wake, libc::EPOLLIN as u32, WOKEN).ok()?;
    WAKE.store(wake, Ordering::Release);
    SET.store(set, Ordering::Release);
    Some(set)
}

/// Moves a descriptor to a high number, out of the program's way.
fn move_high(low: i32) -> Option<i32> {
    let high = sys::dup_above(low, reserved_fds::lowest());
    let _ = sys::close(low);
    let high = high.ok()?;
    reserved_fds::remember(high, Inode::Shared);
    Some(high)
}

/// Wakes the thread that sleeps in the set.
pub(crate) fn wake(word: &AtomicU32) {
    sys::wake_one(word);
    let wake = WAKE.load(Ordering::Acquire);
    if wake >= 0 {
        sys::wake(wake);
    }
}

/// Sleeps while `word` is `value`, until a socket is writable, or for `us`. It sleeps at most once, so the caller
/// checks again. Returns `false` on a timeout.
pub(crate) fn sleep_while(
    word: &AtomicU32,
    value: u32,
    us: Option<u64>,
    on_ready: impl FnMut(u64),
) -> bool {
    match SET.load(Ordering::Acquire) {
        ..0 => {
            let begin_ns = sys::now_ns();
            let us = us.unwrap_or(FOREVER_US);
            sys::wait_while(word, value, us);
            (sys::now_ns() - begin_ns) / 1000 < us
        }
        // The thread that changed the word has also made the eventfd readable.
        set => sleep(set, us, on_ready),
    }
}

/// Sleeps in the set. Returns `false` on a timeout.
fn sleep(set: i32, us: Option<u64>, mut on_ready: impl FnMut(u64)) -> bool {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
    let time = us.map(|us| sys::time(us * 1000));
    let ret = match reserved_fds::is_same_file(set) {
        true => sys::wait(set, &mut events, time.as_ref()),
        false => Err(libc::EBADF),
    };
    let count = ret.unwrap_or_else(|_| {
        // The program has closed the set by a raw system call. The next call creates another.
        reserved_fds::release(set);
        reset();
        sys::pause_us(us.unwrap_or(0));
        0
    });
    for event in &events[..count] {
        match event.u64 {
            WOKEN => sys::clear(WAKE.load(Ordering::Acquire)),
            key => on_ready(key),
        }
    }
    count > 0
}

/// Forgets the set in a child of a fork: it is the parent's, and is closed with the parent's other descriptors.
pub(crate) fn reset() {
    SET.store(-1, Ordering::Relaxed);
    WAKE.store(-1, Ordering::Relaxed);
}
