//! # Safety
//!
//! A child of a fork that continues to use its parent's epoll set. Both share the kernel's set, which does not contain
//! the connections that the parent's ring serves. The child gets a new set with the same number and all members of the
//! parent's (Held: a child starts with one thread, and takes no lock that its parent's threads held).
#![allow(unsafe_code)]

use crate::arch::Event;
use crate::counters::{self, Why};
use crate::epoll_set::Set;
use crate::errno;
use crate::events::{EDGE_TRIGGERED, ONESHOT, OUT};
use crate::fd_table::{self, Entry, Kind};
use crate::member::Member;
use crate::set_members::Interest;
use crate::sys;

/// Replaces the parent's set by a set of the child, unless the parent served no member of it.
pub(crate) fn replace_inherited(number: &'static Entry, fd: i32) {
    let set = Set::of(number);
    number.forget();
    counters::passed(Why::Forked);
    let inherited = set.map_or(&[][..], Set::inherited_listeners);
    let members: Vec<Interest> = (set.into_iter().flat_map(Set::members))
        .filter_map(|fd| {
            let entry = fd_table::entry(fd)?;
            let served = entry.inherited() == Kind::Served;
            // SAFETY: Held: a copy of the parent's, which no other thread of the child uses.
            let connection = served.then(|| unsafe { &*entry.connection() })?;
            let events = match connection.member {
                Member::Out => return None,
                Member::Disabled => 0,
                _ => connection.events,
            };
            let data = connection.data;
            Some(Interest { fd, events, data })
        })
        .chain(inherited.iter().map(|listener| Interest {
            fd: listener.fd,
            events: listener.events,
            data: listener.data,
        }))
        .collect();
    if members.is_empty() {
        return;
    }
    let Ok(own_set) = sys::epoll_create() else {
        return;
    };
    let kernel_members = kernel_members(fd);
    let (edges, others): (Vec<&Interest>, Vec<&Interest>) =
        (members.iter().chain(&kernel_members)).partition(|member| is_reported_edge(member));
    for member in edges {
        add_reported(own_set, member);
    }
    for member in others {
        let Interest { fd, events, data } = *member;
        let _ = sys::control(own_set, libc::EPOLL_CTL_ADD, fd, events, data);
    }
    let flags = sys::descriptor_flags(fd);
    let _ = sys::dup_to(own_set, fd, flags);
    let _ = sys::close(own_set);
}

/// Returns whether the parent served an edge-triggered member and has reported its last edge.
fn is_reported_edge(member: &Interest) -> bool {
    let Some(entry) = fd_table::entry(member.fd).filter(|entry| entry.inherited() == Kind::Served)
    else {
        return false;
    };
    // SAFETY: Held: as in `replace_inherited`.
    let connection = unsafe { &*entry.connection() };
    member.events & EDGE_TRIGGERED != 0 && connection.member != Member::Changed
}

/// Adds an edge-triggered member to a set that has only such members, and takes the report of writability, which the
/// parent has made. The child's set reports everything else.
fn add_reported(own_set: i32, member: &Interest) {
    let Interest { fd, events, data } = *member;
    let _ = sys::control(own_set, libc::EPOLL_CTL_ADD, fd, events, data);
    let mut taken = [sys::zeroed::<Event>()];
    if sys::take_ready(own_set, &mut taken) == 1 && taken[0].events & !OUT != 0 {
        let _ = sys::control(own_set, libc::EPOLL_CTL_MOD, fd, events, data);
    }
}

/// Returns the members of the kernel's set, from `/proc/self/fdinfo`, in the order of their numbers. A member whose
/// number has been closed stays in the set while a duplicate is open, and is left out.
pub(crate) fn kernel_members(fd: i32) -> Vec<Interest> {
    let list = || std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}"));
    let text = errno::without_cancel(list).unwrap_or_default();
    let member = |line: &str| {
        let mut fields = line.strip_prefix("tfd:")?.split_whitespace();
        let fd = fields.next()?.parse().ok()?;
        let mut field = |name: &str| {
            let word = fields.find(|word| word.starts_with(name))?;
            let digits = word.strip_prefix(name).filter(|digits| !digits.is_empty());
            u64::from_str_radix(digits.or_else(|| fields.next())?, 16).ok()
        };
        let events = field("events:")? as u32;
        let data = field("data:")?;
        let inode = field("ino:")?;
        let is_open = sys::file_id(fd).is_some_and(|(_, number)| number == inode);
        is_open.then_some(Interest { fd, events, data })
    };
    let mut members: Vec<Interest> = text.lines().filter_map(member).collect();
    members.sort_unstable_by_key(|member| member.fd);
    members
}

/// Returns the data of the events of the kernel's set that no wait has returned yet, in order. The set still has them.
pub(crate) fn pending_data(set: i32, members: &[Interest]) -> Vec<u64> {
    let mut events = vec![sys::zeroed::<Event>(); members.len()];
    let count = sys::take_ready(set, &mut events);
    let mut pending: Vec<u64> = events[..count].iter().map(|event| event.u64).collect();
    pending.sort_unstable();
    for &Interest { fd, events, data } in members {
        let is_taken = events & (EDGE_TRIGGERED | ONESHOT) != 0;
        if is_taken
            && pending.binary_search(&data).is_ok()
            && sys::control(set, libc::EPOLL_CTL_MOD, fd, events, data).is_err()
        {
            // An exclusive member cannot be changed.
            let _ = sys::control(set, libc::EPOLL_CTL_DEL, fd, 0, 0);
            let _ = sys::control(set, libc::EPOLL_CTL_ADD, fd, events, data);
        }
    }
    pending
}
