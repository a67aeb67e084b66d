//! # Safety
//!
//! The list of a set's connections that have events to report, linked through the connections. (Held: the callers have
//! the set's lock.)
#![allow(unsafe_code)]

use crate::connection::{Conn, LAST};
use crate::epoll_set::Inner;
use crate::events::{ERR, HUP};
use crate::fd_table::{self, Entry};
use crate::member::Member;

impl Inner {
    /// Reports events `key` of a connection; 0: any event. Follows the kernel's rule (`ep_poll_callback`): events that
    /// were not requested wake no waiter.
    #[inline]
    pub(crate) fn notify(&mut self, connection: Conn, key: u32) {
        if !self[connection].member.is_enabled() {
            return;
        }
        if key != 0 && key & (self[connection].events | ERR | HUP) == 0 {
            return;
        }
        self[connection].member = Member::Changed;
        self.make_ready(connection);
    }

    /// Returns a connection in the list, by its descriptor plus one.
    #[inline]
    fn listed(name: u32) -> Option<(&'static Entry, Conn)> {
        let fd = name.checked_sub(1)? as i32;
        let entry = fd_table::entry(fd)?;
        // SAFETY: Held: connections in the list belong to this set.
        Some((entry, unsafe { Conn::new(entry.connection(), fd) }))
    }

    /// Appends a connection to the list of ready ones.
    #[inline]
    pub(crate) fn make_ready(&mut self, connection: Conn) {
        if self[connection].next != 0 {
            return;
        }
        self[connection].next = LAST;
        let name = connection.fd as u32 + 1;
        match Self::listed(self.ready.1) {
            None => self.ready.0 = name,
            Some((_, last)) => self[last].next = name,
        }
        self.ready.1 = name;
    }

    /// Removes the first ready connection from the list.
    #[inline]
    pub(crate) fn next_ready(&mut self) -> Option<(&'static Entry, Conn)> {
        let first = Self::listed(self.ready.0)?;
        match std::mem::take(&mut self[first.1].next) {
            0 | LAST => self.ready = (0, 0),
            next => self.ready.0 = next,
        }
        Some(first)
    }

    /// Removes a connection from the list of ready ones.
    pub(crate) fn unready(&mut self, connection: Conn) {
        let next = std::mem::take(&mut self[connection].next);
        if next == 0 {
            return;
        }
        let name = connection.fd as u32 + 1;
        let (mut at, mut before) = (self.ready.0, 0);
        while at != name {
            let Some((_, one)) = Self::listed(at) else {
                return;
            };
            (before, at) = (at, self[one].next);
        }
        match Self::listed(before) {
            Some((_, one)) => self[one].next = next,
            None if next == LAST => self.ready.0 = 0,
            None => self.ready.0 = next,
        }
        if self.ready.1 == name {
            self.ready.1 = before;
        }
    }
}
