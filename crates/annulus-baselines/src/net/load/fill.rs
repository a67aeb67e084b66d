//! Stores a value for each key before the load starts, so that responses can be checked.

use std::io::{self, BufRead, BufReader, Read, Write};

use super::address::Target;
use super::keyed::Keys;
use super::memcached::Memcached;
use super::plan::{MemcachedCommand, RedisCommand, Workload};
use super::protocol::Protocol;
use super::redis::Redis;

/// The number of requests sent before their responses are read.
const BATCH: u64 = 128;
const LINE_BYTES_MAX: u64 = 1024;

/// Stores the value of each key of the workload. Does nothing if the workload has no keys.
pub fn fill(target: &Target, workload: &Workload) -> io::Result<()> {
    match *workload {
        Workload::Redis {
            keys, value_bytes, ..
        } => {
            let keys = Keys {
                count: keys,
                seed: 0,
            };
            let redis = Redis::new(RedisCommand::Set, keys, value_bytes, false);
            let request = redis.template();
            each(target, keys, request, b"+OK", |key, request| {
                redis.write(key, request)
            })
        }
        Workload::Memcached {
            keys, value_bytes, ..
        } => {
            let keys = Keys {
                count: keys,
                seed: 0,
            };
            let memcached = Memcached::new(MemcachedCommand::Set, keys, value_bytes, false);
            let request = memcached.template();
            each(target, keys, request, b"STORED", |key, request| {
                memcached.write(key, request);
            })
        }
        Workload::Echo { .. } | Workload::Http { .. } => Ok(()),
    }
}

fn each(
    target: &Target,
    keys: Keys,
    mut request: Vec<u8>,
    done: &[u8],
    write: impl Fn(u64, &mut [u8]),
) -> io::Result<()> {
    let mut stream = BufReader::with_capacity(64 << 10, target.connect()?);
    let (mut line, mut next) = (Vec::new(), 0);
    while next < keys.count {
        let batch = next..(next + BATCH).min(keys.count);
        next = batch.end;
        let mut bytes = Vec::new();
        for key in batch.clone() {
            write(key, &mut request);
            bytes.extend_from_slice(&request);
        }
        stream.get_mut().write_all(&bytes)?;
        for _ in batch {
            line.clear();
            (stream.by_ref().take(LINE_BYTES_MAX)).read_until(b'\n', &mut line)?;
            if line.trim_ascii_end() != done {
                let reply = String::from_utf8_lossy(&line).trim_end().to_string();
                return Err(io::Error::other(format!("a set returned `{reply}`")));
            }
        }
    }
    Ok(())
}
