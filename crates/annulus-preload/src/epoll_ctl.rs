//! `epoll_ctl`: adds members to a set, changes them and removes them.

use crate::batching::Batching;
use crate::classify;
use crate::config;
use crate::connection::Conn;
use crate::counters::{self, Call, Why};
use crate::ctl_request::CtlRequest;
use crate::duplicates;
use crate::early_members;
use crate::epoll_set::{Mode, Set, SetGuard};
use crate::errno::{self, CallResult};
use crate::events::{EDGE_TRIGGERED, IN, KNOWN};
use crate::fd_budget;
use crate::fd_table::{self, Entry, Kind, never_served};
use crate::hand_back;
use crate::listeners;
use crate::log;
use crate::member::Member;
use crate::outbound::Outbound;
use crate::poll_cycle;
use crate::publish;
use crate::removal;
use crate::reserved_fds::{self, Inode};
use crate::ring_policy;
use crate::set_end;
use crate::set_members::SharedMember;
use crate::sockopts;
use crate::switch_position;
use crate::sys;
use crate::unread;
use crate::young_set::WAITS_BEFORE_RING;

/// A flag that `EPOLL_CTL_MOD` rejects.
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

/// Performs `epoll_ctl`. `None`: passes through to the kernel's set.
pub(crate) fn control(
    (number, set_fd): (&'static Entry, i32),
    fd: i32,
    request: CtlRequest,
) -> Option<CallResult> {
    let set = Set::of(number)?;
    let entry = fd_table::entry(fd)?;
    if let Kind::Set = entry.kind() {
        // A set nested in another set: the outer one would not see connections that the inner one serves.
        on_outer_poll(entry);
        return None;
    }
    if entry.kind() == Kind::Closing {
        Set::finish_deferred_close(entry);
    }
    if let Some(result) = early_members::control_young(set, entry, (set_fd, fd), request) {
        return Some(result);
    }
    let Some(mut guard) = set.take() else {
        counters::passed(Why::InHandler);
        return None;
    };
    early_members::mature(set, &mut guard);
    guard.has_members |= request.operation == libc::EPOLL_CTL_ADD;
    if matches!(entry.kind(), Kind::Free | Kind::Stream) {
        return control_unserved(set, &mut guard, entry, fd, request);
    }
    if entry.is_connection() && !std::ptr::eq(entry.set(), guard.set_ptr()) {
        drop(guard);
        return control_elsewhere(set, entry, fd, request);
    }
    forget_reported(&mut guard, fd, request);
    match entry.kind() {
        Kind::Closing => Some(Err(libc::EBADF)),
        Kind::Served => served(&mut guard, fd, request),
        Kind::HandedBack if request.operation == libc::EPOLL_CTL_ADD => {
            match removal::undo(&mut guard, entry, fd, request.events) {
                true => served(&mut guard, fd, request),
                false => handed_back(&mut guard, fd, request),
            }
        }
        Kind::HandedBack => handed_back(&mut guard, fd, request),
        Kind::Listener => listeners::control(&mut guard, fd, request),
        _ => None,
    }
}

/// Handles a call for a connection that no ring serves.
fn control_unserved(
    set: &'static Set,
    guard: &mut SetGuard,
    entry: &'static Entry,
    fd: i32,
    request: CtlRequest,
) -> Option<CallResult> {
    forget_reported(guard, fd, request);
    let is_elsewhere = early_members::note_other_set(set, entry, request);
    let mut result = None;
    if request.operation == libc::EPOLL_CTL_ADD {
        // The kernel's set has a member that was added while it could not be served. The program may not add it again.
        let may_be_member = entry.may_be_kernel_member() && std::ptr::eq(entry.set(), set);
        if may_be_member {
            let result = request.make(guard.fd, fd);
            if result.is_err() {
                return Some(result);
            }
            let _ = sys::control(guard.fd, libc::EPOLL_CTL_DEL, fd, 0, 0);
        }
        result = add(set, guard, entry, fd, request);
    } else {
        early_members::change(guard, fd, request);
    }
    early_members::note_set(set, entry, fd, request.operation, is_elsewhere);
    result
}

/// Forgets which events of a member were reported, as the call makes the kernel report all that hold.
fn forget_reported(guard: &mut SetGuard, fd: i32, request: CtlRequest) {
    match request.operation {
        libc::EPOLL_CTL_DEL => guard.forget_reported_fd(fd),
        _ => guard.forget_reported(fd, request.data),
    }
}

/// Makes a set pass through because its own descriptor is polled, and the poller must see its events. Returns whether
/// the set would report an event that the kernel does not know of.
pub(crate) fn on_outer_poll(number: &'static Entry) -> bool {
    let Some(set) = Set::of(number) else {
        return false;
    };
    let Some(mut guard) = set.take() else {
        return false;
    };
    early_members::mature(set, &mut guard);
    set_end::pass_through_set(&mut guard, Why::PolledOtherwise);
    guard.has_ready() || guard.has_ready_shared_member()
}

fn add(
    set: &'static Set,
    guard: &mut SetGuard,
    entry: &'static Entry,
    fd: i32,
    request: CtlRequest,
) -> Option<CallResult> {
    let pass = |why: Why| {
        count_pass(why);
        None
    };
    if guard.mode == Mode::Passing {
        return None;
    }
    if let Err(why) = classify::can_be_served(entry, fd) {
        if entry.kind() == Kind::Listener {
            return listeners::control(guard, fd, request);
        }
        return match why {
            Why::Blocking => early_members::add_blocking(set, guard, fd, request),
            why => pass(why),
        };
    }
    if request.events & !KNOWN != 0 {
        return pass(Why::UnknownFlags);
    }
    if guard.mode == Mode::Fresh {
        // Before the first wait on the set, its owner is unknown.
        let is_enough = early_members::are_enough(guard, 1);
        if !set.is_owner() || guard.waits < WAITS_BEFORE_RING || !is_enough {
            if !is_enough {
                count_pass(Why::FewConnections);
            }
            // The kernel's set has it until there is a ring.
            return Some(early_members::add(guard, fd, request));
        }
        start(set, guard);
        if guard.mode != Mode::Serving {
            return None;
        }
    }
    let interest = (request.events, request.data);
    let Some(connection) = begin(set, guard, entry, fd, interest) else {
        return pass(Why::OtherThread);
    };
    guard.notify(connection, 0);
    Some(Ok(0))
}

pub(crate) fn count_pass(why: Why) {
    counters::passed(why);
    if why != Why::NotAStream {
        log::log_first_pass(why);
    }
}

/// Serves a connection from now on. `None`: another thread may be reading it.
pub(crate) fn begin(
    set: &'static Set,
    guard: &mut SetGuard,
    entry: &'static Entry,
    fd: i32,
    (events, data): (u32, u64),
) -> Option<Conn> {
    set.name(entry, fd);
    if !entry.claim() {
        return None;
    }
    let connection = guard.own_connection(entry, fd);
    guard[connection].begin(events, data);
    guard[connection].is_narrow = sockopts::has_small_send_buffer(fd);
    guard.served += 1;
    guard.arm(connection);
    counters::served(Call::EpollCtl);
    Some(connection)
}

/// Creates the set's ring. The calling thread must be the one that waits on the set.
pub(crate) fn start(set: &'static Set, guard: &mut SetGuard) {
    if config::get().disabled || ring_policy::are_rings_forbidden() {
        return set_end::pass_through_set(guard, ring_policy::why_no_rings());
    }
    if fd_budget::is_short() || !fd_budget::allows_ring(guard.fd) {
        return set_end::pass_through_set(guard, Why::Descriptors);
    }
    if switch_position::is_released() {
        // From now on the process has a switch, as it would with a ring.
        publish::begin();
        set_end::pass_through_set(guard, Why::Released);
        return guard.released.mark();
    }
    match errno::without_cancel(poll_cycle::make) {
        Ok(context) => {
            let descriptors = context.ring.descriptors();
            for descriptor in descriptors {
                reserved_fds::remember(descriptor, Inode::Shared);
            }
            set.set_wake(descriptors[1]);
            guard.reserve_lists();
            guard.batching = Batching::new(config::get().batch_from_start);
            guard.ring = Some(context);
            guard.mode = Mode::Serving;
            fd_budget::on_ring();
            crate::flush_thread::begin_thread();
            listeners::watch_all(guard);
            early_members::serve_all(set, guard);
        }
        Err(why) => {
            set_end::pass_through_set(guard, Why::Refused);
            log::log_refused(&why);
        }
    }
}

fn served(guard: &mut SetGuard, fd: i32, request: CtlRequest) -> Option<CallResult> {
    let connection = guard.connection(fd)?;
    counters::served(Call::EpollCtl);
    let member = guard[connection].member != Member::Out;
    match request.operation {
        libc::EPOLL_CTL_ADD if member => Some(Err(libc::EEXIST)),
        libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL if !member => Some(Err(libc::ENOENT)),
        libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {
            if request.events & !KNOWN != 0 {
                if request.operation == libc::EPOLL_CTL_MOD && request.events & EXCLUSIVE != 0 {
                    return Some(Err(libc::EINVAL));
                }
                hand_back::hand_back(guard, fd, Why::UnknownFlags);
                guard.forget_reported_fd(fd);
                return handed_back(guard, fd, request);
            }
            (guard[connection].events, guard[connection].data) = (request.events, request.data);
            guard[connection].member.enable();
            let edge = request.events & EDGE_TRIGGERED != 0;
            // The kernel may have the last bytes of a dead connection, which no receive will take.
            let is_dead = guard[connection].outbound == Outbound::Dead;
            if edge && !is_dead {
                guard[connection].inbound.leave_direct();
            }
            if guard[connection].events & IN == 0 {
                unread::copy_out(guard, connection);
            }
            guard.arm(connection);
            if guard[connection].report() != 0 {
                guard.notify(connection, 0);
            }
            if guard[connection].ended {
                guard.to_poll.push(fd);
            }
            Some(Ok(0))
        }
        libc::EPOLL_CTL_DEL => {
            removal::remove(guard, connection);
            Some(Ok(0))
        }
        _ => Some(Err(libc::EINVAL)),
    }
}

/// Handles a call for a connection of another set: it is handed back, and both sets report its buffered bytes. Locks
/// one set at a time: two threads might lock two sets in opposite order.
fn control_elsewhere(
    set: &'static Set,
    entry: &'static Entry,
    fd: i32,
    request: CtlRequest,
) -> Option<CallResult> {
    let adds = request.operation == libc::EPOLL_CTL_ADD;
    if entry.kind() == Kind::Served && !adds {
        return Some(Err(libc::ENOENT));
    }
    let mut other_set = Set::of(entry).and_then(Set::take)?;
    hand_back::hand_back(&mut other_set, fd, Why::SeveralSets);
    if adds {
        count_pass(Why::SeveralSets);
        entry.set_kind(entry.kind(), never_served(entry.flags(), Why::SeveralSets));
    }
    let generation = duplicates::generation(&other_set, fd);
    drop(other_set);
    let mut guard = set.take()?;
    let has_fired = |member: &SharedMember| {
        member.is_named(fd) && member.generation == generation && member.has_fired()
    };
    let has_fired = guard.shared_members.iter().any(has_fired);
    let result = control_in_kernel(guard.fd, fd, request, has_fired);
    if result.is_ok() {
        guard.shared_members.retain(|member| !member.is_named(fd));
        if request.operation != libc::EPOLL_CTL_DEL {
            guard.shared_members.push(SharedMember {
                fd,
                generation,
                added_as: fd,
                events: request.events,
                data: request.data,
                reported: false,
                held_elsewhere: 0,
            });
        }
    }
    Some(result)
}

/// Handles a member that was handed back: the kernel's set knows it, and the library reports its buffered bytes.
fn handed_back(guard: &mut SetGuard, fd: i32, request: CtlRequest) -> Option<CallResult> {
    let connection = guard.connection(fd)?;
    let silent = guard[connection].member == Member::Disabled;
    let result = control_in_kernel(guard.fd, fd, request, silent);
    if result.is_ok() {
        if request.operation == libc::EPOLL_CTL_DEL {
            guard[connection].member = Member::Out;
            guard.unready(connection);
        } else {
            (guard[connection].events, guard[connection].data) = (request.events, request.data);
            guard[connection].member.enable();
            if guard[connection].held_events() != 0 {
                guard.notify(connection, 0);
            }
        }
    }
    Some(result)
}

/// Changes the kernel's set, which may not have a one-shot member that the library has reported (`has_fired`).
fn control_in_kernel(set: i32, fd: i32, request: CtlRequest, has_fired: bool) -> CallResult {
    if has_fired && request.operation == libc::EPOLL_CTL_ADD {
        return Err(libc::EEXIST);
    }
    match request.make(set, fd) {
        Err(libc::ENOENT) if has_fired && request.operation == libc::EPOLL_CTL_DEL => Ok(0),
        Err(libc::ENOENT) if has_fired => {
            sys::control(set, libc::EPOLL_CTL_ADD, fd, request.events, request.data)
        }
        result => result,
    }
}
