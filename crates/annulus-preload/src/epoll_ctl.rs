//! `epoll_ctl`: adds members to a set, changes them and removes them.

use crate::batching::Batching;
use crate::byte_queue::TakenBytes;
use crate::classify;
use crate::config;
use crate::connection::{self as flag, Conn, KNOWN};
use crate::counters::{self, Call, Why};
use crate::descriptor;
use crate::epoll_set::{Mode, Set, SetGuard, SharedMember, WAITS_BEFORE_RING};
use crate::errno::{self, CallResult};
use crate::fd_limit;
use crate::fd_table::{self, Entry, Kind, never_served};
use crate::hand_back;
use crate::inherited_set;
use crate::listeners;
use crate::log;
use crate::poll_cycle;
use crate::reserved_fds::{self, Inode};
use crate::ring_policy;
use crate::sockopts;
use crate::stops;
use crate::switch;
use crate::sys;

/// A flag that `EPOLL_CTL_MOD` rejects.
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

/// The arguments of `epoll_ctl`. A removal has no events and no data.
#[derive(Clone, Copy)]
pub(crate) struct CtlRequest {
    pub(crate) operation: i32,
    pub(crate) events: u32,
    pub(crate) data: u64,
}

impl CtlRequest {
    /// Makes the call for `fd` on the kernel's set.
    pub(crate) fn make(self, set: i32, fd: i32) -> CallResult {
        sys::control(set, self.operation, fd, self.events, self.data)
    }
}

/// Performs `epoll_ctl`. `None`: passes through to the kernel's set.
pub(crate) fn control(number: &'static Entry, fd: i32, request: CtlRequest) -> Option<CallResult> {
    let set = Set::of(number)?;
    let entry = fd_table::entry(fd)?;
    if let Kind::Set = entry.kind() {
        // A set nested in another set: the outer one would not see connections that the inner one serves.
        on_outer_poll(entry);
        return None;
    }
    if entry.kind() == Kind::Closing {
        descriptor::finish_deferred_close(entry);
    }
    let Some(mut guard) = set.take() else {
        counters::passed(Why::InHandler);
        return None;
    };
    guard.has_members |= request.operation == libc::EPOLL_CTL_ADD;
    if matches!(entry.kind(), Kind::Free | Kind::Stream) {
        return control_unserved(set, &mut guard, entry, fd, request);
    }
    let moves = request.operation == libc::EPOLL_CTL_ADD
        && matches!(entry.kind(), Kind::Served | Kind::HandedBack)
        && hand_back::may_move(entry, set);
    if moves {
        let (relocked, buffered) = reclaim(set, guard, entry, fd)?;
        guard = relocked;
        let mut result = add(set, &mut guard, entry, fd, request, buffered.as_slice());
        if entry.kind() != Kind::Served {
            // Not served here: the buffered bytes stay readable, and are reported.
            hand_back::keep_buffered(&mut guard, entry, fd, buffered.as_slice());
            result = match entry.kind() {
                Kind::HandedBack => handed_back(&mut guard, fd, request),
                _ => {
                    entry.set_epoll_set(std::ptr::from_ref(set).cast_mut());
                    result
                }
            };
        }
        return result;
    }
    if !std::ptr::eq(entry.set(), guard.set_ptr) {
        match entry.kind() {
            Kind::Served => return control_in_second_set(set, guard, entry, fd, request),
            Kind::HandedBack => return control_shared(set, guard, entry, fd, request),
            _ => {}
        }
    }
    forget_reported(&mut guard, fd, request);
    match entry.kind() {
        Kind::Closing => Some(Err(libc::EBADF)),
        Kind::Served => served(&mut guard, fd, request),
        Kind::HandedBack => handed_back(&mut guard, fd, request),
        Kind::Listener => listeners::control(&mut guard, fd, request),
        _ => None,
    }
}

