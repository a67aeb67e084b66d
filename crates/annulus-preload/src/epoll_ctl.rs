//! `epoll_ctl`: what enters and leaves a set.

use crate::batching::Pace;
use crate::byte_queue::Moved;
use crate::classify;
use crate::config;
use crate::connection::{self as flag, Conn, KNOWN};
use crate::counters::{self, Call, Why};
use crate::descriptor;
use crate::epoll_set::{Guest, Held, Mode, Set};
use crate::errno::Answer;
use crate::fd_table::{self, Entry, Kind};
use crate::hand_back;
use crate::listeners;
use crate::log;
use crate::poll_cycle;
use crate::reserved_fds::{self, Inode};
use crate::switch;
use crate::sys;

/// It can't be changed to.
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

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
    let entry = fd_table::entry(fd)?;
    if let Kind::Set = entry.kind() {
        // A set in a set: what the inner one serves the outer one would not see.
        polled_otherwise(entry);
        return None;
    }
    if entry.kind() == Kind::Closing {
        descriptor::see_closed(entry);
    }
    let Some(mut held) = set.take() else {
        counters::passed(Why::InHandler);
        return None;
    };
    let moves = asked.operation == libc::EPOLL_CTL_ADD
        && matches!(entry.kind(), Kind::Served | Kind::Replay)
        && hand_back::may_move(entry, set);
    if moves {
        let (again, in_hand) = reclaim(set, held, entry, fd)?;
        held = again;
        let mut answer = add(set, &mut held, entry, fd, asked, in_hand.as_slice());
        if entry.kind() != Kind::Served {
            // Not served here: what is in hand waits for its reader, and is reported.
            hand_back::keep_in_hand(&mut held, entry, fd, in_hand.as_slice());
            answer = match entry.kind() {
                Kind::Replay => replayed(set, &mut held, entry, fd, asked),
                _ => None,
            };
        }
        held.kernel_has |= answer.is_none();
        return answer;
    }
    let elsewhere = entry.kind() == Kind::Served && !std::ptr::eq(entry.set(), held.itself);
    if elsewhere {
        return in_another(set, held, entry, fd, asked);
    }
    held.knows_no_more(fd, asked.data);
    let answer = match entry.kind() {
        Kind::Closing => Some(Err(libc::EBADF)),
        Kind::Served => served(&mut held, fd, asked),
        Kind::Replay => replayed(set, &mut held, entry, fd, asked),
        Kind::Listener => listeners::control(&mut held, fd, asked),
        _ if asked.operation == libc::EPOLL_CTL_ADD => add(set, &mut held, entry, fd, asked, &[]),
        _ => {
            change_early(&mut held, fd, asked);
            None
        }
    };
    if answer.is_none() && asked.operation == libc::EPOLL_CTL_ADD {
        held.kernel_has = true;
    }
    answer
}

/// Whoever polls the set itself must see what it serves: it is the kernel's from now on. True: it would report
/// something that the kernel does not know of.
pub(crate) fn polled_otherwise(number: &'static Entry) -> bool {
    let Some(mut held) = Set::of(number).and_then(Set::take) else {
        return false;
    };
    hand_back::pass_whole(&mut held, Why::PolledOtherwise);
    held.has_ready() || held.has_guest()
}

fn add(
    set: &'static Set,
    held: &mut Held,
    entry: &'static Entry,
    fd: i32,
    asked: Asked,
    in_hand: &[u8],
) -> Option<Answer> {
    let pass = |why: Why| {
        counters::passed(why);
        if why != Why::NotAStream {
            log::passes_before_a_ring(why);
        }
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
            // The kernel's set has it until there is a ring.
            let answer = sys::control(held.fd, asked.operation, fd, asked.events, asked.data);
            if answer.is_ok() {
                held.wanted = true;
                held.kernel_has = true;
                // The number may have been another's, which the program has closed.
                held.early.retain(|early| early.0 != fd);
                held.early.push((fd, asked.events, asked.data));
            }
            return Some(answer);
        }
        start(set, held);
        if held.mode != Mode::Serving {
            return None;
        }
    }
    begin(set, held, entry, fd, (asked.events, asked.data), in_hand);
    Some(Ok(0))
}

