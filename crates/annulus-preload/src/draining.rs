//! Connections that the program has closed, of which the kernel had no room for all that was written. They live on
//! under numbers out of the program's way until the rest has been sent: by the library's thread (`watchdog`), which
//! waits for room or for what makes the end a reset (`send_buffer`), and at the end of the process, which waits for it
//! (`send`).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::fd_table::{self, Kind};
use crate::flush_thread;
use crate::reserved_fds;
use crate::sys;
use crate::writability;

/// Who may have such a connection as well.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SharedWith {
    Nothing,
    /// A ring, which would keep its end back.
    Ring,
    /// Other processes, for which it goes on.
    Processes,
}

impl SharedWith {
    /// Other processes come first.
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
    /// The program's own: there was no other.
    keeps_number: bool,
    unsent: Vec<u8>,
    sent: usize,
    shared_with: SharedWith,
    /// The library's thread is told when it can go on.
    watched: bool,
}

static DRAINING: Mutex<Vec<Draining>> = Mutex::new(Vec::new());
/// How many there are, those among them that somebody is just dealing with.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Those of them that nobody waits for.
static UNWATCHED: AtomicUsize = AtomicUsize::new(0);
/// How often one looks whether another thread has done with the list: in a handler it may be the thread's own.
const TRIES_MAX: u32 = 1000;

/// A send buffer of more than so many bytes has grown beyond what it could be made by being told.
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

/// Has the kernel take as much of the rest as it may: nobody writes to that connection any more, and what the kernel
/// has outlives the process. What it has not taken.
fn send_what_fits(fd: i32, unsent: &[u8]) -> &[u8] {
    let send_buffer = sys::option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF).unwrap_or(i32::MAX);
    if send_buffer <= GROWN_SEND_BUFFER_BYTES {
        // The kernel counts its own records as well, doubles what it is told, and has a limit of its own.
        let more = i32::try_from(unsent.len()).unwrap_or(i32::MAX);
        sys::set_send_buffer(fd, send_buffer.saturating_add(more));
    }
    let sent = sys::send(fd, unsent).unwrap_or(0);
    &unsent[sent..]
}

/// Has the rest sent by a second number of the descriptor, so that the first can be closed. True: there is none, and
/// the connection keeps its number until the rest has been sent.
pub(crate) fn take_over(fd: i32, unsent: &[u8], shared_with: SharedWith) -> bool {
    let unsent = send_what_fits(fd, unsent);
    if unsent.is_empty() && shared_with != SharedWith::Ring {
        return false;
    }
    let (own, keeps_number) = match reserved_fds::duplicate(fd) {
        Ok(own) => (own, false),
        Err(_) => (fd, true),
    };
    if sys::linger_s(own).is_some_and(|seconds| seconds > 0) {
        // The program's close has waited for that long; the library's thread must not.
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
    flush_thread::ensure_running();
    keeps_number
}

impl Draining {
    /// Sends what there is room for. True: nothing is left to do.
    fn try_finish(&mut self) -> bool {
        if !self.keeps_number && !reserved_fds::is_same_file(self.fd) {
            // The program has closed it by a call of its own.
            reserved_fds::release(self.fd);
            self.uncount();
            return true;
        }
        while self.sent < self.unsent.len() {
            match sys::send(self.fd, &self.unsent[self.sent..]) {
                Ok(sent) => self.sent += sent,
                Err(libc::EINTR) => {}
                // Nobody reads any more: whoever goes on writing is reset, as by the kernel.
                Err(_)
                    if self.shared_with != SharedWith::Processes && sys::readable(self.fd) > 0 =>
                {
                    break;
                }
                Err(libc::EAGAIN | libc::ENOMEM | libc::ENOBUFS) => return false,
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

    /// Has its room waited for, and what arrives: an end is told as well, once.
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

/// Sees to those that are new. By the library's thread. True: one can't be waited for, and is to be looked at again.
pub(crate) fn watch_new() -> bool {
    if has_unwatched() {
        for_each(
            |connection| !connection.watched,
            |connection| connection.watch() || !connection.try_finish(),
        );
    }
    has_unwatched()
}

/// Whether there are some that nobody waits for.
pub(crate) fn has_unwatched() -> bool {
    UNWATCHED.load(Ordering::Relaxed) > 0
}

/// There may be room for one, or its peer writes. False: it is none.
pub(crate) fn on_ready(fd: i32) -> bool {
    let mut found = false;
    if !any() {
        return found;
    }
    for_each(
        |connection| connection.fd == fd,
        |connection| {
            found = true;
            !connection.try_finish()
        },
    );
    found
}

/// Of those that are meant, keeps what `keeps`.
fn for_each(selects: impl Fn(&Draining) -> bool, keeps: impl FnMut(&mut Draining) -> bool) {
    let selected = with_list(|connections| {
        let all = std::mem::take(connections).into_iter();
        let (selected, others) = all.partition(|connection| selects(connection));
        *connections = others;
        selected
    });
    // Of a handler that has interrupted a holder of the list there are none.
    let Some(mut selected): Option<Vec<Draining>> = selected else {
        return;
    };
    selected.retain_mut(keeps);
    let mut list = DRAINING.lock().unwrap_or_else(PoisonError::into_inner);
    list.append(&mut selected);
}

/// Sends what there is room for. True: something is left.
pub(crate) fn flush_all() -> bool {
    if any() {
        for_each(|_| true, |connection| !connection.try_finish());
    }
    any()
}

/// In a child of a fork: they are its parent's. Their numbers are closed with those of rings.
pub(crate) fn reset_in_child() {
    COUNT.store(0, Ordering::Relaxed);
    UNWATCHED.store(0, Ordering::Relaxed);
    if let Ok(mut connections) = DRAINING.try_lock() {
        for connection in connections
            .iter()
            .filter(|connection| connection.keeps_number)
        {
            // The peer is to be told the end when the parent is.
            let _ = sys::close(connection.fd);
            connection.forget_number();
        }
        // Not freed: the child may have been made in the middle of an allocation.
        std::mem::forget(std::mem::take(&mut *connections));
    }
}

/// The number is about to be another's: what is still to be sent by it is lost, and the peer is told so.
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
