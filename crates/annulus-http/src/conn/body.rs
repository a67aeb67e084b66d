//! Request bodies. They are read to their end and ignored. Chunks are parsed byte by byte, strictly by the grammar.

use super::head::{Framing, Refusal, refusal};

/// The largest number of bytes of a chunk's extensions, or of a line of the trailer.
const LINE_BYTES_MAX: u32 = 1024;
/// The largest number of digits of a chunk size. 2^64 has 16.
const SIZE_DIGITS_MAX: u32 = 16;

/// The rest of a body.
#[derive(Debug)]
pub(crate) struct Discard {
    state: State,
    /// The bytes that may still follow, framing included.
    allowance: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Left(u64),
    /// In a chunk size: the value so far, and its digits.
    Size {
        value: u64,
        digits: u32,
    },
    /// After a semicolon: the size of the chunk, and the bytes of the extensions so far.
    Extension {
        value: u64,
        bytes: u32,
    },
    /// At the line feed after the size of the chunk.
    SizeEnd(u64),
    Data(u64),
    DataReturn,
    DataEnd,
    /// At the start of a line of the trailer.
    Trailer,
    /// In a field name of the trailer, which ends with a colon.
    TrailerName(u32),
    /// After that colon.
    TrailerLine(u32),
    TrailerLineEnd,
    LastEnd,
    Over,
}

const TOO_LARGE: Refusal = refusal(413, "the request body exceeds the limit");
const BAD_CHUNK: Refusal = refusal(400, "malformed chunk");

impl Discard {
    /// Returns the state for a body of at most `limit_bytes` bytes.
    pub(crate) fn new(framing: Framing, limit_bytes: u64) -> Result<Discard, Refusal> {
        let state = match framing {
            Framing::Empty => State::Over,
            Framing::Length(bytes) if bytes > limit_bytes => return Err(TOO_LARGE),
            Framing::Length(bytes) => State::Left(bytes),
            Framing::Chunked => State::Size {
                value: 0,
                digits: 0,
            },
        };
        Ok(Discard {
            state,
            allowance: limit_bytes,
        })
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Takes the bytes that belong to the body and returns their number.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<usize, Refusal> {
        let mut at = 0;
        while at < bytes.len() && !self.is_over() {
            let rest = &bytes[at..];
            let taken = match &mut self.state {
                State::Left(left) | State::Data(left) => {
                    let taken = u64::min(*left, rest.len() as u64);
                    *left -= taken;
                    if *left == 0 {
                        self.state = match self.state {
                            State::Left(_) => State::Over,
                            _ => State::DataReturn,
                        };
                    }
                    taken
                }
                _ => {
                    self.state = self.state.step(rest[0])?;
                    1
                }
            };
            self.allowance = self.allowance.checked_sub(taken).ok_or(TOO_LARGE)?;
            at += taken as usize;
        }
        Ok(at)
    }
}

impl State {
    /// Parses a byte of the framing.
    fn step(self, byte: u8) -> Result<State, Refusal> {
        let next = match (self, byte) {
            (State::Size { value, digits }, _) if byte.is_ascii_hexdigit() => {
                if digits == SIZE_DIGITS_MAX {
                    return Err(BAD_CHUNK);
                }
                let digit = (byte as char).to_digit(16).unwrap_or_default();
                State::Size {
                    value: value << 4 | u64::from(digit),
                    digits: digits + 1,
                }
            }
            (State::Size { digits: 0, .. }, _) => return Err(BAD_CHUNK),
            (State::Size { value, .. }, b'\r') => State::SizeEnd(value),
            (State::Size { value, .. }, b';') => State::Extension { value, bytes: 0 },
            (State::Extension { value, .. }, b'\r') => State::SizeEnd(value),
            (State::Extension { value, bytes }, _) if is_text(byte) && bytes < LINE_BYTES_MAX => {
                State::Extension {
                    value,
                    bytes: bytes + 1,
                }
            }
            (State::SizeEnd(0), b'\n') => State::Trailer,
            (State::SizeEnd(value), b'\n') => State::Data(value),
            (State::DataReturn, b'\r') => State::DataEnd,
            (State::DataEnd, b'\n') => State::Size {
                value: 0,
                digits: 0,
            },
            (State::Trailer, b'\r') => State::LastEnd,
            // A continuation line (obs-fold) begins with a space, which no name does.
            (State::Trailer, _) if is_name(byte) => State::TrailerName(1),
            (State::TrailerName(bytes), b':') => State::TrailerLine(bytes + 1),
            (State::TrailerName(bytes), _) if is_name(byte) && bytes < LINE_BYTES_MAX => {
                State::TrailerName(bytes + 1)
            }
            (State::TrailerLine(_), b'\r') => State::TrailerLineEnd,
            (State::TrailerLine(bytes), _) if is_text(byte) && bytes < LINE_BYTES_MAX => {
                State::TrailerLine(bytes + 1)
            }
            (State::TrailerLineEnd, b'\n') => State::Trailer,
            (State::LastEnd, b'\n') => State::Over,
            _ => return Err(BAD_CHUNK),
        };
        Ok(next)
    }
}

/// Returns whether the byte may be in a field name: a token (RFC 9110, section 5.6.2).
fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Returns whether the byte may be in a field value: no control character except the tab.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 1 << 16;

