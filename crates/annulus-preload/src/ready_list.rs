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
    pub(crate) fn notify(&mut self, fd: i32, mut connection: Conn, key: u32) {
        if !connection.member.is_enabled() {
            return;
        }
        if key != 0 && key & (connection.events | ERR | HUP) == 0 {
            return;
        }
        connection.member = Member::Changed;
        self.make_ready(fd, connection);
    }

    /// Appends a connection to the list of ready ones.
    #[inline]
    pub(crate) fn make_ready(&mut self, fd: i32, mut connection: Conn) {
        if connection.next != 0 {
            return;
        }
        connection.next = LAST;
        let name = fd as u32 + 1;
        match self.ready.1 {
            0 => self.ready.0 = name,
            last => {
                if let Some(entry) = fd_table::entry(last as i32 - 1) {
                    // SAFETY: Held: connections in the list belong to this set; this is not `connection`.
                    unsafe { (*entry.connection()).next = name };
                }
            }
        }
        self.ready.1 = name;
    }

    /// Removes the first ready connection from the list.
    #[inline]
    pub(crate) fn next_ready(&mut self) -> Option<(i32, &'static Entry, Conn)> {
        let first = self.ready.0;
        let entry = fd_table::entry(first.checked_sub(1)? as i32)?;
        // SAFETY: Held: connections in the list belong to this set.
        let mut connection = unsafe { Conn::new(entry.connection()) };
        match std::mem::take(&mut connection.next) {
            0 | LAST => self.ready = (0, 0),
            next => self.ready.0 = next,
        }
        Some((first as i32 - 1, entry, connection))
    }

    /// Removes a connection from the list of ready ones.
    pub(crate) fn unready(&mut self, fd: i32, mut connection: Conn) {
        let next = std::mem::take(&mut connection.next);
        if next == 0 {
            return;
        }
        let name = fd as u32 + 1;
        let (mut at, mut before) = (self.ready.0, 0);
        while at != name {
            let Some(entry) = fd_table::entry(at as i32 - 1) else {
                return;
            };
            before = at;
            // SAFETY: Held: connections in the list belong to this set; this is not `connection`, as its name differs.
            at = unsafe { (*entry.connection()).next };
        }
        match fd_table::entry(before as i32 - 1) {
            // SAFETY: Held: connections in the list belong to this set.
            Some(entry) => unsafe { (*entry.connection()).next = next },
            None if next == LAST => self.ready.0 = 0,
            None => self.ready.0 = next,
        }
        if self.ready.1 == name {
            self.ready.1 = before;
        }
    }
}
