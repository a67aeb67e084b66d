//! `epoll_ctl`: what enters and leaves a set.

use crate::classify;
use crate::config;
use crate::connection::{self as flag, KNOWN};
use crate::counts::{self, Call, Why};
use crate::errno::Answer;
use crate::leave;
use crate::listeners;
use crate::log;
use crate::set::{Held, Mode, Set};
use crate::sys;
use crate::table::{self, Entry, Kind};
use crate::turn;

/// What the set is asked for.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) operation: i32,
    pub(crate) events: u32,
    pub(crate) data: u64,
}

/// `None`: the kernel's set answers.
pub(crate) fn control(number: &'static Entry, fd: i32, asked: Asked) -> Option<Answer> {
    let set = Set::of(number)?;
    let entry = table::entry(fd)?;
    if let Kind::Set = entry.kind() {
        // A set in a set: what the inner one serves the outer one would not see.
        polled_otherwise(entry);
        return None;
    }
    let Some(mut held) = set.take() else {
        counts::passed(Why::InHandler);
        return None;
    };
    let answer = match entry.kind() {
        Kind::Closing => Some(Err(libc::EBADF)),
        Kind::Served => served(set, &mut held, entry, fd, asked),
        Kind::Replay => replayed(set, &mut held, entry, fd, asked),
        Kind::Listener => listeners::control(&mut held, fd, asked),
        _ if asked.operation == libc::EPOLL_CTL_ADD => add(set, &mut held, entry, fd, asked),
        _ => None,
    };
    if answer.is_none() && asked.operation == libc::EPOLL_CTL_ADD {
        held.kernel_has = true;
    }
    answer
}

/// Whoever polls the set itself must see what it serves: it is the kernel's from now on.
pub(crate) fn polled_otherwise(number: &'static Entry) {
    if let Some(mut held) = Set::of(number).and_then(Set::take) {
        leave::pass_whole(&mut held, Why::PolledOtherwise);
    }
}

fn add(
    set: &'static Set,
    held: &mut Held,
    entry: &'static Entry,
    fd: i32,
    asked: Asked,
) -> Option<Answer> {
    let pass = |why: Why| {
        counts::passed(why);
        None
    };
    if held.mode == Mode::Passing {
        return None;
    }
    if let Err(why) = classify::can_be_served(entry, fd) {
        if entry.kind() == Kind::Listener {
            return listeners::control(held, fd, asked);
        }
        return pass(why);
    }
    if asked.events & !KNOWN != 0 {
        return pass(Why::UnknownFlags);
    }
    if held.mode == Mode::Fresh {
        // Before its thread has waited on it once, nobody knows whose it is.
        if !set.is_mine() {
            held.wanted = true;
            return pass(Why::NotWaitedFor);
        }
        start(set, held);
        if held.mode != Mode::Serving {
            return None;
        }
    }
    entry.belong_to(std::ptr::from_ref(set).cast_mut());
    entry.become_kind(Kind::Served, entry.flags());
    let mut connection = held.connection(fd)?;
    connection.begin(asked.events, asked.data);
    leave::begins(held, fd);
    held.arm(fd, connection);
    held.notify(fd, connection, 0);
    counts::served(Call::EpollCtl);
    Some(Ok(0))
}

/// Makes the set's ring. The calling thread is the one that waits on it.
pub(crate) fn start(set: &'static Set, held: &mut Held) {
    if config::get().disabled || !crate::process::may_make_rings() {
        held.mode = Mode::Passing;
        return;
    }
    match turn::make() {
        Ok(machine) => {
            let descriptors = machine.ring.descriptors();
            for descriptor in descriptors {
                if let Some(entry) = table::entry(descriptor) {
                    entry.become_kind(Kind::Ours, 0);
                }
            }
            set.set_wake(descriptors[1]);
            crate::process::remember(descriptors);
            held.ring = Some(machine);
            held.mode = Mode::Serving;
            listeners::watch_all(held);
            counts::add(&counts::COUNTS.rings, 1);
        }
        Err(why) => {
            held.mode = Mode::Passing;
            counts::passed(Why::Refused);
            log::refused(&why);
        }
    }
}

fn served(
    set: &'static Set,
    held: &mut Held,
    entry: &'static Entry,
    fd: i32,
    asked: Asked,
) -> Option<Answer> {
    let own = Set::of(entry).is_some_and(|own| std::ptr::eq(own, set));
    if !own {
        return in_another(held, entry, fd, asked);
    }
    let mut connection = held.connection(fd)?;
    counts::served(Call::EpollCtl);
    let member = connection.is(flag::MEMBER);
    match asked.operation {
        libc::EPOLL_CTL_ADD if member => Some(Err(libc::EEXIST)),
        libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL if !member => Some(Err(libc::ENOENT)),
        libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {
            if asked.events & !KNOWN != 0 {
                if asked.operation == libc::EPOLL_CTL_ADD {
                    connection.mark(flag::MEMBER);
                    connection.mark(flag::DISABLED);
                }
                leave::hand_back(held, fd, Why::UnknownFlags);
                let operation = libc::EPOLL_CTL_MOD;
                return Some(sys::control(
                    held.fd,
                    operation,
                    fd,
                    asked.events,
                    asked.data,
                ));
            }
            (connection.events, connection.data) = (asked.events, asked.data);
            connection.mark(flag::MEMBER);
            connection.clear(flag::DISABLED);
            if connection.events & flag::IN == 0 {
                crate::receive::spill(held, connection);
            }
            held.arm(fd, connection);
            if connection.report() != 0 {
                held.notify(fd, connection, 0);
            }
            if connection.is(flag::ENDED) {
                held.to_poll.push(fd);
            }
            Some(Ok(0))
        }
        libc::EPOLL_CTL_DEL => {
            leave::remove(held, fd, connection);
            Some(Ok(0))
        }
        _ => Some(Err(libc::EINVAL)),
    }
}

/// A second set asks about a connection that one serves.
fn in_another(held: &mut Held, entry: &'static Entry, fd: i32, asked: Asked) -> Option<Answer> {
    if asked.operation != libc::EPOLL_CTL_ADD {
        return Some(Err(libc::ENOENT));
    }
    let other = Set::of(entry)?;
    // One lock at a time: two threads might take two sets the other way round.
    held.kernel_has = true;
    let mut theirs = other.take_second(held)?;
    leave::hand_back(&mut theirs, fd, Why::SeveralSets);
    None
}

/// One that was handed back: the kernel's set knows it, and what is in hand of it is ours to report.
fn replayed(
    set: &'static Set,
    held: &mut Held,
    entry: &'static Entry,
    fd: i32,
    asked: Asked,
) -> Option<Answer> {
    if !Set::of(entry).is_some_and(|own| std::ptr::eq(own, set)) {
        return None;
    }
    let mut connection = held.connection(fd)?;
    let answer = sys::control(held.fd, asked.operation, fd, asked.events, asked.data);
    if answer.is_ok() {
        if asked.operation == libc::EPOLL_CTL_DEL {
            connection.clear(flag::MEMBER);
            held.unready(fd, connection);
        } else {
            (connection.events, connection.data) = (asked.events, asked.data);
            connection.mark(flag::MEMBER);
            connection.clear(flag::DISABLED);
            held.kernel_has = true;
            if connection.in_hand() > 0 {
                held.notify(fd, connection, 0);
            }
        }
    }
    Some(answer)
}