/// Handles a call for a connection that no ring serves. The kernel's set has it, or may get it: the entry of a stream
/// names that set. A ring must not take the bytes of a connection that another set reports.
fn control_unserved(
    set: &'static Set,
    guard: &mut SetGuard,
    entry: &'static Entry,
    fd: i32,
    request: CtlRequest,
) -> Option<CallResult> {
    forget_reported(guard, fd, request);
    let own = std::ptr::from_ref(set).cast_mut();
    let is_stream = |entry: &Entry| entry.kind() == Kind::Stream;
    let is_elsewhere =
        is_stream(entry) && Set::of(entry).is_some_and(|other| !std::ptr::eq(other, set));
    if request.operation != libc::EPOLL_CTL_ADD {
        change_early_member(guard, fd, request);
        if request.operation == libc::EPOLL_CTL_DEL && is_stream(entry) && !is_elsewhere {
            entry.set_epoll_set(std::ptr::null_mut());
        }
        return None;
    }
    if is_elsewhere {
        entry.set_kind(Kind::Stream, never_served(entry.flags(), Why::SeveralSets));
    }
    // The kernel's set has a member that was added while it could not be served. The program may not add it again.
    let may_be_member = is_stream(entry) && std::ptr::eq(entry.set(), own);
    if may_be_member {
        let result = request.make(guard.fd, fd);
        if result.is_err() {
            return Some(result);
        }
        let _ = sys::control(guard.fd, libc::EPOLL_CTL_DEL, fd, 0, 0);
    }
    let result = add(set, guard, entry, fd, request, &[]);
    if is_stream(entry) {
        entry.set_epoll_set(own);
        hand_back::note_member(fd);
    }
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
    let Some(mut guard) = Set::of(number).and_then(Set::take) else {
        return false;
    };
    hand_back::pass_through_set(&mut guard, Why::PolledOtherwise);
    guard.has_ready() || guard.has_ready_shared_member()
}

fn add(
    set: &'static Set,
    guard: &mut SetGuard,
    entry: &'static Entry,
    fd: i32,
    request: CtlRequest,
    buffered: &[u8],
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
            Why::Blocking => add_blocking(set, guard, fd, request),
            why => pass(why),
        };
    }
    if request.events & !KNOWN != 0 {
        return pass(Why::UnknownFlags);
    }
    if guard.mode == Mode::Fresh {
        // Before the first wait on the set, its owner is unknown.
        if !set.is_owner() || guard.waits < WAITS_BEFORE_RING {
            if !buffered.is_empty() {
                return pass(Why::NotWaitedFor);
            }
            // The kernel's set has it until there is a ring.
            let result = add_early_member(guard, fd, request);
            guard.needs_ring |= result.is_ok();
            return Some(result);
        }
        start(set, guard);
        if guard.mode != Mode::Serving {
            return None;
        }
    }
    begin(
        set,
        guard,
        entry,
        fd,
        (request.events, request.data),
        buffered,
    );
    Some(Ok(0))
}

fn count_pass(why: Why) {
    counters::passed(why);
    if why != Why::NotAStream {
        log::log_first_pass(why);
    }
}

/// Adds a member to the kernel's set, from which a ring may take it later.
fn add_early_member(guard: &mut SetGuard, fd: i32, request: CtlRequest) -> CallResult {
    let CtlRequest {
        operation,
        events,
        data,
    } = request;
    let result = sys::control(guard.fd, operation, fd, events, data);
    if result.is_ok() {
        // The number may have belonged to another member, which the program has closed.
        guard.early_members.retain(|member| member.0 != fd);
        guard.early_members.push((fd, events, data));
    }
    result
}

/// Adds a blocking connection, which is served if it becomes non-blocking before the next wait: Boost.Asio does this at
/// the first operation of a connection. `None`: passes through to the kernel's set.
fn add_blocking(
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
    Some(add_early_member(guard, fd, request))
}

/// Serves a member that has become non-blocking, if no wait has reported it yet.
pub(crate) fn on_nonblocking(entry: &'static Entry, fd: i32) {
    let Some(set) = Set::of(entry).filter(|set| set.owner() == 0 || set.is_owner()) else {
        return;
    };
    let Some(mut guard) = set.take() else {
        return;
    };
    let is_early = guard.early_members.iter().any(|member| member.0 == fd);
    if is_early && guard.mode == Mode::Fresh {
        guard.needs_ring = true;
        if set.is_owner() && guard.waits >= WAITS_BEFORE_RING {
            start(set, &mut guard);
        }
    } else if is_early && guard.mode == Mode::Serving {
        let (members, others) = std::mem::take(&mut guard.early_members)
            .into_iter()
            .partition(|member| member.0 == fd);
        guard.early_members = others;
        serve_early_members(set, &mut guard, members);
    }
}

/// Runs before a wait that may report members of the kernel's set: they stay there.
#[cold]
pub(crate) fn pass_early_members(guard: &mut SetGuard) {
    for _ in std::mem::take(&mut guard.early_members) {
        count_pass(Why::Blocking);
    }
}

/// Updates a member that was added before the set had a ring.
fn change_early_member(guard: &mut SetGuard, fd: i32, request: CtlRequest) {
    let Some(nth) = guard.early_members.iter().position(|member| member.0 == fd) else {
        return;
    };
    if request.operation == libc::EPOLL_CTL_MOD && request.events & !KNOWN == 0 {
        guard.early_members[nth] = (fd, request.events, request.data);
    } else {
        guard.early_members.swap_remove(nth);
    }
}

