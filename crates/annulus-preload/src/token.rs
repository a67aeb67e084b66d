//! The token of a request: its kind, its descriptor, and the generation of the connection or listener.

/// The subject of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum TokenKind {
    /// A cancellation.
    Ignored,
    Receive,
    Send,
    Poll,
    /// A poll of the kernel's set.
    Members,
    Wake,
    Listener,
    Switch,
}

use TokenKind::{Ignored, Listener, Members, Poll, Receive, Send, Switch, Wake};

const KINDS: [TokenKind; 8] = [
    Ignored, Receive, Send, Poll, Members, Wake, Listener, Switch,
];

pub(crate) const GENERATION_MAX: u32 = (1 << 24) - 1;

#[inline]
pub(crate) fn token(kind: TokenKind, generation: u32, number: i32) -> u64 {
    u64::from(kind as u8) << 56
        | u64::from(generation & GENERATION_MAX) << 32
        | u64::from(number as u32)
}

/// Returns the kind, the generation and the number of a token.
#[inline]
pub(crate) fn parts(token: u64) -> (TokenKind, u32, i32) {
    let kind = KINDS[(token >> 56) as usize % KINDS.len()];
    (
        kind,
        (token >> 32) as u32 & GENERATION_MAX,
        token as u32 as i32,
    )
}

/// Returns whether a request stays in the kernel until an event occurs. A send never does: it is complete once it was
/// submitted.
#[inline]
pub(crate) fn is_persistent(token: u64) -> bool {
    matches!(parts(token).0, Receive | Poll | Members | Listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_the_parts_of_which_it_was_made() {
        for (nth, kind) in KINDS.into_iter().enumerate() {
            assert_eq!(kind as usize, nth);
            for (generation, number) in [(0, 0), (1, i32::MAX), (GENERATION_MAX, -1)] {
                let token = token(kind, generation, number);
                assert_eq!(parts(token), (kind, generation, number));
            }
        }
        assert_eq!(parts(token(Poll, GENERATION_MAX + 8, 3)), (Poll, 7, 3));
    }
}
