//! `shutdown` of a connection: FIN follows the written bytes.

use crate::counters::Why;
use crate::duplicates;
use crate::epoll_set::{Inner, Set};
use crate::errno::CallResult;
use crate::fd_table::{self, Entry, Kind};
use crate::gate;
use crate::hand_back;
use crate::outbound::Fin;
use crate::output;
use crate::sys;

/// Sends FIN, behind written bytes. `None`: passes through to the kernel.
pub(crate) fn shut_down(entry: &'static Entry, fd: i32, how: i32) -> Option<CallResult> {
    let mut guard = gate::served(entry, fd).ok()?;
    // The kernel knows everything that remains to be reported of a connection that is shut down for reading.
    if how != libc::SHUT_WR {
        hand_back::hand_back(&mut guard, fd, Why::UnknownFlags);
        // The call makes the kernel report a new edge.
        guard.forget_reported_fd(fd);
        let connection = guard.connection(fd)?;
        guard.notify(connection, 0);
        if how != libc::SHUT_RDWR || guard[connection].backlog.is_empty() {
            return None;
        }
        shut_down_later(&mut guard, fd);
        return Some(sys::shutdown(fd, libc::SHUT_RD));
    }
    let connection = guard.connection(fd)?;
    let inner: &mut Inner = &mut guard;
    output::flush(inner, connection);
    if !inner[connection].backlog.is_empty() {
        shut_down_later(inner, fd);
        return Some(Ok(0));
    }
    let result = sys::shutdown(fd, how);
    if result.is_ok() {
        inner[connection].fin = Fin::Sent;
    }
    // The kernel wakes waiters whatever the result: a new edge.
    inner.forget_reported(fd, inner[connection].data);
    inner.notify(connection, 0);
    Some(result)
}

/// Sends FIN once the deferred output has been sent, also by a duplicate.
fn shut_down_later(inner: &mut Inner, fd: i32) {
    duplicates::for_each_duplicate(inner, fd, |inner, connection| {
        inner[connection].fin = Fin::AfterBacklog;
    });
}

/// Forgets the reported events of a connection that is about to be shut down, as the kernel reports a new edge.
pub(crate) fn before_shutdown(fd: i32) {
    let entry = fd_table::entry(fd).filter(|entry| entry.kind() == Kind::Stream);
    let set = entry.and_then(Set::of).filter(|set| set.is_owner());
    if let Some(mut guard) = set.and_then(Set::take) {
        guard.forget_reported_fd(fd);
    }
}