/// Moves members that were added before the ring existed from the kernel's set to the ring. Only the kernel knows which
/// one-shot members it has reported.
fn serve_early_members(set: &'static Set, guard: &mut SetGuard, members: Vec<(i32, u32, u64)>) {
    let in_kernel = match members.iter().any(|member| member.1 & flag::ONESHOT != 0) {
        true => inherited_set::kernel_members(guard.fd),
        false => Vec::new(),
    };
    for (fd, events, data) in members {
        let known = in_kernel.iter().find(|member| member.fd == fd);
        let Some(entry) = fd_table::entry(fd) else {
            continue;
        };
        if events & flag::ONESHOT != 0 && known.is_none() {
            count_pass(Why::Kernel);
            continue;
        }
        // The kernel clears all events of a member that it has reported once.
        let mode = flag::EDGE_TRIGGERED | flag::ONESHOT;
        let has_fired = known.is_some_and(|member| member.events & !mode == 0);
        // A member that has been closed or shared since is not served.
        match classify::can_be_served(entry, fd) {
            Ok(()) => {
                if sys::control(guard.fd, libc::EPOLL_CTL_DEL, fd, 0, 0).is_ok() {
                    begin(set, guard, entry, fd, (events, data), &[]);
                    if has_fired && let Some(mut connection) = guard.connection(fd) {
                        guard.unready(fd, connection);
                        connection.mark(flag::DISABLED);
                    }
                }
            }
            Err(why) => count_pass(why),
        }
    }
}

/// Serves a connection from now on; `buffered` was received before.
fn begin(
    set: &'static Set,
    guard: &mut SetGuard,
    entry: &'static Entry,
    fd: i32,
    (events, data): (u32, u64),
    buffered: &[u8],
) {
    entry.set_epoll_set(std::ptr::from_ref(set).cast_mut());
    entry.set_kind(Kind::Served, entry.flags());
    if let Some(mut connection) = guard.connection(fd) {
        connection.begin(events, data);
        connection.set_narrow(sockopts::has_small_send_buffer(fd));
        connection.copied_out.append(buffered);
        hand_back::count_served(guard, fd);
        guard.arm(fd, connection);
        guard.notify(fd, connection, 0);
        counters::served(Call::EpollCtl);
    }
}

/// Creates the set's ring. The calling thread must be the one that waits on the set.
pub(crate) fn start(set: &'static Set, guard: &mut SetGuard) {
    if config::get().disabled || !ring_policy::may_make_rings() {
        counters::passed(Why::Filtered);
        stops::on_set(Why::Filtered, 0);
        log::log_refused(ring_policy::why_no_rings());
        guard.mode = Mode::Passing;
        return;
    }
    if fd_limit::is_short() || !fd_limit::allows_ring(guard.fd) {
        counters::passed(Why::Descriptors);
        stops::on_set(Why::Descriptors, 0);
        guard.mode = Mode::Passing;
        return;
    }
    if switch::keeps_passing(guard) {
        return;
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
            fd_limit::on_ring();
            crate::flush_thread::begin_thread();
            listeners::watch_all(guard);
            let members = std::mem::take(&mut guard.early_members);
            serve_early_members(set, guard, members);
        }
        Err(why) => {
            guard.mode = Mode::Passing;
            counters::passed(Why::Refused);
            stops::on_set(Why::Refused, 0);
            log::log_refused(&why);
        }
    }
}

fn served(guard: &mut SetGuard, fd: i32, request: CtlRequest) -> Option<CallResult> {
    let mut connection = guard.connection(fd)?;
    counters::served(Call::EpollCtl);
    let member = connection.is(flag::MEMBER);
    match request.operation {
        libc::EPOLL_CTL_ADD if member => Some(Err(libc::EEXIST)),
        libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL if !member => Some(Err(libc::ENOENT)),
        libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {
            if request.events & !KNOWN != 0 {
                if request.operation == libc::EPOLL_CTL_MOD && request.events & EXCLUSIVE != 0 {
                    return Some(Err(libc::EINVAL));
                }
                return Some(move_to_kernel_set(guard, fd, connection, request));
            }
            (connection.events, connection.data) = (request.events, request.data);
            connection.mark(flag::MEMBER);
            connection.clear(flag::DISABLED);
            let edge = request.events & flag::EDGE_TRIGGERED != 0;
            // The kernel may have the last bytes of a dead connection, which no receive will take.
            if connection.is(flag::BULK) && edge && !connection.is(flag::DEAD) {
                connection.clear(flag::BULK | flag::READABLE);
            }
            if connection.events & flag::IN == 0 {
                crate::receive::copy_out(guard, connection);
            }
            guard.arm(fd, connection);
            if connection.report() != 0 {
                guard.notify(fd, connection, 0);
            }
            if connection.is(flag::ENDED) {
                guard.to_poll.push(fd);
            }
            Some(Ok(0))
        }
        libc::EPOLL_CTL_DEL => {
            hand_back::remove(guard, fd, connection);
            Some(Ok(0))
        }
        _ => Some(Err(libc::EINVAL)),
    }
}

