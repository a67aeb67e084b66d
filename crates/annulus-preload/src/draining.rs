//! Draining connections: the program has closed them while some of their output did not fit into the kernel's send
//! buffer. They keep a reserved descriptor until the remaining bytes have been sent. The flush thread (`flush_thread`)
//! waits until they are writable, or until the peer sends data, which makes the end a reset. At process exit, `send`
//! waits for them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::fd_table::{self, Kind};
use crate::flush_request;
use crate::reserved_fds;
use crate::send_errors;
use crate::signals;
use crate::sys;
use crate::writability;

/// The other holder of a draining connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SharedWith {
    Nothing,
    /// A ring, which would delay the end of stream.
    Ring,
    /// Other processes, which continue to use it.
    Processes,
}

impl SharedWith {
    /// Returns `Processes` if the connection is shared with other processes, and `self` otherwise.
    pub(crate) fn unless_shared(self, is_shared: bool) -> SharedWith {
        if is_shared {
            SharedWith::Processes
        } else {
            self
        }
    }
}

struct Draining {
    fd: i32,
    /// The program's number is used, as no duplicate could be made.
    keeps_number: bool,
    unsent: Vec<u8>,
    sent: usize,
    shared_with: SharedWith,
    /// The flush thread is notified when it can send more.
    watched: bool,
}

static DRAINING: Mutex<Vec<Draining>> = Mutex::new(Vec::new());
/// Draining connections, including those that a thread is processing.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Draining connections that are not watched yet.
static UNWATCHED: AtomicUsize = AtomicUsize::new(0);
/// The number of attempts to take the list: in a signal handler, the interrupted thread may hold it.
const TRIES_MAX: u32 = 1000;

/// A send buffer above this size, bytes, has been grown by autotuning beyond what SO_SNDBUF could set.
const GROWN_SEND_BUFFER_BYTES: i32 = 256 << 10;

fn with_list<T>(each: impl FnOnce(&mut Vec<Draining>) -> T) -> Option<T> {
    for _ in 0..TRIES_MAX {
        if let Ok(mut connections) = DRAINING.try_lock() {
            return Some(each(&mut connections));
        }
        std::thread::yield_now();
    }
    None
}

pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

/// Sends as much as the kernel accepts, after enlarging the send buffer, unless the kernel has grown it. Returns the
/// number of bytes, and the former size of a buffer that was enlarged.
pub(crate) fn send_enlarged(fd: i32, unsent: &[u8]) -> (usize, Option<i32>) {
    let former = sys::option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF)
        .ok()
        .filter(|&bytes| bytes <= GROWN_SEND_BUFFER_BYTES);
    if let Some(bytes) = former {
        // The kernel also counts its own bookkeeping, doubles the requested size, and caps it.
        let more = i32::try_from(unsent.len()).unwrap_or(i32::MAX);
        sys::set_option(fd, libc::SO_SNDBUF, bytes.saturating_add(more));
    }
    let mut sent = 0;
    while let Ok(more @ 1..) = sys::send(fd, &unsent[sent..]) {
        sent += more;
    }
    (sent, former)
}

/// Sends the remaining bytes through a duplicate of the descriptor, so that the first can be closed. Returns true if no
/// duplicate could be made: the connection keeps its number until the bytes have been sent.
pub(crate) fn take_over(fd: i32, unsent: &[u8], shared_with: SharedWith) -> bool {
    // The buffer stays large: no other write follows, and bytes in the kernel outlive the process.
    let unsent = &unsent[send_enlarged(fd, unsent).0..];
    if unsent.is_empty() && shared_with != SharedWith::Ring {
        return false;
    }
    let (own, keeps_number) = match reserved_fds::duplicate(fd) {
        Ok(own) => (own, false),
        Err(_) => (fd, true),
    };
    if sys::linger_s(own).is_some_and(|seconds| seconds > 0) {
        // The program's close has already waited for that long; the library's thread must not wait.
        sys::do_not_linger(own);
    }
    let connection = Draining {
        fd: own,
        keeps_number,
        unsent: unsent.to_vec(),
        sent: 0,
        shared_with,
        watched: false,
    };
    UNWATCHED.fetch_add(1, Ordering::Relaxed);
    COUNT.fetch_add(1, Ordering::Relaxed);
    if with_list(|connections| connections.push(connection)).is_none() {
        COUNT.fetch_sub(1, Ordering::Relaxed);
        UNWATCHED.fetch_sub(1, Ordering::Relaxed);
        if !keeps_number {
            reserved_fds::close(own);
        }
        sys::reset_when_closed(fd);
        return false;
    }
    if keeps_number && let Some(entry) = fd_table::entry(fd) {
        entry.set_kind(Kind::Closing, 0);
    }
    flush_request::ensure_running();
    keeps_number
}

