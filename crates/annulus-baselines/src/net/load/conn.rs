//! One connection of the generator, and what the ring's completions are distinguished by.

use std::os::fd::OwnedFd;

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// There is no socket.
    #[default]
    Closed,
    Connecting,
    Open,
}

/// A connection slot, which holds one socket after another.
#[derive(Default)]
pub(super) struct Conn<R> {
    pub(super) socket: Option<OwnedFd>,
    pub(super) state: State,
    /// Which socket of this slot it is: completions of earlier ones are of no interest.
    pub(super) generation: u32,
    /// Whether the ring has a receive for it.
    pub(super) armed: bool,
    /// Whether a send that will answer is under way; the slot's memory may not be stamped until then.
    pub(super) sending: bool,
    /// Of what is being sent, where it begins and how long it is.
    pub(super) send_from: u32,
    pub(super) send_len: u32,
    /// Where in the slot's times the oldest request stands.
    pub(super) head: u32,
    /// Requests sent and not answered.
    pub(super) in_flight: u32,
    /// Requests that are due and not sent.
    pub(super) to_send: u32,
    /// The number of the next request sent, and of the next one answered.
    pub(super) sent: u64,
    pub(super) responses: u64,
    /// When connecting began, or when the oldest request in flight was sent or the one before it answered.
    pub(super) since_ns: u64,
    pub(super) reader: R,
}

/// What a completion is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Connect,
    Send,
    Receive,
}

/// Generations are counted modulo this: what is left of the token.
const GENERATION_MASK: u32 = 0x00FF_FFFF;

/// What, which slot, which socket of it, in a ring's 64 bits.
pub(super) fn token(what: What, conn_index: u32, generation: u32) -> u64 {
    let what = match what {
        What::Connect => 1,
        What::Send => 2,
        What::Receive => 3,
    };
    (what << 56) | (u64::from(generation & GENERATION_MASK) << 32) | u64::from(conn_index)
}

/// The reverse; `None` for a token that is not ours.
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
