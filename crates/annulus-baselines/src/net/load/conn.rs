//! One connection of the generator, and the tokens of its completions.

use std::os::fd::OwnedFd;

/// The state of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// No socket is open.
    #[default]
    Closed,
    Connecting,
    Open,
}

/// A connection slot. A new socket replaces a failed one.
#[derive(Default)]
pub(super) struct Conn<R> {
    pub(super) socket: Option<OwnedFd>,
    pub(super) state: State,
    /// The number of the socket in this slot. Completions of earlier sockets are ignored.
    pub(super) generation: u32,
    /// `true` while a receive is submitted.
    pub(super) armed: bool,
    /// `true` while a send with a completion is in flight. The slot's memory must not change until it completes.
    pub(super) sending: bool,
    /// The offset and length of the current send.
    pub(super) send_from: u32,
    pub(super) send_len: u32,
    /// The index of the oldest request in the slot's times.
    pub(super) head: u32,
    /// Requests sent without a response so far.
    pub(super) in_flight: u32,
    /// Requests that are due and not yet sent.
    pub(super) to_send: u32,
    /// The number of requests sent, and of responses received.
    pub(super) sent: u64,
    pub(super) responses: u64,
    /// The start of the connect, or of the oldest request in flight, or the time of the last response.
    pub(super) since_ns: u64,
    pub(super) reader: R,
}

/// The kind of operation that completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Connect,
    Send,
    Receive,
}

/// The bits of a token that hold the generation.
const GENERATION_MASK: u32 = 0x00FF_FFFF;

/// Packs the kind, the slot and the generation into 64 bits.
pub(super) fn token(what: What, conn_index: u32, generation: u32) -> u64 {
    let what = match what {
        What::Connect => 1,
        What::Send => 2,
        What::Receive => 3,
    };
    (what << 56) | (u64::from(generation & GENERATION_MASK) << 32) | u64::from(conn_index)
}

/// Unpacks a token. Returns `None` for an unknown one.
pub(super) fn untoken(token: u64) -> Option<(What, u32, u32)> {
    let what = match token >> 56 {
        1 => What::Connect,
        2 => What::Send,
        3 => What::Receive,
        _ => return None,
    };
    Some((what, token as u32, (token >> 32) as u32 & GENERATION_MASK))
}

pub(super) fn same_generation(a: u32, b: u32) -> bool {
    a & GENERATION_MASK == b & GENERATION_MASK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back_as_it_was() {
        for what in [What::Connect, What::Send, What::Receive] {
            for (conn_index, generation) in [(0, 0), (29_999, 7), (u32::MAX, GENERATION_MASK)] {
                let back = untoken(token(what, conn_index, generation));
                assert_eq!(back, Some((what, conn_index, generation)));
            }
        }
        assert_eq!(untoken(0), None);
    }
}