/// What is said of a member that was put in before there was a ring.
fn change_early(held: &mut Held, fd: i32, asked: Asked) {
    let Some(nth) = held.early.iter().position(|early| early.0 == fd) else {
        return;
    };
    if asked.operation == libc::EPOLL_CTL_MOD && asked.events & !KNOWN == 0 {
        held.early[nth] = (fd, asked.events, asked.data);
    } else {
        held.early.swap_remove(nth);
    }
}

/// The ring serves those that the kernel's set had until now.
fn take_over_early(set: &'static Set, held: &mut Held) {
    for (fd, events, data) in std::mem::take(&mut held.early) {
        let Some(entry) = fd_table::entry(fd) else {
            continue;
        };
        // One that was closed since, or is shared now, is not to be served.
        let still = classify::can_be_served(entry, fd).is_ok()
            && sys::control(held.fd, libc::EPOLL_CTL_DEL, fd, 0, 0).is_ok();
        if still {
            begin(set, held, entry, fd, (events, data), &[]);
        }
    }
}

/// Serves a connection from now on; `in_hand` was received before.
fn begin(
    set: &'static Set,
    held: &mut Held,
    entry: &'static Entry,
    fd: i32,
    (events, data): (u32, u64),
    in_hand: &[u8],
) {
    entry.belong_to(std::ptr::from_ref(set).cast_mut());
    entry.become_kind(Kind::Served, entry.flags());
    if let Some(mut connection) = held.connection(fd) {
        connection.begin(events, data);
        connection.spilled.append(in_hand);
        hand_back::begins(held, fd);
        held.arm(fd, connection);
        held.notify(fd, connection, 0);
        counters::served(Call::EpollCtl);
    }
}

/// Makes the set's ring. The calling thread is the one that waits on it.
pub(crate) fn start(set: &'static Set, held: &mut Held) {
    if config::get().disabled || !crate::process::may_make_rings() {
        counters::passed(Why::Filtered);
        log::refused("the program has set a filter of system calls");
        held.mode = Mode::Passing;
        return;
    }
    if switch::keeps(held) {
        return;
    }
    match poll_cycle::make() {
        Ok(machine) => {
            let descriptors = machine.ring.descriptors();
            for descriptor in descriptors {
                reserved_fds::remember(descriptor, Inode::Shared);
            }
            set.set_wake(descriptors[1]);
            held.make_room();
            held.pace = Pace::new(config::get().holds);
            held.ring = Some(machine);
            held.mode = Mode::Serving;
            crate::flush_thread::begin_thread();
            listeners::watch_all(held);
            take_over_early(set, held);
        }
        Err(why) => {
            held.mode = Mode::Passing;
            counters::passed(Why::Refused);
            log::refused(&why);
        }
    }
}

fn served(held: &mut Held, fd: i32, asked: Asked) -> Option<Answer> {
    let mut connection = held.connection(fd)?;
    counters::served(Call::EpollCtl);
    let member = connection.is(flag::MEMBER);
    match asked.operation {
        libc::EPOLL_CTL_ADD if member => Some(Err(libc::EEXIST)),
        libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL if !member => Some(Err(libc::ENOENT)),
        libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {
            if asked.events & !KNOWN != 0 {
                if asked.operation == libc::EPOLL_CTL_MOD && asked.events & EXCLUSIVE != 0 {
                    return Some(Err(libc::EINVAL));
                }
                return Some(ask_kernel(held, fd, connection, asked));
            }
            (connection.events, connection.data) = (asked.events, asked.data);
            connection.mark(flag::MEMBER);
            connection.clear(flag::DISABLED);
            if connection.is(flag::BULK) && asked.events & flag::EDGE_TRIGGERED != 0 {
                connection.clear(flag::BULK | flag::READABLE);
            }
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
            hand_back::remove(held, fd, connection);
            Some(Ok(0))
        }
        _ => Some(Err(libc::EINVAL)),
    }
}

