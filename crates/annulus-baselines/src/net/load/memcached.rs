//! Memcached: get and set in the text protocol, and their responses.

use super::keyed::{Command, Expected, KEY_DIGITS, Meaning, unexpected, write_key};
use super::plan::MemcachedCommand;
use super::protocol::Completed;
use super::tally::Kind;

/// The response to a get, up to the digits of the key.
const VALUE: &[u8] = b"VALUE key:";

impl Command for MemcachedCommand {
    const AFTER_VALUE: Option<&'static [u8]> = Some(b"END");

    fn head(self, value_bytes: usize) -> Vec<u8> {
        match self {
            MemcachedCommand::Get => b"get key:000000000000\r\n".to_vec(),
            MemcachedCommand::Set => {
                format!("set key:000000000000 0 0 {value_bytes}\r\n").into_bytes()
            }
        }
    }

    fn sends_value(self) -> bool {
        self == MemcachedCommand::Set
    }

    fn meaning(self, line: &[u8], expected: &Expected) -> Result<Meaning, String> {
        match self {
            MemcachedCommand::Set if line == b"STORED" => Ok(Meaning::Complete(Completed::Correct)),
            MemcachedCommand::Get if line == b"END" => expected.no_value(),
            MemcachedCommand::Get if line.starts_with(VALUE) => {
                let rest = line[VALUE.len()..].split_at_checked(KEY_DIGITS);
                let Some((digits, flags)) = rest else {
                    return unexpected(line);
                };
                let mut key_digits = [0; KEY_DIGITS];
                write_key(expected.key, &mut key_digits);
                match flags.strip_prefix(b" 0 ") {
                    Some(length) if digits == key_digits => expected.value(length),
                    _ => unexpected(line),
                }
            }
            _ if [&b"ERROR"[..], b"CLIENT_ERROR", b"SERVER_ERROR"]
                .iter()
                .any(|error| line.starts_with(error)) =>
            {
                let text = String::from_utf8_lossy(line).into_owned();
                Ok(Meaning::Complete(Completed::Error(
                    Kind::MemcachedError,
                    text,
                )))
            }
            _ => unexpected(line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::load::keyed::{Keys, Store, Value};
    use crate::net::load::protocol::{Protocol, Step, read_in_pieces};

    type Memcached = Store<MemcachedCommand>;

    const KEYS: Keys = Keys { count: 10, seed: 1 };

    fn get(filled: bool) -> Memcached {
        Memcached::new(MemcachedCommand::Get, KEYS, 5, filled)
    }

    /// A response to a get of the tests' key, with the value of key `of`.
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
            Step::Done(0, Completed::Correct),
            Step::Done(0, Completed::Nil),
            Step::Done(
                0,
                Completed::Error(Kind::MemcachedError, "SERVER_ERROR out of memory".into()),
            ),
            Step::Done(0, Completed::Correct),
        ];
        for piece in 1..=text.len() {
            let steps = read_in_pieces(&mut get(false), &text, piece);
            assert_eq!(steps, expected, "pieces of {piece}");
            let steps = read_in_pieces(&mut get(true), &right, piece);
            assert_eq!(steps, expected[..1], "pieces of {piece}");
        }
    }

    #[test]
    fn a_response_to_another_request_is_wrong_however_it_is_cut() {
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
