//! memcached: `get` and `set` in the text protocol, and their responses.

use super::keyed::{KEY_DIGITS, Keys, Value, write_key};
use super::plan::MemcachedCommand;
use super::protocol::{Completed, Protocol, Step};
use super::tally::Kind;

/// The maximum length of a response line.
const LINE_BYTES_MAX: usize = 1024;
/// Both commands have three letters.
const DIGITS_AT: usize = b"get key:".len();
/// The bytes before the digits of the key in a response to `get`.
const FOUND: &[u8] = b"VALUE key:";

pub(super) struct Memcached {
    command: MemcachedCommand,
    request: Vec<u8>,
    keys: Keys,
    /// The range of the value in a `set`.
    value_at: std::ops::Range<usize>,
    /// The length of each value, if the keys have known values.
    value_bytes: Option<usize>,
}

/// A response that has begun to arrive.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// The received part of a line.
    line: Vec<u8>,
    /// The length of the value.
    length: usize,
    /// The remaining bytes of the value and its line end.
    left: usize,
    /// `true` if a value has arrived, so that `END` follows.
    has_value: bool,
}

enum Meaning {
    Complete(Completed),
    Follow(usize),
}

impl Memcached {
    pub(super) fn new(
        command: MemcachedCommand,
        keys: Keys,
        value_bytes: usize,
        filled: bool,
    ) -> Memcached {
        let mut value_at = 0..0;
        let request = match command {
            MemcachedCommand::Get => b"get key:000000000000\r\n".to_vec(),
            MemcachedCommand::Set => {
                let head = format!("set key:000000000000 0 0 {value_bytes}\r\n");
                value_at = head.len()..head.len() + value_bytes;
                [head.as_bytes(), &vec![b'x'; value_bytes], b"\r\n"].concat()
            }
        };
        Memcached {
            command,
            request,
            keys,
            value_at,
            value_bytes: filled.then_some(value_bytes),
        }
    }

    /// Writes the key into a request.
    #[inline]
    pub(super) fn write(&self, key: u64, request: &mut [u8]) {
        write_key(key, &mut request[DIGITS_AT..DIGITS_AT + KEY_DIGITS]);
        Value::of(key).write(&mut request[self.value_at.clone()]);
    }

    /// Returns the meaning of a line.
    fn meaning(&self, has_value: bool, key: u64, line: &[u8]) -> Result<Meaning, String> {
        let shown = || format!("answered `{}`", String::from_utf8_lossy(line));
        let complete = |response| Ok(Meaning::Complete(response));
        match self.command {
            _ if has_value && line == b"END" => complete(Completed::Right),
            _ if has_value => Err(shown()),
            MemcachedCommand::Set if line == b"STORED" => complete(Completed::Right),
            MemcachedCommand::Get if line == b"END" => match self.value_bytes {
                None => complete(Completed::Nil),
                Some(_) => Err(format!("key {key} was filled and has no value")),
            },
            MemcachedCommand::Get if line.starts_with(FOUND) => {
                let (digits, rest) = line[FOUND.len()..]
                    .split_at_checked(KEY_DIGITS)
                    .ok_or_else(shown)?;
                let mut key_digits = [0; KEY_DIGITS];
                write_key(key, &mut key_digits);
                if digits != key_digits {
                    return Err(format!("{} where key {key} was requested", shown()));
                }
                let rest = rest.strip_prefix(b" 0 ").ok_or_else(shown)?;
                let text = std::str::from_utf8(rest).map_err(|_| shown())?;
                let length: usize = text.parse().map_err(|_| shown())?;
                match self.value_bytes {
                    Some(value_bytes) if value_bytes != length => Err(format!(
                        "a value of {length} bytes instead of {value_bytes}"
                    )),
                    _ => Ok(Meaning::Follow(length)),
                }
            }
            _ if [&b"ERROR"[..], b"CLIENT_ERROR", b"SERVER_ERROR"]
                .iter()
                .any(|word| line.starts_with(word)) =>
            {
                let text = String::from_utf8_lossy(line).into_owned();
                complete(Completed::Error(Kind::MemcachedError, text))
            }
            _ => Err(shown()),
        }
    }

    /// Returns a line and its end, or `None` if it is incomplete.
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
}

impl Protocol for Memcached {
    type Reader = Reader;

