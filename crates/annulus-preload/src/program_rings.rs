//! Rings that the program makes by libc's `syscall`.
//!
//! libuv 1.45 and later (Node.js, uvloop) makes a ring for each event loop, right after the loop's epoll set, and adds
//! members with `IORING_OP_EPOLL_CTL`, which no hook notices. That ring is refused, so libuv calls `epoll_ctl` instead.
//! For served members this costs no system call. Other members cost one call per change, where the ring took all
//! changes of a poll with one.

use std::cell::Cell;

use crate::epoll_set::{Mode, Set};
use crate::fd_table::{self, Kind};

/// The start of the kernel's `io_uring_params`: everything that a program may set.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RingParams {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    sq_thread_cpu: u32,
    sq_thread_idle_ms: u32,
    features: u32,
    wq_fd: u32,
    reserved: [u32; 3],
}

const SETUP_SQPOLL: u32 = 1 << 1;
const SETUP_NO_SQARRAY: u32 = 1 << 16;
/// The size of the ring for `epoll_ctl`.
const CTL_ENTRIES: u32 = 256;
/// The size of the ring for file operations. libuv 1.45 to 1.48 makes it first, and adds it to the set.
const FILE_ENTRIES: u32 = 64;

/// An epoll set that its thread has just created.
#[derive(Clone, Copy)]
struct NewSet {
    fd: i32,
    has_file_ring: bool,
}

thread_local! {
    /// The epoll set that the calling thread created last.
    static NEWEST: Cell<Option<NewSet>> = const { Cell::new(None) };
}

/// Records a set that the calling thread has created.
pub(crate) fn on_new_set(fd: i32) {
    NEWEST.set(Some(NewSet {
        fd,
        has_file_ring: false,
    }));
}

/// Handles the creation of a ring. Returns whether to refuse it, because libuv would change its set with it.
pub(crate) fn refuses(entries: u32, params: RingParams) -> bool {
    let newest = NEWEST.get();
    let ctl_ring = RingParams {
        flags: params.flags & SETUP_NO_SQARRAY,
        ..RingParams::default()
    };
    if entries == CTL_ENTRIES && params == ctl_ring && newest.is_some_and(is_untouched) {
        NEWEST.set(None);
        return true;
    }
    let file_ring = RingParams {
        flags: SETUP_SQPOLL,
        sq_thread_idle_ms: params.sq_thread_idle_ms,
        ..RingParams::default()
    };
    if entries == FILE_ENTRIES && params == file_ring {
        NEWEST.set(newest.map(|newest| NewSet {
            has_file_ring: true,
            ..newest
        }));
    }
    false
}

/// Returns whether the program has neither waited on the set nor added anything but libuv's ring for files.
fn is_untouched(newest: NewSet) -> bool {
    let entry = fd_table::entry(newest.fd).filter(|entry| entry.kind() == Kind::Set);
    let Some(set) = entry.and_then(Set::of) else {
        return false;
    };
    set.take().is_some_and(|guard| {
        let has_members = guard.has_members || set.young.is_young() && set.young.has_members();
        guard.mode == Mode::Fresh && (newest.has_file_ring || !has_members)
    })
}
