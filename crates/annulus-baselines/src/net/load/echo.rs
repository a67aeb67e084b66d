//! Echo: what was sent comes back, byte for byte.
//!
//! A message begins with the connection's number and the request's, as far as it has room for them, so that an answer
//! to another request or another client is seen. Short messages are compared whole, of long ones each 16th; of the
//! others every byte is counted and the beginning compared, because comparing 64 KiB costs more than receiving them.

use super::protocol::{Completed, Protocol, Step};

/// The connection's number and the request's.
const STAMP_BYTES: usize = 12;
/// Up to this length every message is compared whole.
const WHOLE_BYTES_MAX: usize = 1024;
/// Of longer ones, each so-manieth.
const SAMPLE: u64 = 16;

pub(super) struct Echo {
    pattern: Vec<u8>,
}

impl Echo {
    pub(super) fn new(bytes: usize, seed: u64) -> Echo {
        let mut pattern = vec![0; bytes];
        fastrand::Rng::with_seed(seed).fill(&mut pattern);
        Echo { pattern }
    }

    fn stamp_of(connection: u32, sequence: u64) -> [u8; STAMP_BYTES] {
        let mut stamp = [0; STAMP_BYTES];
        // The fast-changing number first: a message of one byte still differs from the one before it.
        stamp[..8].copy_from_slice(&sequence.to_le_bytes());
        stamp[8..].copy_from_slice(&connection.to_le_bytes());
        stamp
    }
}

impl Protocol for Echo {
    /// How many bytes of the answer have been seen.
    type Reader = usize;

    fn template(&self) -> Vec<u8> {
        self.pattern.clone()
    }

    fn stamp(&mut self, connection: u32, sequence: u64, request: &mut [u8]) {
        let len = request.len().min(STAMP_BYTES);
        request[..len].copy_from_slice(&Echo::stamp_of(connection, sequence)[..len]);
    }

    #[inline]
    fn read(&mut self, received: &mut usize, connection: u32, sequence: u64, bytes: &[u8]) -> Step {
        let size = self.pattern.len();
        let take = bytes.len().min(size - *received);
        let (from, to) = (*received, *received + take);
        let stamp_len = size.min(STAMP_BYTES);
        let bytes = &bytes[..take];
        let stamped = stamp_len.saturating_sub(from).min(take);
        let stamp = Echo::stamp_of(connection, sequence);
        if stamped > 0 && bytes[..stamped] != stamp[from..from + stamped] {
            return Step::Wrong(format!(
                "message {sequence} of connection {connection} came back with another beginning"
            ));
        }
        let complete = size <= WHOLE_BYTES_MAX || sequence.is_multiple_of(SAMPLE);
        if complete && bytes[stamped..] != self.pattern[from + stamped..to] {
            return Step::Wrong(format!(
                "message {sequence} of connection {connection} came back with other bytes within {from}..{to}"
            ));
        }
        *received = to;
        if to < size {
            return Step::More;
        }
        *received = 0;
        Step::Done(take, Completed::Right)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(echo: &mut Echo, connection: u32, sequence: u64) -> Vec<u8> {
        let mut bytes = echo.template();
        echo.stamp(connection, sequence, &mut bytes);
        bytes
    }

    #[test]
    fn a_response_in_pieces_is_checked_across_them() {
        for size in [1, 5, 12, 13, 100, 5000] {
            let mut echo = Echo::new(size, 7);
            let bytes = message(&mut echo, 3, 16);
            for cut in [0, 1 % size, size / 2, size - 1] {
                let mut received = 0;
                if cut > 0 {
                    assert_eq!(echo.read(&mut received, 3, 16, &bytes[..cut]), Step::More);
                }
                let rest = echo.read(&mut received, 3, 16, &bytes[cut..]);
                assert_eq!(rest, Step::Done(size - cut, Completed::Right));
            }
        }
    }

    #[test]
    fn a_wrong_byte_anywhere_in_a_short_message_is_seen() {
        let mut echo = Echo::new(64, 7);
        for at in 0..64 {
            let mut bytes = message(&mut echo, 1, 2);
            bytes[at] ^= 1;
            assert!(matches!(echo.read(&mut 0, 1, 2, &bytes), Step::Wrong(_)));
        }
        let other = message(&mut echo, 2, 2);
        assert!(matches!(echo.read(&mut 0, 1, 2, &other), Step::Wrong(_)));
    }

    #[test]
    fn what_follows_a_response_is_left_for_the_next() {
        let mut echo = Echo::new(20, 7);
        let two = [message(&mut echo, 1, 0), message(&mut echo, 1, 1)].concat();
        let mut received = 0;
        assert_eq!(
            echo.read(&mut received, 1, 0, &two),
            Step::Done(20, Completed::Right)
        );
        assert_eq!(
            echo.read(&mut received, 1, 1, &two[20..]),
            Step::Done(20, Completed::Right)
        );
    }
}
