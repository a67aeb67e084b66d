//! Connections that the program has closed, of which the kernel had no room for all that was written. They live on
//! under numbers out of the program's way until the rest has been sent: by the library's thread (`watchdog`), which
//! waits for room or for what makes the end a reset (`room`), and at the end of the process, which waits for it
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
pub(crate) enum Beside {
    Nobody,
    /// A ring, which would keep its end back.
    Ring,
    /// Other processes, for which it goes on.
    Processes,
}

impl Beside {
    /// Other processes come first.
    pub(crate) fn unless_shared(self, is_shared: bool) -> Beside {
        if is_shared { Beside::Processes } else { self }
    }
}

struct Orphan {
    fd: i32,
    /// The program's own: there was no other.
    keeps_number: bool,
    rest: Vec<u8>,
    sent: usize,
    beside: Beside,
    /// The library's thread is told when it can go on.
    watched: bool,
}

static ORPHANS: Mutex<Vec<Orphan>> = Mutex::new(Vec::new());
/// How many there are, those among them that somebody is just dealing with.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Those of them that nobody waits for.
static NEW: AtomicUsize = AtomicUsize::new(0);
/// How often one looks whether another thread has done with the list: in a handler it may be the thread's own.
const TRIES_MAX: u32 = 1000;

/// A send buffer of more than so many bytes has grown beyond what it could be made by being told.
const ROOM_MAX: i32 = 256 << 10;

