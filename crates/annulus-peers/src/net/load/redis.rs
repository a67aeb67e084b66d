//! Redis: GET, SET and PING over keys of one length, and the answers to them (RESP 2).

use std::io::{self, BufRead, BufReader, Read, Write};

use super::address::Target;
use super::plan::RedisCommand;
use super::protocol::{Answer, Protocol, Step};

/// Where the digits of a key stand: `key:000000000042`.
const KEY_DIGITS: usize = 12;
/// The longest line of an answer.
const LINE_BYTES_MAX: usize = 1024;
/// How many SETs [`fill`] sends before it reads their answers.
const FILL_BATCH: u64 = 128;

pub(super) struct Redis {
    command: RedisCommand,
    request: Vec<u8>,
    /// Where in a request the digits of its key begin.
    digits_at: usize,
    keys: u64,
    /// The length that every value has, if it is known.
    value_bytes: Option<usize>,
    rng: fastrand::Rng,
}

/// An answer that has begun.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// The first line, as far as it has come.
    line: Vec<u8>,
    /// Of a value, how many bytes are still to come, with the line's end behind them.
    left: usize,
}

impl Redis {
    pub(super) fn new(
        command: RedisCommand,
        keys: u64,
        value_bytes: usize,
        filled: bool,
        seed: u64,
    ) -> Redis {
        let request = match command {
            RedisCommand::Ping => b"*1\r\n$4\r\nPING\r\n".to_vec(),
            RedisCommand::Get => b"*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000000\r\n".to_vec(),
            RedisCommand::Set => {
                let head =
                    format!("*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000000\r\n${value_bytes}\r\n");
                [head.as_bytes(), &vec![b'x'; value_bytes], b"\r\n"].concat()
            }
        };
        Redis {
            command,
            request,
            digits_at: b"*2\r\n$3\r\nGET\r\n$16\r\nkey:".len(),
            keys,
            value_bytes: filled.then_some(value_bytes),
            rng: fastrand::Rng::with_seed(seed),
        }
    }

    fn write_key(&self, mut key: u64, request: &mut [u8]) {
        for place in (self.digits_at..self.digits_at + KEY_DIGITS).rev() {
            request[place] = b'0' + (key % 10) as u8;
            key /= 10;
        }
    }

    /// What a whole first line means, or how many bytes follow it.
    fn meaning(&self, line: &[u8]) -> Result<Meaning, String> {
        let shown = || format!("answered `{}`", String::from_utf8_lossy(line));
        let rest = line.get(1..).unwrap_or_default();
        match (line.first(), self.command) {
            (Some(b'-'), _) => {
                let text = String::from_utf8_lossy(rest).into_owned();
                Ok(Meaning::Whole(Answer::RedisError(text)))
            }
            (Some(b'+'), RedisCommand::Set) if rest == b"OK" => Ok(Meaning::Whole(Answer::Right)),
            (Some(b'+'), RedisCommand::Ping) if rest == b"PONG" => {
                Ok(Meaning::Whole(Answer::Right))
            }
            (Some(b'$'), RedisCommand::Get) if rest == b"-1" => match self.value_bytes {
                None => Ok(Meaning::Whole(Answer::Nil)),
                Some(_) => Err("a key that was filled has no value".into()),
            },
            (Some(b'$'), RedisCommand::Get) => {
                let text = std::str::from_utf8(rest).map_err(|_| shown())?;
                let length: usize = text.parse().map_err(|_| shown())?;
                match self.value_bytes {
                    Some(value_bytes) if value_bytes != length => Err(format!(
                        "a value of {length} bytes instead of {value_bytes}"
                    )),
                    _ => Ok(Meaning::Follow(length.saturating_add(2))),
                }
            }
            _ => Err(shown()),
        }
    }
}

enum Meaning {
    Whole(Answer),
    Follow(usize),
}

impl Protocol for Redis {
    type Reader = Reader;

    fn template(&self) -> Vec<u8> {
        self.request.clone()
    }

