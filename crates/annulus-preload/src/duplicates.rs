//! Duplicates of a connection that was handed back: its numbers share what the library holds of it, which is received
//! bytes, an error, and deferred output.

use crate::connection::Conn;
use crate::counters::Why;
use crate::epoll_set::{Inner, SetGuard};
use crate::epoll_set_list;
use crate::events::{EDGE_TRIGGERED, ONESHOT};
use crate::fd_table::{Entry, Kind, SHARED, never_served};
use crate::member::Member;
use crate::outbound::Outbound;
use crate::output;
use crate::set_members::SharedMember;
use crate::unread;

/// Shares what the library holds of a connection that was handed back with its duplicate: received bytes, an error, and
/// deferred output.
pub(crate) fn share_held(inner: &mut Inner, from: i32, entry: &'static Entry, to: i32) {
    let flags = never_served(SHARED, Why::Duplicated);
    let holds = |&one: &Conn| inner[one].held_events() != 0 || !inner[one].backlog.is_empty();
    let Some(source) = inner.connection(from).filter(holds) else {
        return entry.set_kind(Kind::Stream, flags);
    };
    unread::copy_out(inner, source);
    inner.name(entry, to);
    entry.set_kind(Kind::HandedBack, flags);
    if let Some(connection) = inner.connection(to) {
        let source = &mut inner[source];
        let (fin, outbound, error) = (source.fin, source.outbound, source.error);
        let (copied_out, backlog) = (source.copied_out.share(), source.backlog.share());
        let duplicate = &mut inner[connection];
        duplicate.begin(0, 0);
        duplicate.member = Member::Out;
        if outbound == Outbound::Full {
            duplicate.outbound.fill();
        }
        (duplicate.fin, duplicate.error) = (fin, error);
        (duplicate.copied_out, duplicate.backlog) = (copied_out, backlog);
        inner.handed_back_count += 1;
        output::mark_deferred(inner, connection);
    }
}

/// Returns whether two numbers share what the library holds of their connection, as one is a duplicate of the other.
pub(crate) fn share(inner: &Inner, fd: i32, second: i32) -> bool {
    let both = inner.connection(fd).zip(inner.connection(second));
    fd != second
        && both.is_some_and(|(one, other)| {
            inner[one]
                .copied_out
                .is_shared_with(&inner[other].copied_out)
        })
}

/// Returns the duplicates of a number that share what the library holds of its connection.
fn duplicates(inner: &Inner, fd: i32) -> Vec<i32> {
    let connection = inner.connection(fd);
    let holders = connection.map_or(0, |connection| inner[connection].copied_out.holders());
    let others = holders.saturating_sub(1) as usize;
    // The scan ends with the last one.
    let numbers = inner.members().filter(|&second| share(inner, fd, second));
    numbers.take(others).collect()
}

/// Calls `each` for a connection and its duplicates that share what the library holds of it.
pub(crate) fn for_each_duplicate(
    inner: &mut Inner,
    fd: i32,
    mut each: impl FnMut(&mut Inner, Conn),
) {
    let mut all = duplicates(inner, fd);
    all.push(fd);
    for fd in all {
        if let Some(connection) = inner.connection(fd) {
            each(inner, connection);
        }
    }
}

/// Returns and clears the error of a connection, which one of its duplicates returns.
pub(crate) fn take_error(inner: &mut Inner, connection: Conn) -> i32 {
    let error = inner[connection].error;
    if error != 0 {
        for_each_duplicate(inner, connection.fd, |inner, connection| {
            inner[connection].error = 0
        });
    }
    error
}

/// Returns a duplicate of a number that has the same buffered bytes or error.
pub(crate) fn duplicate_to_report(inner: &Inner, fd: i32) -> Option<i32> {
    let connection = inner.connection(fd)?;
    let holds = inner[connection].held_events() != 0;
    holds.then(|| duplicates(inner, fd))?.first().copied()
}

/// Makes all sets report the buffered bytes and the error of a number by its duplicate, as the number is about to be
/// closed. Locks one set at a time. Returns `false` in a signal handler that has interrupted a call on one of the sets.
pub(crate) fn report_by_duplicate(guard: SetGuard, fd: i32, second: i32) -> bool {
    let (from, to) = (generation(&guard, fd), generation(&guard, second));
    drop(guard);
    epoll_set_list::for_each_during_enter(|other| {
        for member in &mut other.shared_members {
            if (member.fd, member.generation) == (fd, from) {
                (member.fd, member.generation) = (second, to);
            }
        }
    })
}

/// Makes the set of a number that is being closed continue to report it, by its duplicate.
pub(crate) fn continue_by_duplicate(inner: &mut Inner, connection: Conn) {
    if let Some(second) = duplicate_to_report(inner, connection.fd) {
        let oneshot_or_edge = EDGE_TRIGGERED | ONESHOT;
        let reported = match inner[connection].member {
            Member::Disabled => true,
            Member::Changed => false,
            Member::Out | Member::Reported => inner[connection].events & oneshot_or_edge != 0,
        };
        inner.shared_members.push(SharedMember {
            fd: second,
            generation: generation(inner, second),
            added_as: connection.fd,
            events: inner[connection].events,
            data: inner[connection].data,
            reported,
            held_elsewhere: 0,
        });
    }
}

/// Returns the generation of the connection that has the number now.
pub(crate) fn generation(inner: &Inner, fd: i32) -> u32 {
    (inner.connection(fd)).map_or(0, |connection| inner[connection].generation)
}
