//! The options of a server, and its limits.

use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::rustls::ServerConfig;

use crate::log::AccessLog;
use crate::site::SiteOptions;

/// The options of a server. Each core gets a copy.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The files that are served.
    pub site: SiteOptions,
    /// Limits on sizes, numbers and times.
    pub limits: Limits,
    /// The access log; `None` by default.
    pub log: Option<AccessLog>,
    /// The TLS configuration; with one, the server speaks HTTPS only. See [`tls_config`](crate::tls_config).
    pub tls: Option<Arc<ServerConfig>>,
}

impl Options {
    /// Returns options that serve `site` over HTTP, with the default limits and without a log.
    pub fn new(site: SiteOptions) -> Options {
        Options {
            site,
            limits: Limits::default(),
            log: None,
            tls: None,
        }
    }
}

/// Limits on the resources that a client can use. The defaults suit browsers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// The largest request head in bytes. Beyond it the response is 431.
    pub head_bytes: usize,
    /// The longest request target in bytes. Beyond it the response is 414.
    pub target_bytes: usize,
    /// The largest number of header fields of a request, at most 128. Beyond it the response is 431.
    pub fields: usize,
    /// The largest request body in bytes. Bodies are read and ignored. Beyond it the response is 413.
    pub body_bytes: u64,
    /// The number of requests after which a connection is closed; 0 for no limit.
    pub requests: u64,
    /// The largest number of connections of a core.
    ///
    /// It is lower if the core's share of the descriptor limit (`RLIMIT_NOFILE` at the call of [`serve`](crate::serve))
    /// is smaller. At the limit, the connection that has waited longest for a request is closed. If none waits, new
    /// connections stay in the backlog.
    pub connections: usize,
    /// The time from the first byte of a request to the end of its head. After it the response is 408.
    pub head_timeout: Duration,
    /// The time from the end of the head to the end of the body. After it the response is 408.
    pub body_timeout: Duration,
    /// The time that a connection may wait for a request.
    pub idle_timeout: Duration,
    /// The time without any acknowledgement from the client while a response is sent. A slow client may take as long as
    /// it needs, provided that it acknowledges something within each such period. The period is longer after many
    /// acknowledged bytes, which the client may still have to read: by a second for 2,000 bytes, up to four times as
    /// long in all.
    pub send_timeout: Duration,
    /// The time for the TLS handshake.
    pub handshake_timeout: Duration,
    /// The largest number of concurrent streams of an HTTP/2 connection.
    pub streams: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            head_bytes: 16 << 10,
            target_bytes: 8 << 10,
            fields: 100,
            body_bytes: 1 << 20,
            requests: 0,
            connections: 65_536,
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(75),
            send_timeout: Duration::from_secs(30),
            handshake_timeout: Duration::from_secs(10),
            streams: 100,
        }
    }
}