    fn chunked(bytes: &[u8]) -> Result<(usize, bool), Refusal> {
        let mut body = Discard::new(Framing::Chunked, LIMIT)?;
        let taken = body.take(bytes)?;
        Ok((taken, body.is_over()))
    }

    #[test]
    fn a_body_ends_where_its_framing_says_however_it_is_split() {
        let whole = b"4\r\nWiki\r\n6;name=\"v\"\r\npedia \r\n00A\r\n0123456789\r\n0\r\nA: b\r\nC: d\r\n\r\n";
        for split in 0..=whole.len() {
            let mut body = Discard::new(Framing::Chunked, LIMIT).unwrap();
            let (first, second) = whole.split_at(split);
            assert_eq!(body.take(first).unwrap(), first.len());
            assert_eq!(body.take(second).unwrap(), second.len());
            assert!(body.is_over(), "split at {split}");
        }
        let mut followed = whole.to_vec();
        followed.extend(b"GET / HTTP/1.1\r\n");
        assert_eq!(chunked(&followed), Ok((whole.len(), true)));
        let mut body = Discard::new(Framing::Length(5), LIMIT).unwrap();
        assert_eq!(body.take(b"123"), Ok(3));
        assert!(!body.is_over());
        assert_eq!(body.take(b"45GET"), Ok(2));
        assert!(body.is_over());
    }

    #[test]
    fn a_malformed_chunk_is_refused() {
        let bad: [&[u8]; 27] = [
            b"\r\n",
            b"g\r\n",
            b"-1\r\n",
            b"+1\r\n",
            b"0x1\r\n",
            b" 1\r\n",
            b"1 \r\n",
            b"1\n",
            b"1\r\r",
            b"1\r\nab",
            b"1\r\na\n",
            b"1\r\na\rb",
            b"11111111111111111\r\n",
            b"1;a\nb\r\n",
            b"1;\0\r\n",
            b";a\r\n",
            b"0\r\n a: b\r\n\r\n",
            b"0\r\na: b\n\r\n",
            b"0\r\nno colon\r\n\r\n",
            b"0\r\nnocolon\r\n\r\n",
            b"0\r\n: no name\r\n\r\n",
            b"0\r\na : b\r\n\r\n",
            b"0\r\na: b\r\nGET / HTTP/1.1\r\n\r\n",
            b"0\r\n\n",
            b"0\r\n\r\r",
            b"0\r\n\0",
            b"1\x0b\r\n",
        ];
        for bytes in bad {
            let shown = String::from_utf8_lossy(bytes);
            assert_eq!(chunked(bytes), Err(BAD_CHUNK), "{shown:?}");
        }
        let long = [b"1;".as_slice(), &[b'a'; LINE_BYTES_MAX as usize + 1]].concat();
        assert_eq!(chunked(&long), Err(BAD_CHUNK));
        let long = [b"0\r\n".as_slice(), &[b'a'; LINE_BYTES_MAX as usize + 1]].concat();
        assert_eq!(chunked(&long), Err(BAD_CHUNK));
    }

    #[test]
    fn a_body_beyond_the_limit_is_refused_framing_included() {
        assert!(Discard::new(Framing::Length(LIMIT), LIMIT).is_ok());
        assert_eq!(
            Discard::new(Framing::Length(LIMIT + 1), LIMIT).unwrap_err(),
            TOO_LARGE
        );
        assert_eq!(chunked(b"ffffffffffffffff\r\n").unwrap(), (18, false));
        let huge = [b"fffff\r\n".as_slice(), &[0; LIMIT as usize]].concat();
        assert_eq!(chunked(&huge), Err(TOO_LARGE));
        // Framing counts, too; small chunks consist mostly of it.
        let small = b"1;aaaaaaaaaaaaaaaaaaaa\r\nx\r\n".repeat(4096);
        assert_eq!(chunked(&small), Err(TOO_LARGE));
        let trailer = [b"0\r\n".as_slice(), &b"a: b\r\n".repeat(1 << 14)].concat();
        assert_eq!(chunked(&trailer), Err(TOO_LARGE));
    }
}
