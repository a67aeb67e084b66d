//! Stores a value for each key before the load starts, so that responses can be checked.

use std::io::{self, BufRead, BufReader, Read, Write};

use super::address::Target;
use super::keyed::{Command, Store};
use super::plan::{KeySpace, MemcachedCommand, RedisCommand, Workload};
use super::protocol::Protocol;

/// The number of requests sent before their responses are read.
const BATCH: u64 = 128;
const LINE_BYTES_MAX: u64 = 1024;

/// Stores the value of each key of the workload. Does nothing if the workload has no keys.
pub fn fill(target: &Target, workload: &Workload) -> io::Result<()> {
    match *workload {
        Workload::Redis(_, space) => each(target, RedisCommand::Set, space, b"+OK"),
        Workload::Memcached(_, space) => each(target, MemcachedCommand::Set, space, b"STORED"),
        Workload::Echo { .. } | Workload::Http { .. } => Ok(()),
    }
}

/// Sends `set` for each key. `done` is the line of its success.
fn each<C: Command>(target: &Target, set: C, space: KeySpace, done: &[u8]) -> io::Result<()> {
    let store = Store::of(set, space, 0);
    let mut request = store.template();
    let mut stream = BufReader::with_capacity(64 << 10, target.connect()?);
    let (mut line, mut next) = (Vec::new(), 0);
    while next < space.keys {
        let batch = next..(next + BATCH).min(space.keys);
        next = batch.end;
        let mut bytes = Vec::new();
        for key in batch.clone() {
            store.write(key, &mut request);
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
