//! Members that were added before the set had a ring. The kernel's set has them until then.

use crate::classify;
use crate::config;
use crate::counters::Why;
use crate::ctl_request::CtlRequest;
use crate::epoll_ctl::{self, count_pass};
use crate::epoll_set::{Mode, Set, SetGuard};
use crate::errno::CallResult;
use crate::events::{EDGE_TRIGGERED, IN, KNOWN, ONESHOT, OUT, RDHUP};
use crate::fd_table::{self, Entry, Kind, NONBLOCK, never_served};
use crate::inherited_set;
use crate::listeners;
use crate::member::Member;
use crate::output;
use crate::set_members::Interest;
use crate::sys;
use crate::young_set::WAITS_BEFORE_RING;

/// Performs `epoll_ctl` on a young set, without its lock and without a record of the member. `None`: the set is not
/// young any more, or the call needs its lock.
pub(crate) fn control_young(
    set: &'static Set,
    entry: &'static Entry,
    (set_fd, fd): (i32, i32),
    request: CtlRequest,
) -> Option<CallResult> {
    let is_known = matches!(entry.kind(), Kind::Free | Kind::Stream | Kind::Listener);
    if !set.young.is_young() || !is_known {
        return None;
    }
    let is_elsewhere = note_other_set(set, entry, request);
    if request.operation == libc::EPOLL_CTL_ADD {
        match classify::may_be_served(entry, fd) {
            Err(Why::Blocking) => return None,
            Err(_) if entry.kind() == Kind::Listener => {}
            Err(why) => count_pass(why),
            Ok(()) if request.events & !KNOWN != 0 => count_pass(Why::UnknownFlags),
            Ok(()) if set.young.is_almost_grown() => return None,
            Ok(()) => {
                set.young.on_stream();
                if set.young.streams() < config::get().min_connections {
                    count_pass(Why::FewConnections);
                }
            }
        }
        set.young.on_member();
    }
    note_set(set, entry, fd, request.operation, is_elsewhere);
    match request.make(set_fd, fd) {
        // Meanwhile, the set's owner may have moved the member to a ring.
        Err(libc::ENOENT) if !set.young.is_young() => None,
        result => Some(result),
    }
}

/// Returns whether a stream is a member of another set. A ring must not take the bytes of a connection that another set
/// reports.
pub(crate) fn note_other_set(set: &Set, entry: &Entry, request: CtlRequest) -> bool {
    let is_elsewhere = entry.may_be_kernel_member()
        && Set::of(entry).is_some_and(|other| !std::ptr::eq(other, set));
    if is_elsewhere && request.operation == libc::EPOLL_CTL_ADD {
        entry.set_kind(Kind::Stream, never_served(entry.flags(), Why::SeveralSets));
    }
    is_elsewhere
}

/// Records the set of a stream that no ring serves: the kernel's set has it, or may get it.
pub(crate) fn note_set(set: &Set, entry: &Entry, fd: i32, operation: i32, is_elsewhere: bool) {
    if !entry.may_be_kernel_member() {
        return;
    }
    if operation == libc::EPOLL_CTL_ADD {
        set.name(entry, fd);
        set.young.on_named();
    } else if operation == libc::EPOLL_CTL_DEL && !is_elsewhere {
        entry.set_epoll_set(std::ptr::null_mut());
    }
}

/// Ends the set's youth: from now on its lists are used. They get the connections that were added until now.
pub(crate) fn mature(set: &Set, guard: &mut SetGuard) {
    if !set.young.end() {
        return;
    }
    guard.waits = set.young.waits();
    guard.has_members = set.young.has_members();
    if !guard.has_members {
        return;
    }
    for member in inherited_set::kernel_members(guard.fd) {
        if fd_table::is(member.fd, Kind::Listener) {
            listeners::adopt_member(guard, member);
        } else if member.events & !KNOWN == 0 && stream_of(guard.set_ptr(), member.fd).is_some() {
            guard.early_members.push(member);
        }
    }
}

