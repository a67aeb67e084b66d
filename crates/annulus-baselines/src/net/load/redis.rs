//! Redis: GET, SET and PING on keys of one length, and their responses (RESP 2).

use super::keyed::{KEY_DIGITS, Keys, Value, write_key};
use super::plan::RedisCommand;
use super::protocol::{Completed, Protocol, Step};
use super::tally::Kind;

/// The maximum length of a response line.
const LINE_BYTES_MAX: usize = 1024;
/// The offset of the key's digits in a request.
const DIGITS_AT: usize = b"*2\r\n$3\r\nGET\r\n$16\r\nkey:".len();

pub(super) struct Redis {
    command: RedisCommand,
    request: Vec<u8>,
    keys: Keys,
    /// The range of the value in a SET.
    value_at: std::ops::Range<usize>,
    /// The length of each value, if the keys have known values.
    value_bytes: Option<usize>,
}

/// A response that has begun to arrive.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// The received part of the first line.
    line: Vec<u8>,
    /// The length of the value.
    length: usize,
    /// The remaining bytes of the value and its line end.
    left: usize,
}

impl Redis {
    pub(super) fn new(
        command: RedisCommand,
        keys: Keys,
        value_bytes: usize,
        filled: bool,
    ) -> Redis {
        let mut value_at = 0..0;
        let request = match command {
            RedisCommand::Ping => b"*1\r\n$4\r\nPING\r\n".to_vec(),
            RedisCommand::Get => b"*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000000\r\n".to_vec(),
            RedisCommand::Set => {
                let head =
                    format!("*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000000\r\n${value_bytes}\r\n");
                value_at = head.len()..head.len() + value_bytes;
                [head.as_bytes(), &vec![b'x'; value_bytes], b"\r\n"].concat()
            }
        };
        Redis {
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

    /// Returns the meaning of a complete first line.
    fn meaning(&self, line: &[u8]) -> Result<Meaning, String> {
        let shown = || format!("answered `{}`", String::from_utf8_lossy(line));
        let rest = line.get(1..).unwrap_or_default();
        match (line.first(), self.command) {
            (Some(b'-'), _) => {
                let text = String::from_utf8_lossy(rest).into_owned();
                Ok(Meaning::Complete(Completed::Error(Kind::RedisError, text)))
            }
            (Some(b'+'), RedisCommand::Set) if rest == b"OK" => {
                Ok(Meaning::Complete(Completed::Right))
            }
            (Some(b'+'), RedisCommand::Ping) if rest == b"PONG" => {
                Ok(Meaning::Complete(Completed::Right))
            }
            (Some(b'$'), RedisCommand::Get) if rest == b"-1" => match self.value_bytes {
                None => Ok(Meaning::Complete(Completed::Nil)),
                Some(_) => Err("a key that was filled has no value".into()),
            },
            (Some(b'$'), RedisCommand::Get) => {
                let text = std::str::from_utf8(rest).map_err(|_| shown())?;
                let length: usize = text.parse().map_err(|_| shown())?;
                match self.value_bytes {
                    Some(value_bytes) if value_bytes != length => Err(format!(
                        "a value of {length} bytes instead of {value_bytes}"
                    )),
                    _ => Ok(Meaning::Follow(length)),
                }
            }
            _ => Err(shown()),
        }
    }
}

enum Meaning {
    Complete(Completed),
    Follow(usize),
}

impl Protocol for Redis {
    type Reader = Reader;

    fn template(&self) -> Vec<u8> {
        self.request.clone()
    }

    fn stamp(&mut self, connection: u32, sequence: u64, request: &mut [u8]) {
        if self.command != RedisCommand::Ping {
            self.write(self.keys.of(connection, sequence), request);
        }
    }

    #[inline]
    fn read(&mut self, reader: &mut Reader, connection: u32, sequence: u64, bytes: &[u8]) -> Step {
        let mut at = 0;
        if reader.left == 0 {
            let end = bytes.iter().position(|&byte| byte == b'\n');
            let Some(end) = end else {
                reader.line.extend_from_slice(bytes);
                return match reader.line.len() > LINE_BYTES_MAX {
                    true => Step::Wrong(format!("a line of more than {LINE_BYTES_MAX} bytes")),
                    false => Step::More,
                };
            };
            at = end + 1;
            let meaning = if reader.line.is_empty() {
                self.meaning(bytes[..end].trim_ascii_end())
            } else {
                reader.line.extend_from_slice(&bytes[..end]);
                let meaning = self.meaning(reader.line.trim_ascii_end());
                reader.line.clear();
                meaning
            };
            match meaning {
                Err(why) => return Step::Wrong(why),
                Ok(Meaning::Complete(response)) => return Step::Done(at, response),
                Ok(Meaning::Follow(length)) => {
                    reader.length = length;
                    reader.left = length.saturating_add(2);
                }
            }
        }
        let take = reader.left.min(bytes.len() - at);
        if self.value_bytes.is_some() {
            let key = self.keys.of(connection, sequence);
            let from = reader.length + 2 - reader.left;
            if !Value::of(key).is_at(from, reader.length, &bytes[at..at + take]) {
                return Step::Wrong(format!("key {key} has another value than it was given"));
            }
        }
        reader.left -= take;
        match reader.left {
            0 => Step::Done(at + take, Completed::Right),
            _ => Step::More,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::load::protocol::read_in_pieces;

    const KEYS: Keys = Keys { count: 10, seed: 1 };

    #[test]
    fn values_nils_and_errors_are_distinguished_however_they_are_cut() {
        let text = b"$3\r\na\nb\r\n$-1\r\n-ERR no\r\n$0\r\n\r\n";
        let expected = [
            Step::Done(0, Completed::Right),
            Step::Done(0, Completed::Nil),
            Step::Done(0, Completed::Error(Kind::RedisError, "ERR no".into())),
            Step::Done(0, Completed::Right),
        ];
        for piece in 1..=text.len() {
            let mut redis = Redis::new(RedisCommand::Get, KEYS, 3, false);
            assert_eq!(
                read_in_pieces(&mut redis, text, piece),
                expected,
                "pieces of {piece}"
            );
        }
    }

    #[test]
    fn a_response_to_another_question_is_wrong() {
        for (command, text) in [
            (RedisCommand::Get, "+OK\r\n"),
            (RedisCommand::Set, "+PONG\r\n"),
            (RedisCommand::Ping, ":1\r\n"),
            (RedisCommand::Get, "$4\r\nabcd\r\n"),
            (RedisCommand::Get, "$-1\r\n"),
            (RedisCommand::Get, "\r\n"),
        ] {
            let mut redis = Redis::new(command, KEYS, 3, true);
            let steps = read_in_pieces(&mut redis, text.as_bytes(), 100);
            assert!(matches!(steps[..], [Step::Wrong(_)]), "{text}: {steps:?}");
        }
    }

    #[test]
    fn a_value_of_another_key_is_wrong_however_it_is_cut() {
        let key = KEYS.of(0, 0);
        let mut value = [0; 5];
        Value::of(key).write(&mut value);
        let right = [&b"$5\r\n"[..], &value, b"\r\n"].concat();
        value[4] ^= 1;
        let wrong = [&b"$5\r\n"[..], &value, b"\r\n"].concat();
        for piece in 1..=right.len() {
            let mut redis = Redis::new(RedisCommand::Get, KEYS, 5, true);
            let steps = read_in_pieces(&mut redis, &right, piece);
            assert_eq!(
                steps,
                [Step::Done(0, Completed::Right)],
                "pieces of {piece}"
            );
            let steps = read_in_pieces(&mut redis, &wrong, piece);
            assert!(
                matches!(steps[..], [Step::Wrong(_)]),
                "pieces of {piece}: {steps:?}"
            );
        }
    }

    #[test]
    fn a_request_names_one_of_the_keys_and_its_value() {
        let mut redis = Redis::new(RedisCommand::Set, KEYS, 2, false);
        let mut request = redis.template();
        redis.stamp(0, 0, &mut request);
        let text = String::from_utf8(request).unwrap();
        let digit = KEYS.of(0, 0);
        let expected =
            format!("*3\r\n$3\r\nSET\r\n$16\r\nkey:00000000000{digit}\r\n$2\r\n{digit}0\r\n");
        assert_eq!(text, expected);
    }
}
