//! # Safety
//!
//! The state of a served connection, and its readiness. Plain data, for which zero bytes are a valid value (the table
//! is zeroed memory); used only under its set's lock (Held).
#![allow(unsafe_code)]

use std::ptr::{self, NonNull};

use crate::byte_queue::ByteQueue;
use crate::events::{ERR, HUP, IN, Readiness};
use crate::inbound::{Inbound, NextReceive};
use crate::member::Member;
use crate::outbound::{Fin, Outbound, Queue};
use crate::token::{GENERATION_MAX, TokenKind, token};

/// The state of one connection.
#[repr(C)]
pub(crate) struct Connection {
    /// Received and unread bytes, in a receive buffer.
    pub(crate) at: *mut u8,
    pub(crate) bytes: u32,
    pub(crate) buffer: u16,
    pub(crate) fin: Fin,
    pub(crate) outbound: Outbound,
    pub(crate) inbound: Inbound,
    pub(crate) next_receive: NextReceive,
    /// The peer has sent FIN.
    pub(crate) ended: bool,
    pub(crate) member: Member,
    /// Events that the set reports.
    pub(crate) events: u32,
    /// Incremented each time that the number is served again; part of every token.
    pub(crate) generation: u32,
    pub(crate) queue: Queue,
    /// In the list of connections whose deferred output is not watched yet.
    pub(crate) awaits_watch: bool,
    /// The send buffer is so small that the kernel is asked whether the connection is writable.
    pub(crate) is_narrow: bool,
    /// The last write had MSG_MORE: the kernel holds a partial segment back until more bytes follow.
    pub(crate) has_more: bool,
    /// The `data` of the member's events.
    pub(crate) data: u64,
    /// Bytes received after those in the buffer, or instead of them.
    pub(crate) copied_out: ByteQueue,
    /// Bytes that were written but not taken by the kernel; they precede the queued ones.
    pub(crate) backlog: ByteQueue,
    /// Queued in the arena.
    pub(crate) out_from: u32,
    pub(crate) out_bytes: u32,
    pub(crate) out_reserved: u32,
    /// An error that the next call returns.
    pub(crate) error: i32,
    /// The descriptor of the next ready connection, plus one. 0: this one is not in the list; [`LAST`]: it is the last.
    pub(crate) next: u32,
    /// The events that a pending poll waits for, always with ERR and HUP; 0: no poll is pending.
    pub(crate) polled: u32,
    /// Bytes that the program's own calls have read since the kernel had none.
    pub(crate) direct_bytes: u32,
    /// The round of its set in which an event arrived last.
    pub(crate) round: u32,
}

// Zeroed memory is a connection in its initial states, and no larger than two lines of memory with its entry.
const _: () = assert!(
    Inbound::Idle as u8 == 0
        && NextReceive::Single as u8 == 0
        && Member::Out as u8 == 0
        && Fin::Open as u8 == 0
        && Queue::Unlisted as u8 == 0
        && Outbound::Writable as u8 == 0
);
const _: () = assert!(size_of::<Connection>() <= 112);

/// Stands for a successor in the list of ready connections.
pub(crate) const LAST: u32 = u32::MAX;

/// Names a connection of a set, whose `Inner` lends it: `inner[connection]`.
#[derive(Clone, Copy)]
pub(crate) struct Conn {
    place: NonNull<Connection>,
    pub(crate) fd: i32,
}

impl Conn {
    /// # Safety
    ///
    /// Held: only the set to which the connection belongs uses it.
    #[inline]
    pub(crate) unsafe fn new(connection: *mut Connection, fd: i32) -> Conn {
        // SAFETY: Owned: an entry of the table, which is never freed.
        let place = unsafe { NonNull::new_unchecked(connection) };
        Conn { place, fd }
    }

    #[inline]
    pub(crate) fn as_ptr(self) -> *mut Connection {
        self.place.as_ptr()
    }
}

impl Connection {
    /// Returns MSG_MORE if more bytes follow those that were queued.
    #[inline]
    pub(crate) fn more(&self) -> i32 {
        if self.has_more { libc::MSG_MORE } else { 0 }
    }

    /// Returns the bytes in the receive buffer.
    #[inline]
    pub(crate) fn received(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: Owned: the connection's part of a buffer of which it is a reader.
        unsafe { std::slice::from_raw_parts(self.at, self.bytes as usize) }
    }

    /// Returns the number of bytes that can be read without the kernel.
    #[inline]
    pub(crate) fn buffered(&self) -> usize {
        self.bytes as usize + self.copied_out.len()
    }

    /// Returns the events that `poll` would return.
    #[inline]
    pub(crate) fn mask(&self) -> u32 {
        let readiness = Readiness {
            outbound: self.outbound,
            fin: self.fin,
            has_bytes: self.buffered() > 0 || self.inbound.is_readable(),
            ended: self.ended,
            has_error: self.error != 0,
        };
        readiness.events()
    }

    /// Returns whether the peer sends nothing more.
    #[inline]
    pub(crate) fn has_input_ended(&self) -> bool {
        self.ended || self.outbound == Outbound::Dead
    }

    /// Returns whether a direction has ended, which a set cannot determine when it starts to serve a connection.
    pub(crate) fn is_over(&self) -> bool {
        self.ended || self.outbound.is_broken() || self.fin != Fin::Open
    }

    /// Returns whether the next write is accepted.
    #[inline]
    pub(crate) fn accepts_write(&self) -> bool {
        self.outbound == Outbound::Writable && self.fin == Fin::Open
    }

    /// Returns the events of what the library holds, which the kernel does not know: unread bytes and an error.
    pub(crate) fn held_events(&self) -> u32 {
        let bytes = if self.buffered() > 0 { IN } else { 0 };
        let error = if self.error != 0 { ERR } else { 0 };
        bytes | error
    }

    /// Returns the events that the set reports now.
    #[inline]
    pub(crate) fn report(&self) -> u32 {
        if !self.member.is_enabled() {
            return 0;
        }
        self.mask() & (self.events | ERR | HUP)
    }

    /// Begins a generation: completions that are still to come must not reach the next connection with this number.
    pub(crate) fn renew(&mut self) {
        self.generation = self.generation.wrapping_add(1) & GENERATION_MAX;
    }

    /// Forgets the bytes that are queued in the arena.
    #[inline]
    pub(crate) fn clear_queued(&mut self) {
        (self.out_from, self.out_bytes, self.out_reserved) = (0, 0, 0);
    }

    /// Returns the token of a request for the connection.
    #[inline]
    pub(crate) fn token(&self, kind: TokenKind, fd: i32) -> u64 {
        token(kind, self.generation, fd)
    }

    /// Initialises a connection that a set starts to serve.
    pub(crate) fn begin(&mut self, events: u32, data: u64) {
        self.at = ptr::null_mut();
        self.bytes = 0;
        (self.inbound, self.next_receive, self.ended) = (Inbound::Idle, NextReceive::Single, false);
        self.member = Member::Reported;
        (self.fin, self.outbound, self.queue) = (Fin::Open, Outbound::Writable, Queue::Unlisted);
        (self.awaits_watch, self.is_narrow, self.has_more) = (false, false, false);
        self.events = events;
        self.renew();
        self.data = data;
        self.copied_out.clear();
        self.backlog.clear();
        self.clear_queued();
        self.error = 0;
        self.next = 0;
        self.round = 0;
        self.direct_bytes = 0;
        self.polled = 0;
    }
}