fn with<T>(each: impl FnOnce(&mut Vec<Orphan>) -> T) -> Option<T> {
    for _ in 0..TRIES_MAX {
        if let Ok(mut orphans) = ORPHANS.try_lock() {
            return Some(each(&mut orphans));
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
fn give(fd: i32, rest: &[u8]) -> &[u8] {
    let room = sys::option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF).unwrap_or(i32::MAX);
    if room <= ROOM_MAX {
        // The kernel counts its own records as well, doubles what it is told, and has a limit of its own.
        let more = i32::try_from(rest.len()).unwrap_or(i32::MAX);
        sys::set_send_buffer(fd, room.saturating_add(more));
    }
    let sent = sys::send(fd, rest).unwrap_or(0);
    &rest[sent..]
}

/// Has the rest sent by a second number of the descriptor, so that the first can be closed. True: there is none, and
/// the connection keeps its number until the rest has been sent.
pub(crate) fn take_over(fd: i32, rest: &[u8], beside: Beside) -> bool {
    let rest = give(fd, rest);
    if rest.is_empty() && beside != Beside::Ring {
        return false;
    }
    let (own, keeps_number) = match reserved_fds::second(fd) {
        Ok(own) => (own, false),
        Err(_) => (fd, true),
    };
    if sys::linger_s(own).is_some_and(|seconds| seconds > 0) {
        // The program's close has waited for that long; the library's thread must not.
        sys::do_not_linger(own);
    }
    let orphan = Orphan {
        fd: own,
        keeps_number,
        rest: rest.to_vec(),
        sent: 0,
        beside,
        watched: false,
    };
    NEW.fetch_add(1, Ordering::Relaxed);
    COUNT.fetch_add(1, Ordering::Relaxed);
    if with(|orphans| orphans.push(orphan)).is_none() {
        COUNT.fetch_sub(1, Ordering::Relaxed);
        NEW.fetch_sub(1, Ordering::Relaxed);
        if !keeps_number {
            reserved_fds::close(own);
        }
        sys::reset_when_closed(fd);
        return false;
    }
    if keeps_number && let Some(entry) = fd_table::entry(fd) {
        entry.become_kind(Kind::Closing, 0);
    }
    flush_thread::look_out();
    keeps_number
}

impl Orphan {
    /// Sends what there is room for. True: nothing is left to do.
    fn is_over(&mut self) -> bool {
        if !self.keeps_number && !reserved_fds::is_still(self.fd) {
            // The program has closed it by a call of its own.
            reserved_fds::forget(self.fd);
            self.is_gone();
            return true;
        }
        while self.sent < self.rest.len() {
            match sys::send(self.fd, &self.rest[self.sent..]) {
                Ok(sent) => self.sent += sent,
                Err(libc::EINTR) => {}
                // Nobody reads any more: whoever goes on writing is reset, as by the kernel.
                Err(_) if self.beside != Beside::Processes && sys::readable(self.fd) > 0 => break,
                Err(libc::EAGAIN | libc::ENOMEM | libc::ENOBUFS) => return false,
                Err(_) => break,
            }
        }
        if self.beside == Beside::Ring {
            sys::end_as_if_closed(self.fd);
        }
        if self.keeps_number {
            let _ = sys::close(self.fd);
            self.forget_number();
        } else {
            reserved_fds::close(self.fd);
        }
        self.is_gone();
        true
    }

    fn is_gone(&self) {
        COUNT.fetch_sub(1, Ordering::Relaxed);
        NEW.fetch_sub(usize::from(!self.watched), Ordering::Relaxed);
    }

    fn forget_number(&self) {
        let entry = fd_table::entry(self.fd).filter(|_| self.keeps_number);
        if let Some(entry) = entry {
            entry.forget();
        }
    }

    /// Has its room waited for, and what arrives: an end is told as well, once.
    fn watch(&mut self) -> bool {
        let arrivals = match self.beside {
            Beside::Processes => 0,
            Beside::Nobody | Beside::Ring => libc::EPOLLIN,
        };
        let name = self.fd as u32;
        self.watched = writability::watch(self.fd, name.into(), (libc::EPOLLOUT | arrivals) as u32);
        NEW.fetch_sub(usize::from(self.watched), Ordering::Relaxed);
        self.watched
    }
}

/// Sees to those that are new. By the library's thread. True: one can't be waited for, and is to be looked at again.
pub(crate) fn look() -> bool {
    if is_any_new() {
        for_each(
            |orphan| !orphan.watched,
            |orphan| orphan.watch() || !orphan.is_over(),
        );
    }
    is_any_new()
}

/// Whether there are some that nobody waits for.
pub(crate) fn is_any_new() -> bool {
    NEW.load(Ordering::Relaxed) > 0
}

/// There may be room for one, or its peer writes. False: it is none.
pub(crate) fn has_room(fd: i32) -> bool {
    let mut found = false;
    if !any() {
        return found;
    }
    for_each(
        |orphan| orphan.fd == fd,
        |orphan| {
            found = true;
            !orphan.is_over()
        },
    );
    found
}

/// Of those that are meant, keeps what `stays`.
fn for_each(is_meant: impl Fn(&Orphan) -> bool, stays: impl FnMut(&mut Orphan) -> bool) {
    let meant = with(|orphans| {
        let all = std::mem::take(orphans).into_iter();
        let (meant, others) = all.partition(|orphan| is_meant(orphan));
        *orphans = others;
        meant
    });
    // Of a handler that has interrupted a holder of the list there are none.
    let Some(mut meant): Option<Vec<Orphan>> = meant else {
        return;
    };
    meant.retain_mut(stays);
    let mut list = ORPHANS.lock().unwrap_or_else(PoisonError::into_inner);
    list.append(&mut meant);
}

/// Sends what there is room for. True: something is left.
pub(crate) fn go_on() -> bool {
    if any() {
        for_each(|_| true, |orphan| !orphan.is_over());
    }
    any()
}

/// In a child of a fork: they are its parent's. Their numbers are closed with those of rings.
pub(crate) fn in_child() {
    COUNT.store(0, Ordering::Relaxed);
    NEW.store(0, Ordering::Relaxed);
    if let Ok(mut orphans) = ORPHANS.try_lock() {
        for orphan in orphans.iter().filter(|orphan| orphan.keeps_number) {
            // The peer is to be told the end when the parent is.
            let _ = sys::close(orphan.fd);
            orphan.forget_number();
        }
        // Not freed: the child may have been made in the middle of an allocation.
        std::mem::forget(std::mem::take(&mut *orphans));
    }
}

/// The number is about to be another's: what is still to be sent by it is lost, and the peer is told so.
pub(crate) fn make_way(fd: i32) {
    for_each(
        |orphan| orphan.keeps_number && orphan.fd == fd,
        |orphan| {
            sys::reset_when_closed(fd);
            orphan.forget_number();
            orphan.is_gone();
            false
        },
    );
}
