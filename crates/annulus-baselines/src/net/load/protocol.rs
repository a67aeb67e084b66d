//! The interface of a protocol: writes requests and checks responses.

use super::tally::Kind;

/// A protocol, resolved at compile time. All requests of a run have the same length.
pub(super) trait Protocol {
    /// The state of a response that has begun to arrive.
    type Reader: Default;

    /// Returns a request without its number.
    fn template(&self) -> Vec<u8>;

    /// Writes the numbers of the connection and the request into `request`, which is a copy of the template or an
    /// earlier request.
    fn stamp(&mut self, connection: u32, sequence: u64, request: &mut [u8]);

    /// Checks bytes of the response to request `sequence`. `bytes` may extend past the response.
    fn read(
        &mut self,
        reader: &mut Self::Reader,
        connection: u32,
        sequence: u64,
        bytes: &[u8],
    ) -> Step;

    /// Returns the approximate length of a response if known, for the size of receive buffers.
    fn response_bytes(&self) -> usize {
        0
    }

    /// Returns whether closing the connection ends the response (HTTP without a length).
    fn ends_with_connection(&self, _reader: &Self::Reader) -> bool {
        false
    }
}

/// The result of a check.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// All bytes were used, and the response is not complete.
    More,
    /// The response is complete after this number of bytes.
    Done(usize, Completed),
    /// The response does not match the request. The connection must be closed.
    Wrong(String),
}

/// A complete response.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Completed {
    Correct,
    /// Correct and empty: a key without a value.
    Nil,
    /// An HTTP status other than 2xx.
    Status(u16),
    /// An error that the server returned.
    Error(Kind, String),
}

/// Returns the responses in `text` if it arrives in pieces of `piece` bytes.
#[cfg(test)]
pub(super) fn read_in_pieces<P: Protocol>(
    protocol: &mut P,
    text: &[u8],
    piece: usize,
) -> Vec<Step> {
    let (mut reader, mut steps) = (P::Reader::default(), Vec::new());
    for piece in text.chunks(piece) {
        let mut at = 0;
        while at < piece.len() {
            match protocol.read(&mut reader, 0, 0, &piece[at..]) {
                Step::More => break,
                Step::Done(used, response) => {
                    at += used;
                    steps.push(Step::Done(0, response));
                }
                wrong => return vec![wrong],
            }
        }
    }
    steps
}