/// Moves a served connection to the kernel's set, for flags that only the kernel supports, if the kernel accepts them.
fn move_to_kernel_set(
    guard: &mut SetGuard,
    fd: i32,
    mut connection: Conn,
    request: CtlRequest,
) -> CallResult {
    let ctl = |operation| sys::control(guard.fd, operation, fd, request.events, request.data);
    // The kernel's set has no member with that number yet.
    ctl(libc::EPOLL_CTL_ADD)?;
    // The hand-back must not add it there as well.
    connection.clear(flag::MEMBER);
    hand_back::hand_back(guard, fd, Why::UnknownFlags);
    if let Some(mut connection) = guard.connection(fd) {
        (connection.events, connection.data) = (request.events, request.data);
        connection.mark(flag::MEMBER);
        connection.clear(flag::DISABLED);
        if connection.buffered() > 0 || connection.error != 0 {
            guard.notify(fd, connection, 0);
        }
    }
    Ok(0)
}

/// Takes a connection that was removed from its set, with its buffered bytes. Locks one set at a time: two threads
/// might lock two sets in opposite order.
fn reclaim(
    set: &'static Set,
    mut guard: SetGuard,
    entry: &'static Entry,
    fd: i32,
) -> Option<(SetGuard, TakenBytes)> {
    if std::ptr::eq(entry.set(), guard.set_ptr) {
        let buffered = hand_back::reclaim(&mut guard, fd);
        return Some((guard, buffered));
    }
    drop(guard);
    let other_set = Set::of(entry).and_then(Set::take);
    let buffered = other_set.map_or(TakenBytes::none(), |mut other_set| {
        hand_back::reclaim(&mut other_set, fd)
    });
    Some((set.take()?, buffered))
}

/// Handles a call on a second set for a connection that another set serves. Locks one set at a time, like `reclaim`.
fn control_in_second_set(
    set: &'static Set,
    guard: SetGuard,
    entry: &'static Entry,
    fd: i32,
    request: CtlRequest,
) -> Option<CallResult> {
    if request.operation != libc::EPOLL_CTL_ADD {
        return Some(Err(libc::ENOENT));
    }
    drop(guard);
    let mut other_set = Set::of(entry).and_then(Set::take)?;
    hand_back::hand_back(&mut other_set, fd, Why::SeveralSets);
    drop(other_set);
    control_shared(set, set.take()?, entry, fd, request)
}

/// Handles a call on a second set for a connection whose buffered bytes another set has: both report them.
fn control_shared(
    set: &'static Set,
    guard: SetGuard,
    entry: &'static Entry,
    fd: i32,
    request: CtlRequest,
) -> Option<CallResult> {
    drop(guard);
    let other_set = Set::of(entry).and_then(Set::take)?;
    let generation = hand_back::generation(&other_set, fd);
    drop(other_set);
    let mut guard = set.take()?;
    let has_fired = |member: &SharedMember| member.is_named(fd) && member.has_fired();
    let ctl = |operation| sys::control(guard.fd, operation, fd, request.events, request.data);
    // The kernel's set does not have a one-shot member that was reported here.
    let result = match (
        request.operation,
        guard.shared_members.iter().any(has_fired),
    ) {
        (libc::EPOLL_CTL_ADD, true) => Err(libc::EEXIST),
        (libc::EPOLL_CTL_MOD, true) => ctl(libc::EPOLL_CTL_ADD),
        (libc::EPOLL_CTL_DEL, true) => Ok(0),
        (operation, _) => ctl(operation),
    };
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
    let mut connection = guard.connection(fd)?;
    let silent = connection.is(flag::DISABLED) && connection.is(flag::MEMBER);
    let ctl = |operation| sys::control(guard.fd, operation, fd, request.events, request.data);
    let result = match request.operation {
        libc::EPOLL_CTL_ADD if silent => Err(libc::EEXIST),
        // It may not have been added to the kernel's set yet.
        operation => match ctl(operation) {
            Err(libc::ENOENT) if silent && operation == libc::EPOLL_CTL_DEL => Ok(0),
            Err(libc::ENOENT) if silent => ctl(libc::EPOLL_CTL_ADD),
            result => result,
        },
    };
    if result.is_ok() {
        connection.clear(flag::DISABLED);
        if request.operation == libc::EPOLL_CTL_DEL {
            connection.clear(flag::MEMBER);
            guard.unready(fd, connection);
        } else {
            (connection.events, connection.data) = (request.events, request.data);
            connection.mark(flag::MEMBER);
            if connection.buffered() > 0 || connection.error != 0 {
                guard.notify(fd, connection, 0);
            }
        }
    }
    Some(result)
}
