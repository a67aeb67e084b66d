//! Redis: GET, SET and PING over keys of one length, and their responses (RESP 2).

use super::keyed::{Command, Expected, Meaning, unexpected};
use super::plan::RedisCommand;
use super::protocol::Completed;
use super::tally::Kind;

impl Command for RedisCommand {
    const AFTER_VALUE: Option<&'static [u8]> = None;

    fn head(self, value_bytes: usize) -> Vec<u8> {
        match self {
            RedisCommand::Ping => b"*1\r\n$4\r\nPING\r\n".to_vec(),
            RedisCommand::Get => b"*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000000\r\n".to_vec(),
            RedisCommand::Set => {
                format!("*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000000\r\n${value_bytes}\r\n")
                    .into_bytes()
            }
        }
    }

    fn sends_value(self) -> bool {
        self == RedisCommand::Set
    }

    fn meaning(self, line: &[u8], expected: &Expected) -> Result<Meaning, String> {
        match (self, line) {
            (_, [b'-', rest @ ..]) => {
                let text = String::from_utf8_lossy(rest).into_owned();
                Ok(Meaning::Complete(Completed::Error(Kind::RedisError, text)))
            }
            (RedisCommand::Set, b"+OK") | (RedisCommand::Ping, b"+PONG") => {
                Ok(Meaning::Complete(Completed::Correct))
            }
            (RedisCommand::Get, b"$-1") => expected.no_value(),
            (RedisCommand::Get, [b'$', length @ ..]) => expected.value(length),
            _ => unexpected(line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::load::keyed::{Keys, Store, Value};
    use crate::net::load::protocol::{Protocol, Step, read_in_pieces};

    type Redis = Store<RedisCommand>;

    const KEYS: Keys = Keys { count: 10, seed: 1 };

    #[test]
    fn values_nils_and_errors_are_distinguished_however_they_are_cut() {
        let text = b"$3\r\na\nb\r\n$-1\r\n-ERR no\r\n$0\r\n\r\n";
        let expected = [
            Step::Done(0, Completed::Correct),
            Step::Done(0, Completed::Nil),
            Step::Done(0, Completed::Error(Kind::RedisError, "ERR no".into())),
            Step::Done(0, Completed::Correct),
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
    fn a_response_to_another_request_is_wrong() {
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
                [Step::Done(0, Completed::Correct)],
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
