//! Requests by key, lines and values: the part that the stores share.
//!
//! The number of a request determines its key, and the key determines its value, so a response to another request is
//! detected.

use std::ops::Range;

use super::plan::KeySpace;
use super::protocol::{Completed, Protocol, Step};

/// The number of digits of a key: `key:000000000042`.
pub(super) const KEY_DIGITS: usize = 12;
/// A value repeats after this number of bytes.
const PERIOD: usize = 16;
/// The bytes after a value in a response of either store.
const LINE_END: &[u8] = b"\r\n";
/// The longest line of a response, in bytes.
const LINE_BYTES_MAX: usize = 1024;

/// Random keys that can be computed again from the number of a request.
#[derive(Clone, Copy)]
pub(super) struct Keys {
    pub(super) count: u64,
    pub(super) seed: u64,
}

impl Keys {
    /// Returns the key of a request.
    #[inline]
    pub(super) fn of(&self, connection: u32, sequence: u64) -> u64 {
        // The finalizer of SplitMix64, so that consecutive numbers give unrelated keys.
        let mut mixed = (self.seed ^ u64::from(connection).rotate_left(40))
            .wrapping_add(sequence.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        ((u128::from(mixed) * u128::from(self.count)) >> 64) as u64
    }
}

/// Writes a key's digits.
#[inline]
pub(super) fn write_key(mut key: u64, digits: &mut [u8]) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (key % 10) as u8;
        key /= 10;
    }
}

/// The value of a key, of any length: the digits of the key, low digits first, repeated.
#[derive(Clone, Copy)]
pub(super) struct Value {
    /// The period twice, so that a period from any offset is one slice.
    twice: [u8; 2 * PERIOD],
}

impl Value {
    #[inline]
    pub(super) fn of(key: u64) -> Value {
        let mut twice = [b'.'; 2 * PERIOD];
        write_key(key, &mut twice[..KEY_DIGITS]);
        twice[..KEY_DIGITS].reverse();
        let (once, again) = twice.split_at_mut(PERIOD);
        again.copy_from_slice(once);
        Value { twice }
    }

    #[inline]
    pub(super) fn write(&self, into: &mut [u8]) {
        for piece in into.chunks_mut(PERIOD) {
            piece.copy_from_slice(&self.twice[..piece.len()]);
        }
    }

    /// Returns whether `bytes` equal the value of `length` bytes and its line end, from offset `from` on.
    #[inline]
    pub(super) fn is_at(&self, from: usize, length: usize, bytes: &[u8]) -> bool {
        let (value, end) = bytes.split_at(bytes.len().min(length.saturating_sub(from)));
        let rotated = &self.twice[from % PERIOD..][..PERIOD];
        let mut pieces = value.chunks(PERIOD);
        let end_from = (from + value.len()).saturating_sub(length);
        pieces.all(|piece| piece == &rotated[..piece.len()])
            && (LINE_END.get(end_from..)).is_some_and(|line_end| line_end.starts_with(end))
    }
}

/// A command of a store.
pub(super) trait Command: Copy {
    /// The line after each value of a response, if the store sends one.
    const AFTER_VALUE: Option<&'static [u8]>;

    /// Returns the request with the digits of key 0, up to its value.
    fn head(self, value_bytes: usize) -> Vec<u8>;

    /// Returns whether a request carries a value.
    fn sends_value(self) -> bool;

    /// Interprets the first line of a response.
    fn meaning(self, line: &[u8], expected: &Expected) -> Result<Meaning, String>;
}

/// The meaning of the first line of a response.
pub(super) enum Meaning {
    Complete(Completed),
    /// A value of this length follows.
    Value(usize),
}

/// The response that a request for `key` must get.
pub(super) struct Expected {
    pub(super) key: u64,
    value_bytes: Option<usize>,
}

impl Expected {
    /// Interprets the length of a value.
    pub(super) fn value(&self, digits: &[u8]) -> Result<Meaning, String> {
        let length = std::str::from_utf8(digits)
            .ok()
            .and_then(|text| text.parse().ok());
        match (length, self.value_bytes) {
            (None, _) => Err(format!(
                "`{}` is no length of a value",
                String::from_utf8_lossy(digits)
            )),
            (Some(length), Some(value_bytes)) if length != value_bytes => Err(format!(
                "a value of {length} bytes instead of {value_bytes}"
            )),
            (Some(length), _) => Ok(Meaning::Value(length)),
        }
    }

    /// Interprets a response without a value.
    pub(super) fn no_value(&self) -> Result<Meaning, String> {
        match self.value_bytes {
            None => Ok(Meaning::Complete(Completed::Nil)),
            Some(_) => Err(format!("key {} was filled and has no value", self.key)),
        }
    }
}

/// The error for a line that is not a response to the request.
pub(super) fn unexpected<T>(line: &[u8]) -> Result<T, String> {
    Err(format!(
        "unexpected response `{}`",
        String::from_utf8_lossy(line)
    ))
}

/// The protocol of a store.
pub(super) struct Store<C> {
    command: C,
    request: Vec<u8>,
    keys: Keys,
    /// The position of the key's digits in a request; empty for a command without a key.
    digits_at: Range<usize>,
    /// The position of the value in a request; empty for a command without one.
    value_at: Range<usize>,
    /// The length of each value, if the keys are filled and values are compared.
    value_bytes: Option<usize>,
}

/// The state of a partly received response.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// The line received so far.
    line: Vec<u8>,
    /// The length of the value.
    length: usize,
    /// The bytes of the value and its line end that are still missing.
    left: usize,
    /// A value was received, and [`Command::AFTER_VALUE`] follows.
    has_value: bool,
}

