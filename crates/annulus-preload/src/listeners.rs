//! Listeners: the ring polls them, and the program accepts. A completed poll is re-armed in the next poll cycle
//! together with all other entries, so a level-triggered listener is reported as long as a connection waits in it, at
//! no extra call. Connections stay in the kernel until the program accepts them: processes share them, and they outlive
//! a process that ends, as without this library.

use crate::counters::{self, Call, Why};
use crate::ctl_request::CtlRequest;
use crate::epoll_set::{Mode, SetGuard};
use crate::errno::CallResult;
use crate::events::{ERR, HUP, IN, PRI, RDHUP};
use crate::fd_table;
use crate::set_members::{Interest, Listener};
use crate::sys;

/// Events that a ring reports as the kernel's set does. Edge-triggered events are missing, because a re-armed poll
/// would report one too many. So is `EPOLLEXCLUSIVE`, which prefers a waiting process to a busy one.
const RING_EVENTS: u32 = IN | ERR | HUP | RDHUP | PRI;

/// Adds, changes or removes a listener. `None`: passes through to the kernel's set.
pub(crate) fn control(guard: &mut SetGuard, fd: i32, request: CtlRequest) -> Option<CallResult> {
    let never_served = fd_table::entry(fd).is_none_or(|entry| entry.why_never_served().is_some());
    let position = (guard.listeners.iter()).position(|listener| listener.fd == fd);
    if guard.mode == Mode::Passing || (never_served && position.is_none()) {
        return None;
    }
    let is_plain = request.events & !RING_EVENTS == 0;
    let by_ring = guard.mode == Mode::Serving;
    let Some(nth) = position else {
        return add(guard, fd, request, is_plain);
    };
    if !by_ring {
        let result = request.make(guard.fd, fd);
        if result.is_ok() {
            if request.operation == libc::EPOLL_CTL_MOD && is_plain {
                (guard.listeners[nth].events, guard.listeners[nth].data) =
                    (request.events, request.data);
            } else {
                guard.listeners.remove(nth);
            }
        }
        return Some(result);
    }
    match request.operation {
        libc::EPOLL_CTL_ADD => Some(Err(libc::EEXIST)),
        libc::EPOLL_CTL_MOD if is_plain => {
            stop(guard, nth);
            let listener = &mut guard.listeners[nth];
            (listener.events, listener.data, listener.ready_events) =
                (request.events, request.data, 0);
            Some(Ok(0))
        }
        libc::EPOLL_CTL_MOD => {
            remove(guard, nth);
            Some(sys::control(
                guard.fd,
                libc::EPOLL_CTL_ADD,
                fd,
                request.events,
                request.data,
            ))
        }
        libc::EPOLL_CTL_DEL => {
            remove(guard, nth);
            if guard.is_owner() {
                // The port becomes free once the last reference to the listener is released.
                guard.submit_cancels();
            }
            Some(Ok(0))
        }
        _ => Some(Err(libc::EINVAL)),
    }
}

/// Adds a listener that is not in the set yet.
fn add(guard: &mut SetGuard, fd: i32, request: CtlRequest, is_plain: bool) -> Option<CallResult> {
    if request.operation != libc::EPOLL_CTL_ADD || !is_plain {
        if request.operation == libc::EPOLL_CTL_ADD {
            counters::passed(Why::UnknownFlags);
        }
        return None;
    }
    let CtlRequest { events, data, .. } = request;
    let listener = Listener::new(Interest { fd, events, data }, guard.round);
    if guard.mode != Mode::Serving {
        // The kernel's set keeps it until there is a ring.
        let result = request.make(guard.fd, fd);
        if result.is_ok() {
            guard.listeners.push(listener);
        }
        return Some(result);
    }
    guard.listeners.push(listener);
    counters::served(Call::EpollCtl);
    Some(Ok(0))
}

/// Takes over a listener that is in the kernel's set, if a ring can poll it.
pub(crate) fn adopt_member(guard: &mut SetGuard, member: Interest) {
    let may_be_served =
        fd_table::entry(member.fd).is_some_and(|entry| entry.why_never_served().is_none());
    if may_be_served && member.events & !RING_EVENTS == 0 {
        let listener = Listener::new(member, guard.round);
        guard.listeners.push(listener);
    }
}

/// Moves all listeners from the kernel's set to the ring.
pub(crate) fn watch_all(guard: &mut SetGuard) {
    let fd = guard.fd;
    // A listener that the program has closed since is not a member any more.
    guard
        .listeners
        .retain(|listener| sys::control(fd, libc::EPOLL_CTL_DEL, listener.fd, 0, 0).is_ok());
}

/// Moves all listeners from the ring to the kernel's set.
pub(crate) fn hand_back_all(guard: &mut SetGuard) {
    for listener in std::mem::take(&mut guard.listeners) {
        let Listener {
            fd, events, data, ..
        } = listener;
        let _ = sys::control(guard.fd, libc::EPOLL_CTL_ADD, fd, events, data);
    }
}

/// Runs when the program closes or duplicates a listener.
pub(crate) fn on_close(fd: i32, duplicated: bool) {
    // The sets of a listener are not recorded; there are few sets and few listeners to search.
    crate::epoll_set_list::for_each(|guard| {
        let position = (guard.listeners.iter()).position(|listener| listener.fd == fd);
        let Some(nth) = position else { return };
        let Listener { events, data, .. } = guard.listeners[nth];
        if guard.mode == Mode::Serving {
            remove(guard, nth);
            if guard.is_owner() {
                // It listens until the last reference is released.
                guard.submit_cancels();
            }
            if duplicated {
                let _ = sys::control(guard.fd, libc::EPOLL_CTL_ADD, fd, events, data);
            }
        } else {
            guard.listeners.remove(nth);
        }
    });
    await_owners();
}

/// Waits until the rings of other threads have released a listener: until then its port is taken. A thread that is busy
/// elsewhere is not waited for.
fn await_owners() {
    for _ in 0..OWNER_CHECKS_MAX {
        let mut is_pending = false;
        // Wakes an owner that sleeps, which submits its cancellations before it sleeps again.
        crate::epoll_set_list::for_each(|guard| {
            is_pending |= !guard.is_owner() && !guard.cancels.is_empty();
        });
        if !is_pending {
            return;
        }
        sys::pause_us(50);
    }
}

/// The number of checks whether another thread has cancelled its poll of a listener; 2 ms.
const OWNER_CHECKS_MAX: u32 = 40;

fn stop(guard: &mut SetGuard, nth: usize) {
    let listener = guard.listeners[nth];
    if listener.polled {
        guard
            .cancels
            .push(crate::poll_cycle::listener_token(&listener));
        let listener = &mut guard.listeners[nth];
        listener.polled = false;
        listener.generation = listener.generation.wrapping_add(1);
    }
}

fn remove(guard: &mut SetGuard, nth: usize) {
    stop(guard, nth);
    guard.listeners.remove(nth);
}