    fn template(&self) -> Vec<u8> {
        self.request.clone()
    }

    fn stamp(&mut self, connection: u32, sequence: u64, request: &mut [u8]) {
        self.write(self.keys.of(connection, sequence), request);
    }

    #[inline]
    fn read(&mut self, reader: &mut Reader, connection: u32, sequence: u64, bytes: &[u8]) -> Step {
        let key = self.keys.of(connection, sequence);
        let mut at = 0;
        loop {
            if reader.left == 0 {
                match self.line(reader, key, &bytes[at..]) {
                    Err(why) => return Step::Wrong(why),
                    Ok(None) => return Step::More,
                    Ok(Some((used, Meaning::Complete(response)))) => {
                        reader.has_value = false;
                        return Step::Done(at + used, response);
                    }
                    Ok(Some((used, Meaning::Follow(length)))) => {
                        at += used;
                        reader.has_value = true;
                        reader.length = length;
                        reader.left = length.saturating_add(2);
                    }
                }
            }
            let take = reader.left.min(bytes.len() - at);
            if self.value_bytes.is_some() {
                let from = reader.length + 2 - reader.left;
                if !Value::of(key).is_at(from, reader.length, &bytes[at..at + take]) {
                    return Step::Wrong(format!("key {key} has another value than it was given"));
                }
            }
            at += take;
            reader.left -= take;
            if reader.left > 0 || at == bytes.len() {
                return Step::More;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::load::protocol::read_in_pieces;

    const KEYS: Keys = Keys { count: 10, seed: 1 };

    fn get(filled: bool) -> Memcached {
        Memcached::new(MemcachedCommand::Get, KEYS, 5, filled)
    }

    /// Returns a response to `get` with the value of key `of`.
    fn value(of: u64) -> Vec<u8> {
        let mut value = [0; 5];
        Value::of(of).write(&mut value);
        let head = format!("VALUE key:{:012} 0 5\r\n", KEYS.of(0, 0));
        [head.as_bytes(), &value, b"\r\nEND\r\n"].concat()
    }

    #[test]
    fn values_misses_and_errors_are_distinguished_however_they_are_cut() {
        let right = value(KEYS.of(0, 0));
        let text = [&right[..], b"END\r\nSERVER_ERROR out of memory\r\n", &right].concat();
        let expected = [
            Step::Done(0, Completed::Right),
            Step::Done(0, Completed::Nil),
            Step::Done(
                0,
                Completed::Error(Kind::MemcachedError, "SERVER_ERROR out of memory".into()),
            ),
            Step::Done(0, Completed::Right),
        ];
        for piece in 1..=text.len() {
            let steps = read_in_pieces(&mut get(false), &text, piece);
            assert_eq!(steps, expected, "pieces of {piece}");
            let steps = read_in_pieces(&mut get(true), &right, piece);
            assert_eq!(steps, expected[..1], "pieces of {piece}");
        }
    }

    #[test]
    fn a_response_to_another_question_is_wrong_however_it_is_cut() {
        let other = value(KEYS.of(0, 0) + 1);
        for text in [
            &other[..],
            b"STORED\r\n",
            b"VALUE key:000000000099 0 5\r\nabcde\r\nEND\r\n",
            b"VALUE key:1 0 5\r\n",
            b"END\r\n",
            b"\r\n",
        ] {
            for piece in 1..=text.len() {
                let steps = read_in_pieces(&mut get(true), text, piece);
                let shown = String::from_utf8_lossy(text);
                assert!(
                    matches!(steps[..], [Step::Wrong(_)]),
                    "{shown}, pieces of {piece}: {steps:?}"
                );
            }
        }
    }

    #[test]
    fn a_set_names_one_of_the_keys_and_its_value() {
        let mut memcached = Memcached::new(MemcachedCommand::Set, KEYS, 2, false);
        let mut request = memcached.template();
        memcached.stamp(0, 0, &mut request);
        let digit = KEYS.of(0, 0);
        let expected = format!("set key:00000000000{digit} 0 0 2\r\n{digit}0\r\n");
        assert_eq!(String::from_utf8(request).unwrap(), expected);
        let steps = read_in_pieces(&mut memcached, b"STORED\r\nSTORED\r\n", 3);
        assert_eq!(steps.len(), 2);
    }
}
