//! Closing, duplicating and reusing descriptor numbers.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::closing;
use crate::counters::Why;
use crate::deferred_output;
use crate::draining;
use crate::duplicates;
use crate::early_members;
use crate::epoll_set::Set;
use crate::epoll_set_list;
use crate::errno::CallResult;
use crate::fd_table::{self, Entry, Kind, SHARED, never_served};
use crate::identity;
use crate::listeners;
use crate::set_end;
use crate::stops;
use crate::sys;

/// Forgets a number that was closed without being served, including its state in a parent process.
#[inline]
pub(crate) fn forget(fd: i32) {
    if let Some(entry) = fd_table::entry(fd)
        && !entry.is_unknown()
    {
        entry.forget();
    }
}

/// Closes a descriptor that is tracked. `None`: the program's call closes it.
pub(crate) fn close(entry: &'static Entry, fd: i32) -> Option<CallResult> {
    match entry.kind() {
        Kind::Served | Kind::HandedBack => {
            let set = Set::of(entry)?;
            deferred_output::linger_before_close(entry, set, fd);
            let Some(mut guard) = set.take() else {
                return defer_close(entry, fd);
            };
            if let Some(second) = duplicates::duplicate_to_report(&guard, fd) {
                if !duplicates::report_by_duplicate(guard, fd, second) {
                    return defer_close(entry, fd);
                }
                guard = set.take()?;
            }
            if !matches!(entry.kind(), Kind::Served | Kind::HandedBack) {
                return None;
            }
            closing::close(set, &mut guard, entry, fd).then_some(Ok(0))
        }
        Kind::Closing => {
            Set::finish_deferred_close(entry);
            if entry.kind() == Kind::Closing {
                return Some(Err(libc::EBADF));
            }
            None
        }
        Kind::Library => Some(Err(libc::EBADF)),
        Kind::Set => {
            let set = Set::of(entry)?;
            if set.young.end() {
                // Its lists are empty, and it has one number.
                if set.young.is_named() {
                    set_end::forget_streams(set);
                }
                entry.forget();
                set.retire();
                return None;
            }
            let mut guard = set.take()?;
            guard.fd_count = guard.fd_count.saturating_sub(1);
            if guard.fd_count == 0 {
                set_end::close_set(&mut guard, set);
                drop(guard);
                set.retire();
            } else if guard.fd == fd {
                guard.fd = another_number(set, fd).unwrap_or(fd);
            }
            entry.forget();
            None
        }
        Kind::Listener => {
            listeners::on_close(fd, false);
            entry.forget();
            None
        }
        Kind::Free | Kind::Stream => {
            entry.forget();
            None
        }
    }
}

/// Numbers that a signal handler closed during a call of its thread, which may be using them. The thread's next
/// wait, or its next call that creates a number, closes them. 0: no number.
static DEFERRED_CLOSES: [AtomicI32; 16] = [const { AtomicI32::new(0) }; 16];
static HAS_DEFERRED_CLOSES: AtomicBool = AtomicBool::new(false);

#[cold]
fn defer_close(entry: &'static Entry, fd: i32) -> Option<CallResult> {
    let was = entry.kind() as i32;
    let free = DEFERRED_CLOSES.iter().find(|slot| {
        let name = fd << 4 | was;
        (slot.compare_exchange(0, name, Ordering::AcqRel, Ordering::Relaxed)).is_ok()
    });
    if free.is_none() {
        // More numbers than any handler has been observed to close.
        entry.forget();
        return None;
    }
    entry.set_kind(Kind::Closing, entry.flags());
    HAS_DEFERRED_CLOSES.store(true, Ordering::Release);
    Some(Ok(0))
}

/// Forgets deferred closes in a child of a fork: they are the parent's.
pub(crate) fn reset() {
    DEFERRED_CLOSES
        .iter()
        .for_each(|slot| slot.store(0, Ordering::Relaxed));
}

/// Closes the numbers that a signal handler could not close.
#[inline]
pub(crate) fn close_deferred() {
    if HAS_DEFERRED_CLOSES.load(Ordering::Relaxed) {
        close_all_deferred();
    }
}

#[cold]
fn close_all_deferred() {
    // A child may not have checked its generation yet; these closes belong to its parent.
    identity::fork_generation();
    // Not a store, which another processor may see after a new mark, and so after a close that the loop has missed.
    HAS_DEFERRED_CLOSES.swap(false, Ordering::AcqRel);
    for slot in &DEFERRED_CLOSES {
        let name = slot.swap(0, Ordering::AcqRel);
        let Some(entry) = fd_table::entry(name >> 4).filter(|_| name != 0) else {
            continue;
        };
        let was = if name & 15 == Kind::Served as i32 {
            Kind::Served
        } else {
            Kind::HandedBack
        };
        entry.set_kind(was, entry.flags());
        if close(entry, name >> 4).is_none() {
            let _ = sys::close(name >> 4);
        }
    }
}

fn another_number(set: &'static Set, but: i32) -> Option<i32> {
    let mut numbers = epoll_set_list::numbers();
    let found = numbers.find(|&(fd, other)| fd != but && std::ptr::eq(other, set));
    found.map(|(fd, _)| fd)
}

/// Closes what a number refers to, before another descriptor takes the number, or before libc closes it by an internal
/// call. It stays open for that call; a served connection has been handed back before.
pub(crate) fn release_number(entry: &'static Entry, fd: i32) {
    if close(entry, fd).is_some() {
        draining::release_number(fd);
    }
}

/// Returns whether two numbers refer to the same connection, which was handed back and of which the library holds
/// something.
pub(crate) fn is_duplicate(entry: &'static Entry, fd: i32, other: i32) -> bool {
    entry.kind() == Kind::HandedBack
        && (Set::of(entry).and_then(Set::take))
            .is_some_and(|guard| duplicates::share(&guard, fd, other))
}

/// Records `to` as another number of the file that `from` refers to.
pub(crate) fn duplicate(
    (from, from_fd): (Option<&'static Entry>, i32),
    to: &'static Entry,
    to_fd: i32,
) {
    let Some(from) = from else {
        to.forget();
        let is_connection = |from: &&Entry| {
            matches!(
                from.inherited(),
                Kind::Stream | Kind::Served | Kind::HandedBack
            )
        };
        // A connection of a parent of this process.
        if let Some(from) = fd_table::entry(from_fd).filter(is_connection) {
            from.set_flag(SHARED);
            to.set_kind(Kind::Stream, never_served(SHARED, Why::Duplicated));
        }
        return;
    };
    match from.kind() {
        Kind::Set => {
            if let Some(set) = Set::of(from)
                && let Some(mut guard) = set.take()
            {
                early_members::mature(set, &mut guard);
                guard.fd_count += 1;
                epoll_set_list::name(to, to_fd, set);
            }
        }
        Kind::HandedBack => {
            if let Some(mut guard) = Set::of(from).and_then(Set::take) {
                let flags = never_served(from.flags() | SHARED, Why::Duplicated);
                from.set_kind(Kind::HandedBack, flags);
                duplicates::share_held(&mut guard, from_fd, to, to_fd);
            }
        }
        Kind::Stream => {
            let flags = never_served(from.flags() | SHARED, Why::Duplicated);
            from.set_kind(Kind::Stream, flags);
            to.set_kind(Kind::Stream, flags);
        }
        Kind::Listener => {
            to.set_kind(Kind::Listener, never_served(from.flags(), Why::Duplicated));
            stops::stop_listener(from, Why::Duplicated);
        }
        _ => to.forget(),
    }
}
