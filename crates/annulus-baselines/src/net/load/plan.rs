//! The options of a run.

use std::sync::Arc;
use std::time::Duration;

use super::address::Target;

/// The options of one run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The server.
    pub target: Target,
    /// The requests.
    pub workload: Workload,
    /// The number of connections of all threads.
    pub connections: usize,
    /// The maximum number of requests in flight on each connection.
    pub pipeline: usize,
    /// The time of the next request.
    pub pace: Pace,
    /// Opens a connection for each request.
    pub reconnect: bool,
    /// Closes each connection when its request is sent, without receiving. Requires `reconnect`. A request that is sent
    /// counts as a response.
    pub disconnect: bool,
    /// The number of threads. Each has a ring and a share of the connections.
    pub threads: usize,
    /// The processors of the threads, assigned round-robin. If empty, the kernel chooses.
    pub cpus: Vec<usize>,
    /// The time under load before the measurement.
    pub warmup: Duration,
    /// The measured time.
    pub runtime: Duration,
    /// The time limit of a request or a connect. On expiry it counts as an error, and the connection is reopened.
    pub timeout: Duration,
    /// The seed of keys and message contents.
    pub seed: u64,
}

/// The time of the next request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Immediately after a response: each connection keeps its pipeline full (a closed loop).
    Closed,
    /// At a fixed rate: N requests per second over all connections, however fast the server is (an open loop).
    Rate(f64),
}

/// The requests, and the responses that are correct.
#[derive(Clone, Debug)]
pub enum Workload {
    /// Messages that the server must send back unchanged.
    Echo {
        /// The length of a message in bytes.
        bytes: usize,
    },
    /// `GET path`, or `POST path`. Any 2xx status is correct.
    Http {
        /// The path.
        path: String,
        /// The length of the body of a POST. `None`: GET.
        post_bytes: Option<usize>,
        /// The `Host:` header.
        host: String,
        /// The expected body of each response, if known.
        body: Option<Arc<[u8]>>,
        /// Compares one of N response bodies byte by byte, and only the length of the others.
        compared: u64,
    },
    /// A Redis command on keys such as `key:000000000042`.
    Redis(RedisCommand, KeySpace),
    /// A memcached command in the text protocol, on the same keys.
    Memcached(MemcachedCommand, KeySpace),
}

/// The keys of a store, and their values.
#[derive(Clone, Copy, Debug)]
pub struct KeySpace {
    /// The number of keys.
    pub keys: u64,
    /// The length of a value in bytes. If `filled`, responses to a get are compared with the key's value.
    pub value_bytes: usize,
    /// Each key has its value, because [`super::fill`] ran before.
    pub filled: bool,
}

/// A Redis command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedisCommand {
    /// `GET key`
    Get,
    /// `SET key value`
    Set,
    /// `PING`
    Ping,
}

/// A memcached command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemcachedCommand {
    /// `get key`
    Get,
    /// `set key 0 0 length`
    Set,
}