/// Returns the stream with the number, if it is a member of the set that no ring serves.
fn stream_of(set: *const Set, fd: i32) -> Option<&'static Entry> {
    fd_table::entry(fd)
        .filter(|entry| entry.kind() == Kind::Stream && std::ptr::eq(entry.set(), set))
}

/// Forgets members that have been closed since, and those that must not be served or block, unless `stays` accepts
/// them. Returns the number of those that may be served.
fn retain(guard: &mut SetGuard, stays: impl Fn(&Entry) -> bool) -> usize {
    let (set, mut count) = (guard.set_ptr(), 0);
    guard.early_members.retain(|member| {
        let Some(entry) = stream_of(set, member.fd) else {
            return false;
        };
        let may_be_served = entry.flags() & NONBLOCK != 0 && entry.why_never_served().is_none();
        count += usize::from(may_be_served);
        may_be_served || stays(entry)
    });
    count
}

/// Returns whether the set has enough connections for a ring, together with `more` new ones.
pub(crate) fn are_enough(guard: &mut SetGuard, more: usize) -> bool {
    retain(guard, |_| true) + more >= config::get().min_connections as usize
}

/// Runs before a wait that may report members of the kernel's set: those that block, or must not be served, stay there.
/// Returns whether the others are enough for a ring.
pub(crate) fn pass_blocking(guard: &mut SetGuard) -> bool {
    let count = retain(guard, |entry| {
        count_pass(entry.why_never_served().unwrap_or(Why::Blocking));
        false
    });
    count >= config::get().min_connections as usize
}

/// Serves the members that were added before the ring existed.
pub(crate) fn serve_all(set: &'static Set, guard: &mut SetGuard) {
    let members = std::mem::take(&mut guard.early_members);
    serve(set, guard, members);
}

/// Adds a member to the kernel's set, from which a ring may take it later.
pub(crate) fn add(guard: &mut SetGuard, fd: i32, request: CtlRequest) -> CallResult {
    let CtlRequest {
        operation,
        events,
        data,
    } = request;
    let result = sys::control(guard.fd, operation, fd, events, data);
    if result.is_ok() {
        // The number may have belonged to another member, which the program has closed.
        guard.early_members.retain(|member| member.fd != fd);
        guard.early_members.push(Interest { fd, events, data });
    }
    result
}

/// Adds a blocking connection, which is served if it becomes non-blocking before the next wait: Boost.Asio does this at
/// the first operation of a connection. `None`: passes through to the kernel's set.
pub(crate) fn add_blocking(
    set: &'static Set,
    guard: &mut SetGuard,
    fd: i32,
    request: CtlRequest,
) -> Option<CallResult> {
    // Another thread may wait on the set at any time.
    let may_begin = set.owner() == 0 || set.is_owner();
    if !may_begin || request.events & !KNOWN != 0 {
        count_pass(Why::Blocking);
        return None;
    }
    Some(add(guard, fd, request))
}

/// Serves a member that has become non-blocking, if no wait has reported it yet.
pub(crate) fn on_nonblocking(entry: &'static Entry, fd: i32) {
    let Some(set) = Set::of(entry).filter(|set| set.owner() == 0 || set.is_owner()) else {
        return;
    };
    let Some(mut guard) = set.take() else {
        return;
    };
    let is_early = guard.early_members.iter().any(|member| member.fd == fd);
    if is_early && guard.mode == Mode::Fresh {
        let has_waited = set.is_owner() && guard.waits >= WAITS_BEFORE_RING;
        if has_waited && are_enough(&mut guard, 0) {
            epoll_ctl::start(set, &mut guard);
        }
    } else if is_early && guard.mode == Mode::Serving {
        let (members, others) = std::mem::take(&mut guard.early_members)
            .into_iter()
            .partition(|member| member.fd == fd);
        guard.early_members = others;
        serve(set, &mut guard, members);
    }
}