    fn stamp(&mut self, _connection: u32, _sequence: u64, request: &mut [u8]) {
        if self.command != RedisCommand::Ping {
            let key = self.rng.u64(..self.keys);
            self.write_key(key, request);
        }
    }

    #[inline]
    fn read(
        &mut self,
        reader: &mut Reader,
        _connection: u32,
        _sequence: u64,
        bytes: &[u8],
    ) -> Step {
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
                Ok(Meaning::Whole(answer)) => return Step::Done(at, answer),
                Ok(Meaning::Follow(left)) => reader.left = left,
            }
        }
        let take = reader.left.min(bytes.len() - at);
        reader.left -= take;
        match reader.left {
            0 => Step::Done(at + take, Answer::Right),
            _ => Step::More,
        }
    }
}

/// Gives each of `keys` keys a value of `value_bytes` bytes.
pub fn fill(target: &Target, keys: u64, value_bytes: usize) -> io::Result<()> {
    let redis = Redis::new(RedisCommand::Set, keys, value_bytes, false, 0);
    let mut stream = BufReader::with_capacity(64 << 10, target.connect()?);
    let (mut request, mut line) = (redis.template(), Vec::new());
    let mut next = 0;
    while next < keys {
        let batch = next..(next + FILL_BATCH).min(keys);
        next = batch.end;
        let mut bytes = Vec::new();
        for key in batch.clone() {
            redis.write_key(key, &mut request);
            bytes.extend_from_slice(&request);
        }
        stream.get_mut().write_all(&bytes)?;
        for _ in batch {
            line.clear();
            stream
                .by_ref()
                .take(LINE_BYTES_MAX as u64)
                .read_until(b'\n', &mut line)?;
            if line.trim_ascii_end() != b"+OK" {
                let said = String::from_utf8_lossy(&line).trim_end().to_string();
                return Err(io::Error::other(format!("SET was answered `{said}`")));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::load::protocol::read_in_pieces;

    #[test]
    fn values_nils_and_errors_are_told_apart_however_they_are_cut() {
        let text = b"$3\r\na\nb\r\n$-1\r\n-ERR no\r\n$0\r\n\r\n";
        let expected = [
            Step::Done(0, Answer::Right),
            Step::Done(0, Answer::Nil),
            Step::Done(0, Answer::RedisError("ERR no".into())),
            Step::Done(0, Answer::Right),
        ];
        for piece in 1..=text.len() {
            let mut redis = Redis::new(RedisCommand::Get, 10, 3, false, 1);
            assert_eq!(
                read_in_pieces(&mut redis, text, piece),
                expected,
                "pieces of {piece}"
            );
        }
    }

    #[test]
    fn an_answer_to_another_question_is_wrong() {
        for (command, text) in [
            (RedisCommand::Get, "+OK\r\n"),
            (RedisCommand::Set, "+PONG\r\n"),
            (RedisCommand::Ping, ":1\r\n"),
            (RedisCommand::Get, "$4\r\nabcd\r\n"),
            (RedisCommand::Get, "$-1\r\n"),
            (RedisCommand::Get, "\r\n"),
        ] {
            let mut redis = Redis::new(command, 10, 3, true, 1);
            let steps = read_in_pieces(&mut redis, text.as_bytes(), 100);
            assert!(matches!(steps[..], [Step::Wrong(_)]), "{text}: {steps:?}");
        }
    }

    #[test]
    fn a_request_names_one_of_the_keys() {
        let mut redis = Redis::new(RedisCommand::Set, 10, 2, false, 1);
        let mut request = redis.template();
        redis.stamp(0, 0, &mut request);
        let text = String::from_utf8(request).unwrap();
        assert!(
            text.starts_with("*3\r\n$3\r\nSET\r\n$16\r\nkey:00000000000"),
            "{text}"
        );
        assert!(text.ends_with("\r\n$2\r\nxx\r\n"), "{text}");
    }
}
