//! Connections that the program has closed, of which the kernel had no room for all that was written, and that no ring
//! looks after: it has ended, or their number is another's now. They live on under numbers out of the program's way
//! until the rest has been sent: by the thread that looks for late writes (`watchdog`), and at the end of the process,
//! which waits for it (`send`).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::leave;
use crate::ours;
use crate::send;
use crate::set::Held;
use crate::sys;
use crate::table;
use crate::turn::{self, About};
use crate::watchdog;

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
    rest: Vec<u8>,
    sent: usize,
    beside: Beside,
}

static ORPHANS: Mutex<Vec<Orphan>> = Mutex::new(Vec::new());
/// How many there are, those among them that somebody is just dealing with.
static COUNT: AtomicUsize = AtomicUsize::new(0);
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

/// Has the rest sent by a second number of the descriptor, so that the first can be closed. Where there is none, the
/// peer is told by a reset that something is missing.
pub(crate) fn take_over(fd: i32, rest: &[u8], beside: Beside) {
    let rest = give(fd, rest);
    if rest.is_empty() && beside != Beside::Ring {
        return;
    }
    let Ok(own) = ours::second(fd) else {
        return sys::reset_when_closed(fd);
    };
    let orphan = Orphan {
        fd: own,
        rest: rest.to_vec(),
        sent: 0,
        beside,
    };
    COUNT.fetch_add(1, Ordering::Relaxed);
    if with(|orphans| orphans.push(orphan)).is_none() {
        COUNT.fetch_sub(1, Ordering::Relaxed);
        ours::close(own);
        return sys::reset_when_closed(fd);
    }
    watchdog::look_out();
}

impl Orphan {
    /// Sends what there is room for. True: nothing is left to do.
    fn is_over(&mut self) -> bool {
        if !ours::is_still(self.fd) {
            // The program has closed it by a call of its own.
            ours::forget(self.fd);
            COUNT.fetch_sub(1, Ordering::Relaxed);
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
        ours::close(self.fd);
        COUNT.fetch_sub(1, Ordering::Relaxed);
        true
    }
}

/// Sends what there is room for. True: something is left.
pub(crate) fn go_on() -> bool {
    if any()
        && let Some(mut orphans) = with(std::mem::take)
    {
        orphans.retain_mut(|orphan| !orphan.is_over());
        // No handler comes here that has interrupted a holder: it would have got none of them.
        let mut list = ORPHANS.lock().unwrap_or_else(PoisonError::into_inner);
        list.append(&mut orphans);
    }
    any()
}

/// Waits until all has been sent, or until then.
pub(crate) fn wait_until(deadline_ns: u64) {
    while go_on() && sys::now_ns() < deadline_ns {
        sys::pause_us(500);
    }
}

/// In a child of a fork: they are its parent's. Their numbers are closed with those of rings.
pub(crate) fn in_child() {
    COUNT.store(0, Ordering::Relaxed);
    if let Ok(mut orphans) = ORPHANS.try_lock() {
        // Not freed: the child may have been made in the middle of an allocation.
        std::mem::forget(std::mem::take(&mut *orphans));
    }
}

/// Takes over all that the program has closed of a set and that has not been sent yet. By whoever has had the set's
/// closes finished as far as that is possible.
pub(crate) fn take_all(held: &mut Held) {
    take_over_of(held, |_| true)
        .into_iter()
        .for_each(leave::end_number);
}

/// Likewise of the descriptor that is about to become another's.
pub(crate) fn make_way(held: &mut Held, fd: i32) {
    let numbers = take_over_of(held, |closed| closed == fd);
    if let Some(entry) = numbers.first().and_then(|&fd| table::entry(fd)) {
        entry.forget();
    }
}

/// The numbers of those that have been taken over: still open.
fn take_over_of(held: &mut Held, is_meant: impl Fn(i32) -> bool) -> Vec<i32> {
    let mut numbers = Vec::new();
    if held.pushed {
        return numbers;
    }
    let all = std::mem::take(&mut held.closing).into_iter();
    let (meant, others) = all.partition(|closing| is_meant(closing.fd));
    held.closing = others;
    for closing in meant {
        let beside = Beside::Ring.unless_shared(closing.is_shared);
        take_over(closing.fd, closing.backlog.as_slice(), beside);
        numbers.push(closing.fd);
    }
    for nth in 0..held.lingering.len() {
        if let Some(lingering) = held.lingering[nth].take_if(|lingering| is_meant(lingering.fd)) {
            held.cancels.push(turn::token(About::Linger, 0, nth as i32));
            let beside = Beside::Ring.unless_shared(lingering.is_shared);
            take_over(lingering.fd, lingering.backlog.as_slice(), beside);
            numbers.push(lingering.fd);
        }
    }
    numbers
}

/// A connection has put something aside, and its set has no ring any more to wait for room.
pub(crate) fn waits_without_ring(held: &mut Held, fd: i32) {
    held.to_poll.push(fd);
    held.is_queued_since(sys::now_ns());
    watchdog::look_out();
}

/// Of a set that has no ring any more: sends what its connections have put aside. True: something is left.
pub(crate) fn go_on_without_ring(held: &mut Held) -> bool {
    if held.ring.is_some() {
        return false;
    }
    let mut waiting = std::mem::take(&mut held.to_poll);
    waiting.sort_unstable();
    waiting.dedup();
    for fd in waiting {
        let Some(connection) = held.connection(fd) else {
            continue;
        };
        send::go_on(held, fd, connection);
        leave::settle(held, fd, connection);
    }
    !held.to_poll.is_empty()
}