/// Updates a member that was added before the set had a ring.
pub(crate) fn change(guard: &mut SetGuard, fd: i32, request: CtlRequest) {
    let Some(nth) = guard
        .early_members
        .iter()
        .position(|member| member.fd == fd)
    else {
        return;
    };
    if request.operation == libc::EPOLL_CTL_MOD && request.events & !KNOWN == 0 {
        let CtlRequest { events, data, .. } = request;
        guard.early_members[nth] = Interest { fd, events, data };
    } else {
        guard.early_members.swap_remove(nth);
    }
}

/// A member of the kernel's set that a ring may take over.
struct Early {
    member: Interest,
    /// The events in the kernel's set, which clears those of a one-shot member that it has reported. `None`: unknown.
    in_kernel: Option<u32>,
    /// The conditions that hold.
    conditions: u32,
    /// An edge that the kernel's set has reported.
    is_reported: bool,
}

/// Moves members that were added before the ring existed from the kernel's set to the ring.
fn serve(set: &'static Set, guard: &mut SetGuard, members: Vec<Interest>) {
    for early in query(guard.fd, &members) {
        if let Err(why) = take_over(set, guard, &early) {
            count_pass(why);
        }
    }
}

/// Queries members. Only the kernel knows which one-shot members it has reported, and which edges it has not.
fn query(set_fd: i32, members: &[Interest]) -> Vec<Early> {
    let is_any = |flags: u32| members.iter().any(|member| member.events & flags != 0);
    let in_kernel = match is_any(EDGE_TRIGGERED | ONESHOT) {
        true => inherited_set::kernel_members(set_fd),
        false => Vec::new(),
    };
    let early = |&member: &Interest| {
        let known = in_kernel.binary_search_by_key(&member.fd, |member| member.fd);
        Early {
            member,
            in_kernel: known.ok().map(|nth| in_kernel[nth].events),
            // A condition that has ended since is not pending, so these come first.
            conditions: sys::poll_now(member.fd, IN | OUT | RDHUP),
            is_reported: member.events & EDGE_TRIGGERED != 0,
        }
    };
    let mut all: Vec<Early> = members.iter().map(early).collect();
    if is_any(EDGE_TRIGGERED) {
        let pending = inherited_set::pending_data(set_fd, &in_kernel);
        for early in &mut all {
            early.is_reported &= pending.binary_search(&early.member.data).is_err();
        }
    }
    all
}

/// Serves a member, or leaves it to the kernel's set and fails with the reason.
fn take_over(set: &'static Set, guard: &mut SetGuard, early: &Early) -> Result<(), Why> {
    let Interest { fd, events, data } = early.member;
    let entry = fd_table::entry(fd).ok_or(Why::Kernel)?;
    // The ring would report once more what the program has left unread.
    let is_unread = early.is_reported && early.conditions & !OUT != 0;
    if is_unread || events & ONESHOT != 0 && early.in_kernel.is_none() {
        return Err(Why::Kernel);
    }
    // A member that has been closed or shared since is not served.
    classify::can_be_served(entry, fd)?;
    if sys::control(guard.fd, libc::EPOLL_CTL_DEL, fd, 0, 0).is_err() {
        return Ok(());
    }
    let Some(connection) = epoll_ctl::begin(set, guard, entry, fd, (events, data)) else {
        let events = early.in_kernel.unwrap_or(events);
        let _ = sys::control(guard.fd, libc::EPOLL_CTL_ADD, fd, events, data);
        return Err(Why::OtherThread);
    };
    if early.conditions & OUT == 0 {
        output::on_full(guard, connection);
    }
    let mode = EDGE_TRIGGERED | ONESHOT;
    if early.in_kernel.is_some_and(|events| events & !mode == 0) {
        guard[connection].member = Member::Disabled;
    } else if !early.is_reported {
        guard.notify(connection, 0);
    }
    Ok(())
}
