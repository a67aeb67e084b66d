//! Echo: the server returns each message unchanged.
//!
//! A message begins with the numbers of the request and the connection, as far as they fit, so that a response to
//! another request or client is detected. Short messages are compared completely, and so is one of 16 long messages. Of
//! the other long messages, the length and the beginning are compared: comparing 64 KiB costs more than receiving them.

use super::protocol::{Completed, Protocol, Step};

/// The length of the request's and the connection's numbers.
const STAMP_BYTES: usize = 12;
/// The maximum length of a message that is always compared completely.
const WHOLE_BYTES_MAX: usize = 1024;
/// One of this number of longer messages is compared completely.
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
        // The request's number first, so that even a message of one byte differs from the previous one.
        stamp[..8].copy_from_slice(&sequence.to_le_bytes());
        stamp[8..].copy_from_slice(&connection.to_le_bytes());
        stamp
    }
}

impl Protocol for Echo {
    /// The number of bytes of the response received so far.
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
                "message {sequence} of connection {connection} came back with a different beginning"
            ));
        }
        let complete = size <= WHOLE_BYTES_MAX || sequence.is_multiple_of(SAMPLE);
        if complete && bytes[stamped..] != self.pattern[from + stamped..to] {
            return Step::Wrong(format!(
                "message {sequence} of connection {connection} came back with different bytes within {from}..{to}"
            ));
        }
        *received = to;
        if to < size {
            return Step::More;
        }
        *received = 0;
        Step::Done(take, Completed::Correct)
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
                assert_eq!(rest, Step::Done(size - cut, Completed::Correct));
            }
        }
    }

    #[test]
    fn a_wrong_byte_anywhere_in_a_short_message_is_detected() {
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
    fn bytes_after_a_response_belong_to_the_next() {
        let mut echo = Echo::new(20, 7);
        let two = [message(&mut echo, 1, 0), message(&mut echo, 1, 1)].concat();
        let mut received = 0;
        assert_eq!(
            echo.read(&mut received, 1, 0, &two),
            Step::Done(20, Completed::Correct)
        );
        assert_eq!(
            echo.read(&mut received, 1, 1, &two[20..]),
            Step::Done(20, Completed::Correct)
        );
    }
}