/// What only the kernel's set can do for one that is served: it has it from now on, if it takes it so.
fn ask_kernel(held: &mut Held, fd: i32, mut connection: Conn, asked: Asked) -> Answer {
    let ask = |operation| sys::control(held.fd, operation, fd, asked.events, asked.data);
    // It has no member of that number yet.
    ask(libc::EPOLL_CTL_ADD)?;
    // Not to be put there by the hand-back as well.
    connection.clear(flag::MEMBER);
    hand_back::hand_back(held, fd, Why::UnknownFlags);
    held.kernel_has = true;
    if let Some(mut connection) = held.connection(fd) {
        (connection.events, connection.data) = (asked.events, asked.data);
        connection.mark(flag::MEMBER);
        connection.clear(flag::DISABLED);
        if connection.in_hand() > 0 || connection.error != 0 {
            held.notify(fd, connection, 0);
        }
    }
    Ok(0)
}

/// Takes a connection that was removed from its set, with what is in hand of it. One lock at a time: two threads might
/// take two sets the other way round.
fn reclaim(
    set: &'static Set,
    mut held: Held,
    entry: &'static Entry,
    fd: i32,
) -> Option<(Held, Moved)> {
    if std::ptr::eq(entry.set(), held.itself) {
        let in_hand = hand_back::reclaim(&mut held, fd);
        return Some((held, in_hand));
    }
    drop(held);
    let theirs = Set::of(entry).and_then(Set::take);
    let in_hand = theirs.map_or(Moved::none(), |mut theirs| {
        hand_back::reclaim(&mut theirs, fd)
    });
    Some((set.take()?, in_hand))
}

/// A second set asks about a connection that one serves. One lock at a time, as above.
fn in_another(
    set: &'static Set,
    held: Held,
    entry: &'static Entry,
    fd: i32,
    asked: Asked,
) -> Option<Answer> {
    if asked.operation != libc::EPOLL_CTL_ADD {
        return Some(Err(libc::ENOENT));
    }
    drop(held);
    let mut theirs = Set::of(entry).and_then(Set::take)?;
    hand_back::hand_back(&mut theirs, fd, Why::SeveralSets);
    let generation = hand_back::generation(&theirs, fd);
    drop(theirs);
    let mut held = set.take()?;
    held.kernel_has = true;
    be_guest(&mut held, (fd, generation), asked);
    None
}

/// What another set has in hand of it, this one reports, too.
fn be_guest(held: &mut Held, (fd, generation): (i32, u32), asked: Asked) {
    let (events, data) = (asked.events, asked.data);
    held.guests.push(Guest {
        fd,
        generation,
        events,
        data,
        told: false,
    });
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
        let before = held.guests.iter().position(|guest| guest.fd == fd);
        let before = before.map(|nth| held.guests.swap_remove(nth));
        if let Some(before) = before.filter(|_| asked.operation != libc::EPOLL_CTL_DEL) {
            be_guest(held, (fd, before.generation), asked);
        }
        return None;
    }
    let mut connection = held.connection(fd)?;
    let silent = connection.is(flag::DISABLED) && connection.is(flag::MEMBER);
    let ask = |operation| sys::control(held.fd, operation, fd, asked.events, asked.data);
    let answer = match asked.operation {
        libc::EPOLL_CTL_ADD if silent => Err(libc::EEXIST),
        // The kernel's set may not have got it yet.
        operation => match ask(operation) {
            Err(libc::ENOENT) if silent && operation == libc::EPOLL_CTL_DEL => Ok(0),
            Err(libc::ENOENT) if silent => ask(libc::EPOLL_CTL_ADD),
            answer => answer,
        },
    };
    if answer.is_ok() {
        connection.clear(flag::DISABLED);
        if asked.operation == libc::EPOLL_CTL_DEL {
            connection.clear(flag::MEMBER);
            held.unready(fd, connection);
        } else {
            (connection.events, connection.data) = (asked.events, asked.data);
            connection.mark(flag::MEMBER);
            held.kernel_has = true;
            if connection.in_hand() > 0 || connection.error != 0 {
                held.notify(fd, connection, 0);
            }
        }
    }
    Some(answer)
}
