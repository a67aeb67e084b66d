//! # Safety
//!
//! Waits until sockets are writable, on behalf of a program that waits elsewhere. A kernel epoll set in which the flush
//! thread sleeps (`flush_thread`), with edge-triggered members, which cost nothing until they are writable, and an
//! eventfd that wakes the thread (Lent, Typed: structures of this stack, and numbers).
//!
//! The flush thread creates the set when there is something to add to it for the first time.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use crate::reserved_fds::{self, Inode};
use crate::sys;

/// The kernel's set, and the eventfd that wakes its sleeper; -1: not created.
static SET: AtomicI32 = AtomicI32::new(-1);
static WAKE: AtomicI32 = AtomicI32::new(-1);
/// The name under which `WAKE` is in the set: no connection's.
const WOKEN: u64 = u64::MAX;
/// Without a limit, µs.
const FOREVER_US: i64 = 3_600_000_000;
/// Events of one call.
const EVENTS_MAX: usize = 16;

/// Watches a descriptor: each time that it becomes writable or has an error, `key` is reported once. False: it cannot
/// be watched.
pub(crate) fn watch(fd: i32, key: u64, events: u32) -> bool {
    let Some(set) = set() else { return false };
    let events = events | libc::EPOLLET as u32;
    // One that is in it already is looked at anew.
    match sys::control(set, libc::EPOLL_CTL_ADD, fd, events, key) {
        Err(libc::EEXIST) => sys::control(set, libc::EPOLL_CTL_MOD, fd, events, key).is_ok(),
        ret => ret.is_ok(),
    }
}

pub(crate) fn forget(fd: i32) {
    let set = SET.load(Ordering::Acquire);
    let _ = sys::control(set, libc::EPOLL_CTL_DEL, fd, 0, 0);
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

/// Wakes the thread that sleeps here.
pub(crate) fn wake(word: &AtomicU32) {
    sys::wake_one(word);
    let wake = WAKE.load(Ordering::Acquire);
    if wake >= 0 {
        sys::wake(wake);
    }
}

/// Sleeps while `word` is `value`, until a socket is writable, or for `us`. Sleeps once at most: the caller checks
/// again. False: the time is up.
pub(crate) fn sleep_while(
    word: &AtomicU32,
    value: u32,
    us: Option<i64>,
    on_ready: impl FnMut(u64),
) -> bool {
    match SET.load(Ordering::Acquire) {
        ..0 => {
            let begin_ns = sys::now_ns();
            let us = us.unwrap_or(FOREVER_US);
            sys::wait_while(word, value, us);
            (sys::now_ns() - begin_ns) / 1000 < us.cast_unsigned()
        }
        // The thread that changed the word has also made the eventfd readable.
        set => sleep(set, us, on_ready),
    }
}

/// False: the time is up.
fn sleep(set: i32, us: Option<i64>, mut on_ready: impl FnMut(u64)) -> bool {
    // SAFETY: Typed: plain integers, for which zero bytes are a value.
    let mut events: [libc::epoll_event; EVENTS_MAX] = unsafe { std::mem::zeroed() };
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: us.unwrap_or(0) * 1000,
    };
    let time = us.map_or(ptr::null(), |_| &raw const time);
    let ret = match reserved_fds::is_same_file(set) {
        // SAFETY: Lent: all of this stack.
        true => unsafe { sys::wait(set, &mut events, time) },
        false => Err(libc::EBADF),
    };
    let count = ret.unwrap_or_else(|_| {
        // It is no set any more: the program has closed it by a call of its own. The next that waits makes another.
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

/// There is none any more: in a child of a fork they are its parent's, and closed with its other descriptors.
pub(crate) fn reset() {
    SET.store(-1, Ordering::Relaxed);
    WAKE.store(-1, Ordering::Relaxed);
}
