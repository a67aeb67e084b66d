//! The gate of all calls for a connection: the set's owner passes, and a call of another thread hands it back.

use crate::connection::Conn;
use crate::counters::Why;
use crate::epoll_set::{Mode, Set, SetGuard};
use crate::fd_table::{Entry, Kind};
use crate::set_end;

/// Takes the set of a connection for a usual call: of the set's owner, outside of a poll cycle. `None`: [`served`]
/// decides.
#[inline(always)]
pub(crate) fn usual(entry: &'static Entry) -> Option<SetGuard> {
    match entry.is(Kind::Served) {
        true => Set::of(entry)?.take_as_owner(),
        false => None,
    }
}

/// Takes the set of a connection whose call can be served. Fails with the reason if the call passes through.
pub(crate) fn served(entry: &'static Entry, fd: i32) -> Result<SetGuard, Why> {
    let set = Set::of(entry).ok_or(Why::Kernel)?;
    let mut guard = set.take().ok_or(Why::InHandler)?;
    if entry.kind() == Kind::Served && !set.is_owner() && guard.mode == Mode::Serving {
        set_end::on_foreign_thread(&mut guard, fd);
    }
    Ok(guard)
}

/// Returns what `with` returns for a connection whose call can be served. `None`: the call passes through.
pub(crate) fn with<T>(
    entry: &'static Entry,
    fd: i32,
    with: impl FnOnce(&mut SetGuard, Conn) -> T,
) -> Option<T> {
    let mut guard = served(entry, fd).ok()?;
    let connection = guard.connection(fd)?;
    Some(with(&mut guard, connection))
}