impl Draining {
    /// Sends as much as fits. Returns true when nothing is left to do.
    fn try_finish(&mut self) -> bool {
        if !self.keeps_number && !reserved_fds::is_same_file(self.fd) {
            // The program has closed it by a raw system call.
            reserved_fds::release(self.fd);
            self.uncount();
            return true;
        }
        while self.sent < self.unsent.len() {
            match sys::send(self.fd, &self.unsent[self.sent..]) {
                Ok(sent) => self.sent += sent,
                // The program will not read again: further data from the peer makes the kernel send a reset.
                Err(_)
                    if self.shared_with != SharedWith::Processes && sys::readable(self.fd) > 0 =>
                {
                    break;
                }
                Err(errno) if send_errors::keeps_bytes(errno) => return false,
                Err(_) => break,
            }
        }
        if self.shared_with == SharedWith::Ring {
            sys::end_as_if_closed(self.fd);
        }
        if self.keeps_number {
            let _ = sys::close(self.fd);
            self.forget_number();
        } else {
            reserved_fds::close(self.fd);
        }
        self.uncount();
        true
    }

    fn uncount(&self) {
        COUNT.fetch_sub(1, Ordering::Relaxed);
        UNWATCHED.fetch_sub(usize::from(!self.watched), Ordering::Relaxed);
    }

    fn forget_number(&self) {
        let entry = fd_table::entry(self.fd).filter(|_| self.keeps_number);
        if let Some(entry) = entry {
            entry.forget();
        }
    }

    /// Watches the connection for writability and incoming data. An end of stream is reported as well, once.
    fn watch(&mut self) -> bool {
        let arrivals = match self.shared_with {
            SharedWith::Processes => 0,
            SharedWith::Nothing | SharedWith::Ring => libc::EPOLLIN,
        };
        let name = self.fd as u32;
        self.watched = writability::watch(self.fd, name.into(), (libc::EPOLLOUT | arrivals) as u32);
        UNWATCHED.fetch_sub(usize::from(self.watched), Ordering::Relaxed);
        self.watched
    }
}

/// Watches new draining connections. Called by the flush thread. Returns whether one cannot be watched and must be
/// retried.
pub(crate) fn watch_new() -> bool {
    if has_unwatched() {
        for_each(
            |connection| !connection.watched,
            |connection| connection.watch() || !connection.try_finish(),
        );
    }
    has_unwatched()
}

/// Returns whether there are connections that are not watched yet.
pub(crate) fn has_unwatched() -> bool {
    UNWATCHED.load(Ordering::Relaxed) > 0
}

/// Handles an event of a draining connection: it is writable, or its peer has sent data. Returns false if `fd` is not
/// draining.
pub(crate) fn on_ready(fd: i32) -> bool {
    let mut is_draining = false;
    if !any() {
        return is_draining;
    }
    for_each(
        |connection| connection.fd == fd,
        |connection| {
            is_draining = true;
            !connection.try_finish()
        },
    );
    is_draining
}

/// Applies `keeps` to the selected connections, and keeps those for which it returns true. A handler must not jump out
/// of it.
fn for_each(selects: impl Fn(&Draining) -> bool, keeps: impl FnMut(&mut Draining) -> bool) {
    signals::without(|| for_each_selected(selects, keeps));
}

fn for_each_selected(
    selects: impl Fn(&Draining) -> bool,
    keeps: impl FnMut(&mut Draining) -> bool,
) {
    let selected = with_list(|connections| {
        let all = std::mem::take(connections).into_iter();
        let (selected, others) = all.partition(|connection| selects(connection));
        *connections = others;
        selected
    });
    // In a signal handler that has interrupted the holder of the list, no connection is selected.
    let Some(mut selected): Option<Vec<Draining>> = selected else {
        return;
    };
    selected.retain_mut(keeps);
    let mut list = DRAINING.lock().unwrap_or_else(PoisonError::into_inner);
    list.append(&mut selected);
}

/// Sends as much as fits. Returns whether connections are left.
pub(crate) fn flush_all() -> bool {
    if any() {
        for_each(|_| true, |connection| !connection.try_finish());
    }
    any()
}

/// Runs before a wait. If the flush thread could not be started, tries again, and sends what fits.
#[inline]
pub(crate) fn send_without_thread() {
    if any() && flush_request::is_stopped() {
        flush_request::ensure_running();
        if flush_request::is_stopped() {
            flush_all();
        }
    }
}

/// Drops all connections in a child of a fork: they are the parent's. Their numbers are closed with those of rings.
pub(crate) fn reset_in_child() {
    COUNT.store(0, Ordering::Relaxed);
    UNWATCHED.store(0, Ordering::Relaxed);
    if let Ok(mut connections) = DRAINING.try_lock() {
        for connection in connections
            .iter()
            .filter(|connection| connection.keeps_number)
        {
            // The peer must see the end when the parent closes the connection.
            let _ = sys::close(connection.fd);
            connection.forget_number();
        }
        // Not freed: the fork may have interrupted an allocation.
        std::mem::forget(std::mem::take(&mut *connections));
    }
}

/// Releases a number that is about to be reused: its unsent bytes are lost, and the peer gets a reset.
pub(crate) fn release_number(fd: i32) {
    for_each(
        |connection| connection.keeps_number && connection.fd == fd,
        |connection| {
            sys::reset_when_closed(fd);
            connection.forget_number();
            connection.uncount();
            false
        },
    );
}