impl<C: Command> Store<C> {
    pub(super) fn of(command: C, space: KeySpace, seed: u64) -> Store<C> {
        let keys = Keys {
            count: space.keys,
            seed,
        };
        Store::new(command, keys, space.value_bytes, space.filled)
    }

    pub(super) fn new(command: C, keys: Keys, value_bytes: usize, filled: bool) -> Store<C> {
        let mut request = command.head(value_bytes);
        let key_at = request.windows(4).position(|bytes| bytes == b"key:");
        let digits_at = key_at.map_or(0..0, |at| at + 4..at + 4 + KEY_DIGITS);
        let mut value_at = 0..0;
        if command.sends_value() {
            value_at = request.len()..request.len() + value_bytes;
            request.resize(value_at.end, b'x');
            request.extend_from_slice(LINE_END);
        }
        Store {
            command,
            request,
            keys,
            digits_at,
            value_at,
            value_bytes: filled.then_some(value_bytes),
        }
    }

    /// Writes a key and its value into a request.
    #[inline]
    pub(super) fn write(&self, key: u64, request: &mut [u8]) {
        write_key(key, &mut request[self.digits_at.clone()]);
        Value::of(key).write(&mut request[self.value_at.clone()]);
    }

    /// Reads a line. Returns its meaning and the number of bytes used, or `None` if the line is incomplete.
    fn line(
        &self,
        reader: &mut Reader,
        key: u64,
        bytes: &[u8],
    ) -> Result<Option<(usize, Meaning)>, String> {
        let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else {
            reader.line.extend_from_slice(bytes);
            return match reader.line.len() > LINE_BYTES_MAX {
                true => Err(format!("a line of more than {LINE_BYTES_MAX} bytes")),
                false => Ok(None),
            };
        };
        let meaning = if reader.line.is_empty() {
            self.meaning(reader.has_value, key, bytes[..end].trim_ascii_end())
        } else {
            reader.line.extend_from_slice(&bytes[..end]);
            let meaning = self.meaning(reader.has_value, key, reader.line.trim_ascii_end());
            reader.line.clear();
            meaning
        };
        Ok(Some((end + 1, meaning?)))
    }

    fn meaning(&self, has_value: bool, key: u64, line: &[u8]) -> Result<Meaning, String> {
        if has_value {
            return match C::AFTER_VALUE == Some(line) {
                true => Ok(Meaning::Complete(Completed::Correct)),
                false => unexpected(line),
            };
        }
        let value_bytes = self.value_bytes;
        self.command.meaning(line, &Expected { key, value_bytes })
    }
}

impl<C: Command> Protocol for Store<C> {
    type Reader = Reader;

    fn template(&self) -> Vec<u8> {
        self.request.clone()
    }

    fn stamp(&mut self, connection: u32, sequence: u64, request: &mut [u8]) {
        if !self.digits_at.is_empty() {
            self.write(self.keys.of(connection, sequence), request);
        }
    }

    #[inline]
    fn read(&mut self, reader: &mut Reader, connection: u32, sequence: u64, bytes: &[u8]) -> Step {
        let key = self.keys.of(connection, sequence);
        let mut at = 0;
        loop {
            if reader.left == 0 {
                let (used, meaning) = match self.line(reader, key, &bytes[at..]) {
                    Ok(Some(line)) => line,
                    Ok(None) => return Step::More,
                    Err(why) => return Step::Wrong(why),
                };
                at += used;
                match meaning {
                    Meaning::Complete(completed) => {
                        reader.has_value = false;
                        return Step::Done(at, completed);
                    }
                    Meaning::Value(length) => {
                        reader.has_value = C::AFTER_VALUE.is_some();
                        reader.length = length;
                        reader.left = length.saturating_add(LINE_END.len());
                    }
                }
            }
            let take = reader.left.min(bytes.len() - at);
            if self.value_bytes.is_some() {
                let from = reader.length + LINE_END.len() - reader.left;
                if !Value::of(key).is_at(from, reader.length, &bytes[at..at + take]) {
                    return Step::Wrong(format!(
                        "key {key} has a value other than the one written"
                    ));
                }
            }
            at += take;
            reader.left -= take;
            if reader.left > 0 {
                return Step::More;
            }
            if !reader.has_value {
                return Step::Done(at, Completed::Correct);
            }
            if at == bytes.len() {
                return Step::More;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_among_those_there_are_and_come_again() {
        let keys = Keys { count: 10, seed: 7 };
        let mut counts = [0; 10];
        for connection in 0..10 {
            for sequence in 0..1000 {
                let key = keys.of(connection, sequence);
                assert_eq!(key, keys.of(connection, sequence));
                counts[key as usize] += 1;
            }
        }
        assert!(
            counts.iter().all(|count| (800..1200).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn a_value_is_known_however_it_is_cut_and_no_other_is() {
        for length in [0, 1, 3, 16, 17, 100] {
            let mut bytes = vec![0; length];
            Value::of(42).write(&mut bytes);
            bytes.extend_from_slice(LINE_END);
            for from in 0..bytes.len() {
                for to in from..=bytes.len() {
                    let is = |key| Value::of(key).is_at(from, length, &bytes[from..to]);
                    assert!(is(42), "{length}: {from}..{to}");
                    assert!(
                        !is(43) || from > 0 || to == 0 || length == 0,
                        "{length}: {from}..{to}"
                    );
                }
            }
            assert!(!Value::of(42).is_at(0, length + 1, &bytes), "{length}");
            bytes.push(b'x');
            assert!(!Value::of(42).is_at(0, length, &bytes), "{length}");
        }
    }
}
