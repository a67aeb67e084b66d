//! Listeners: the ring polls them, and the program accepts. A poll that has been answered is asked again in the
//! next turn, together with all else; so a level-triggered listener is reported as long as somebody waits in it, and
//! costs no call. Connections stay with the kernel until the program takes them: they are shared among processes,
//! and outlive one that ends, as without this library.

use crate::counters::{self, Call, Why};
use crate::epoll_ctl::Asked;
use crate::epoll_set::{Held, Listener, Mode};
use crate::errno::Answer;
use crate::fd_table::{self, LEFT_ALONE};
use crate::inherited_set::Member;
use crate::sys;

/// What the ring can do as the kernel's set does it. Not edges, of which a poll asked again would show one too many;
/// and not `EPOLLEXCLUSIVE`, which wakes a process that waits rather than one that is busy.
const KNOWN: u32 =
    (libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLRDHUP) as u32;

/// The program adds, changes or removes a listener. `None`: the kernel's set answers.
pub(crate) fn control(held: &mut Held, fd: i32, asked: Asked) -> Option<Answer> {
    let left_alone = fd_table::entry(fd).is_none_or(|entry| entry.flags() & LEFT_ALONE != 0);
    let known = (held.listeners.iter()).position(|listener| listener.fd == fd);
    if held.mode == Mode::Passing || (left_alone && known.is_none()) {
        return None;
    }
    let plain = asked.events & !KNOWN == 0;
    let by_ring = held.mode == Mode::Serving;
    let Some(nth) = known else {
        return add(held, fd, asked, plain);
    };
    if !by_ring {
        let answer = sys::control(held.fd, asked.operation, fd, asked.events, asked.data);
        if answer.is_ok() {
            if asked.operation == libc::EPOLL_CTL_MOD && plain {
                (held.listeners[nth].events, held.listeners[nth].data) = (asked.events, asked.data);
            } else {
                held.listeners.remove(nth);
            }
        }
        return Some(answer);
    }
    match asked.operation {
        libc::EPOLL_CTL_ADD => Some(Err(libc::EEXIST)),
        libc::EPOLL_CTL_MOD if plain => {
            stop(held, nth);
            let listener = &mut held.listeners[nth];
            (listener.events, listener.data, listener.found) = (asked.events, asked.data, 0);
            Some(Ok(0))
        }
        libc::EPOLL_CTL_MOD => {
            remove(held, nth);
            held.kernel_has = true;
            Some(sys::control(
                held.fd,
                libc::EPOLL_CTL_ADD,
                fd,
                asked.events,
                asked.data,
            ))
        }
        libc::EPOLL_CTL_DEL => {
            remove(held, nth);
            if held.is_mine() {
                // Its port is free as soon as nothing refers to it.
                held.submit_cancels();
            }
            Some(Ok(0))
        }
        _ => Some(Err(libc::EINVAL)),
    }
}

/// One that the set does not have.
fn add(held: &mut Held, fd: i32, asked: Asked, plain: bool) -> Option<Answer> {
    if asked.operation != libc::EPOLL_CTL_ADD || !plain {
        if asked.operation == libc::EPOLL_CTL_ADD {
            counters::passed(Why::UnknownFlags);
        }
        return None;
    }
    let listener = Listener {
        fd,
        events: asked.events,
        data: asked.data,
        polled: false,
        generation: held.round,
        found: 0,
    };
    if held.mode != Mode::Serving {
        // The kernel's set has it until there is a ring.
        let answer = sys::control(held.fd, asked.operation, fd, asked.events, asked.data);
        if answer.is_ok() {
            held.kernel_has = true;
            held.listeners.push(listener);
        }
        return Some(answer);
    }
    held.listeners.push(listener);
    counters::served(Call::EpollCtl);
    Some(Ok(0))
}

/// The kernel's set has had it for a while; the ring is to take it over, if it can.
pub(crate) fn was_there(held: &mut Held, member: &Member) {
    let &Member { fd, events, data } = member;
    let left_alone = fd_table::entry(fd).is_none_or(|entry| entry.flags() & LEFT_ALONE != 0);
    let generation = held.round;
    if !left_alone && events & !KNOWN == 0 {
        held.listeners.push(Listener {
            fd,
            events,
            data,
            polled: false,
            generation,
            found: 0,
        });
    }
}

/// The ring takes over those that the kernel's set has.
pub(crate) fn watch_all(held: &mut Held) {
    let fd = held.fd;
    // One that the program has closed since is not a member any more.
    held.listeners
        .retain(|listener| sys::control(fd, libc::EPOLL_CTL_DEL, listener.fd, 0, 0).is_ok());
}

/// The kernel's set takes over those that the ring polls.
pub(crate) fn hand_back_all(held: &mut Held) {
    for listener in std::mem::take(&mut held.listeners) {
        let Listener {
            fd, events, data, ..
        } = listener;
        if sys::control(held.fd, libc::EPOLL_CTL_ADD, fd, events, data).is_ok() {
            held.kernel_has = true;
        }
    }
}

/// The program closes a listener, or gives it a second number.
pub(crate) fn leaves(fd: i32, duplicated: bool) {
    // Which sets have it is not written anywhere: there are few sets, and few listeners.
    crate::epoll_set_list::for_each(|held| {
        let found = (held.listeners.iter()).position(|listener| listener.fd == fd);
        let Some(nth) = found else { return };
        let Listener { events, data, .. } = held.listeners[nth];
        if held.mode == Mode::Serving {
            remove(held, nth);
            if held.is_mine() {
                // It listens as long as anything refers to it.
                held.submit_cancels();
            }
            if duplicated {
                held.kernel_has = true;
                let _ = sys::control(held.fd, libc::EPOLL_CTL_ADD, fd, events, data);
            }
        } else {
            held.listeners.remove(nth);
        }
    });
}

fn stop(held: &mut Held, nth: usize) {
    let listener = held.listeners[nth];
    if listener.polled {
        held.cancels
            .push(crate::poll_cycle::listener_token(&listener));
        let listener = &mut held.listeners[nth];
        listener.polled = false;
        listener.generation = listener.generation.wrapping_add(1);
    }
}

fn remove(held: &mut Held, nth: usize) {
    stop(held, nth);
    held.listeners.remove(nth);
}

/// What the kernel has found at one.
pub(crate) fn found(listeners: &mut [Listener], fd: i32, generation: u32, res: i32) {
    let it = (listeners.iter_mut()).find(|listener| {
        listener.fd == fd && listener.generation & crate::connection::GENERATION_MAX == generation
    });
    if let Some(listener) = it {
        listener.polled = false;
        listener.found = u32::try_from(res).unwrap_or(0);
    }
}
