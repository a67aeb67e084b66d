//! Against stores of a few lines that keep what they are given, or that get something wrong.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

use super::{assert_counted, assert_good, outcome, plan, serve};
use crate::net::load::{
    KeySpace, Kind, MemcachedCommand, Plan, RedisCommand, Target, Workload, fill,
};

type Map = Arc<Mutex<HashMap<Vec<u8>, Vec<u8>>>>;

/// The words of a request, the value of a memcached set the last of them; nothing at the end of the stream.
fn words(stream: &mut BufReader<TcpStream>) -> Option<Vec<Vec<u8>>> {
    let line = |stream: &mut BufReader<TcpStream>| {
        let mut line = Vec::new();
        stream
            .read_until(b'\n', &mut line)
            .ok()
            .filter(|&bytes| bytes > 0)?;
        Some(String::from_utf8(line).unwrap().trim_end().to_string())
    };
    let bytes = |stream: &mut BufReader<TcpStream>, length: &str| {
        let mut bytes = vec![0; length.parse::<usize>().unwrap() + 2];
        stream.read_exact(&mut bytes).ok()?;
        bytes.truncate(bytes.len() - 2);
        Some(bytes)
    };
    let first = line(stream)?;
    if let Some(count) = first.strip_prefix('*') {
        let word = |stream: &mut BufReader<TcpStream>| {
            let length = line(stream)?;
            bytes(stream, &length[1..])
        };
        return (0..count.parse::<usize>().unwrap())
            .map(|_| word(stream))
            .collect();
    }
    let mut words: Vec<Vec<u8>> = first
        .split(' ')
        .map(|word| word.as_bytes().to_vec())
        .collect();
    if words[0] == b"set" {
        words.push(bytes(stream, first.rsplit(' ').next()?)?);
    }
    Some(words)
}

fn response(words: &[Vec<u8>], map: &Map) -> Vec<u8> {
    let mut map = map.lock().unwrap();
    let text = |parts: &[&[u8]]| parts.concat();
    let value = words.get(1).and_then(|key| map.get(key));
    match (&words[0][..], value) {
        (b"PING", _) => b"+PONG\r\n".to_vec(),
        (b"GET", None) => b"$-1\r\n".to_vec(),
        (b"GET", Some(value)) => {
            text(&[format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"])
        }
        (b"get", None) => b"END\r\n".to_vec(),
        (b"get", Some(value)) => {
            let length = format!(" 0 {}\r\n", value.len());
            text(&[
                b"VALUE ",
                &words[1],
                length.as_bytes(),
                value,
                b"\r\nEND\r\n",
            ])
        }
        (set, _) => {
            let redis = set == b"SET";
            map.insert(words[1].clone(), words.last().unwrap().clone());
            if redis {
                b"+OK\r\n".to_vec()
            } else {
                b"STORED\r\n".to_vec()
            }
        }
    }
}

/// Starts a store whose responses pass through `make`.
fn store(make: impl Fn(Vec<u8>) -> Vec<u8> + Send + Sync + 'static) -> Target {
    let map = Map::default();
    serve(move |stream, _| {
        let mut to = stream.try_clone().unwrap();
        let mut from = BufReader::new(stream);
        while let Some(words) = words(&mut from) {
            if to.write_all(&make(response(&words, &map))).is_err() {
                return;
            }
        }
    })
}

fn space(value_bytes: usize, filled: bool) -> KeySpace {
    KeySpace {
        keys: 100,
        value_bytes,
        filled,
    }
}

fn redis(command: RedisCommand, value_bytes: usize, filled: bool) -> Workload {
    Workload::Redis(command, space(value_bytes, filled))
}

fn memcached(command: MemcachedCommand, value_bytes: usize, filled: bool) -> Workload {
    Workload::Memcached(command, space(value_bytes, filled))
}

#[test]
fn what_was_filled_is_found_with_its_value() {
    for value_bytes in [3, 5000] {
        for workload in [
            redis(RedisCommand::Get, value_bytes, true),
            redis(RedisCommand::Set, value_bytes, true),
            memcached(MemcachedCommand::Get, value_bytes, true),
            memcached(MemcachedCommand::Set, value_bytes, true),
        ] {
            let target = store(|response| response);
            fill(&target, &workload).unwrap();
            assert_good(&Plan {
                pipeline: 4,
                ..plan(target, workload)
            });
        }
    }
}

#[test]
fn a_store_that_is_not_filled_has_nothing() {
    for workload in [
        redis(RedisCommand::Get, 3, false),
        memcached(MemcachedCommand::Get, 3, false),
    ] {
        let plan = plan(store(|response| response), workload);
        let Some(outcome) = outcome(&plan) else {
            return;
        };
        assert_eq!(outcome.faults, Vec::<String>::new());
        assert_eq!(outcome.nils, outcome.all_responses);
    }
}

#[test]
fn a_value_that_has_changed_is_counted() {
    for workload in [
        redis(RedisCommand::Get, 100, true),
        memcached(MemcachedCommand::Get, 100, true),
    ] {
        let target = store(|mut response| {
            if response.len() > 100 {
                let last_of_value = response.len() - b"?\r\nEND\r\n".len();
                response[last_of_value] ^= 1;
            }
            response
        });
        fill(&target, &workload).unwrap();
        assert_counted(Kind::WrongResponse, &plan(target, workload));
    }
}

#[test]
fn what_a_store_says_instead_is_counted_by_its_kind() {
    let target = store(|_| b"-ERR no\r\n".to_vec());
    let workload = redis(RedisCommand::Get, 3, false);
    assert_counted(Kind::RedisError, &plan(target.clone(), workload.clone()));
    let refused = fill(&target, &workload).unwrap_err().to_string();
    assert!(refused.contains("returned `-ERR no`"), "{refused}");
    let target = store(|_| b"SERVER_ERROR out of memory storing object\r\n".to_vec());
    let workload = memcached(MemcachedCommand::Set, 3, false);
    assert_counted(Kind::MemcachedError, &plan(target, workload));
}
