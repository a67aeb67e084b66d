//! What a protocol does: one request's bytes, and the checking of its answer.

use super::tally::Kind;

/// A protocol, known when the generator is compiled. Every request of a run has the same length.
pub(super) trait Protocol {
    /// What is kept about an answer that has begun to arrive.
    type Reader: Default;

    /// A request as it is before anything is stamped into it.
    fn template(&self) -> Vec<u8>;

    /// Makes `request`, a copy of the template that was perhaps stamped before, number `sequence` of connection
    /// `connection`.
    fn stamp(&mut self, connection: u32, sequence: u64, request: &mut [u8]);

    /// Looks at bytes of the answer to request `sequence`: as many as belong to it, perhaps all.
    fn read(
        &mut self,
        reader: &mut Self::Reader,
        connection: u32,
        sequence: u64,
        bytes: &[u8],
    ) -> Step;

    /// How long an answer is, about, if that is known: it is received at once.
    fn response_bytes(&self) -> usize {
        0
    }

    /// Whether the server's closing the connection ends the answer (HTTP without a length).
    fn ends_with_connection(&self, _reader: &Self::Reader) -> bool {
        false
    }
}

/// What came of looking.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// All of it was used, and there is more to come.
    More,
    /// The answer is whole after N of the bytes.
    Done(usize, Completed),
    /// This is no answer to what was asked; the connection is of no use any more.
    Wrong(String),
}

/// A whole answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Completed {
    Right,
    /// Right, and empty: a key without a value.
    Nil,
    /// HTTP said so instead of 2xx.
    Status(u16),
    /// The server said so instead of doing what was asked.
    Error(Kind, String),
}

/// Every answer of `text` when it comes in pieces of `piece` bytes.
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
