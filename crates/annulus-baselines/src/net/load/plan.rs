//! What is asked of the generator.

use std::sync::Arc;
use std::time::Duration;

use super::address::Target;

/// One run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Whom to ask.
    pub target: Target,
    /// What to ask.
    pub workload: Workload,
    /// Connections of all threads together.
    pub connections: usize,
    /// Requests in flight on each connection, at most.
    pub pipeline: usize,
    /// When the next request is due.
    pub pace: Pace,
    /// A connection for each request.
    pub reconnect: bool,
    /// Threads, each with its ring and its share of the connections.
    pub threads: usize,
    /// Processors for the threads, in turn; empty: wherever the kernel puts them.
    pub cpus: Vec<usize>,
    /// How long the load runs before it is measured.
    pub warmup: Duration,
    /// How long it is measured.
    pub runtime: Duration,
    /// A request or connection that takes longer is an error, and its connection is opened anew.
    pub timeout: Duration,
    /// Of the keys and of the bytes sent.
    pub seed: u64,
}

/// When the next request is due.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// With the answer before it: each connection keeps its pipeline full.
    Closed,
    /// By the clock: N a second over all connections, whatever the server does.
    Rate(f64),
}

/// What is asked, and what a right answer is.
#[derive(Clone, Debug)]
pub enum Workload {
    /// N bytes, which must come back.
    Echo {
        /// Length of a message.
        bytes: usize,
    },
    /// `GET path`, answered by any 2xx.
    Http {
        /// The path, and what stands in `Host:`.
        path: String,
        /// The `Host:` header.
        host: String,
        /// What every answer's body must be, if that is known.
        body: Option<Arc<[u8]>>,
        /// Of N answers of a connection one is compared with it byte for byte; of the others, the length.
        compared: u64,
    },
    /// A redis command over keys of the form `key:000000000042`.
    Redis {
        /// Which.
        command: RedisCommand,
        /// How many keys there are.
        keys: u64,
        /// Length of a value; answers to GET are compared with the key's value if `filled`.
        value_bytes: usize,
        /// Every key has its value of that length: [`super::fill`] was there.
        filled: bool,
    },
    /// A memcached command, in the text protocol, over keys of the same form.
    Memcached {
        /// Which.
        command: MemcachedCommand,
        /// How many keys there are.
        keys: u64,
        /// As for redis.
        value_bytes: usize,
        /// As for redis.
        filled: bool,
    },
}

/// The redis commands that are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedisCommand {
    /// `GET key`
    Get,
    /// `SET key value`
    Set,
    /// `PING`
    Ping,
}

/// The memcached commands that are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemcachedCommand {
    /// `get key`
    Get,
    /// `set key 0 0 length`
    Set,
}
