//! What a server may be told, and how much of everything it allows.

use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::rustls::ServerConfig;

use crate::log::AccessLog;
use crate::site::SiteOptions;

/// How a server is to be. Each core gets a copy.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// What is served.
    pub site: SiteOptions,
    /// How much of everything.
    pub limits: Limits,
    /// Where each response is written down; nowhere by default.
    pub log: Option<AccessLog>,
    /// HTTPS instead of HTTP; see [`tls_config`](crate::tls_config).
    pub tls: Option<Arc<ServerConfig>>,
}

impl Options {
    /// Serves `site` by HTTP, with the limits' defaults and without a log.
    pub fn new(site: SiteOptions) -> Options {
        Options {
            site,
            limits: Limits::default(),
            log: None,
            tls: None,
        }
    }
}

/// Bounds, so that no client takes more than its part. Each has a default that suits browsers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of a request's line and fields; 431 beyond.
    pub head_bytes: usize,
    /// Bytes of a request's target; 414 beyond.
    pub target_bytes: usize,
    /// Fields of a request, at most 128; 431 beyond.
    pub fields: usize,
    /// Bytes of a request's body, which is read and means nothing; 413 beyond.
    pub body_bytes: u64,
    /// Requests of one connection, which ends after them; 0 is no limit.
    pub requests: u64,
    /// Connections of one core, or fewer if its share of the process's descriptors (`RLIMIT_NOFILE`, looked at when
    /// [`serve`](crate::serve) is called) is smaller. Beyond it the connection that has waited longest for a request is
    /// closed; others wait to be accepted.
    pub connections: usize,
    /// From the first byte of a request to the end of its head; 408 after it.
    pub head_timeout: Duration,
    /// From the end of the head to the end of the body; 408 after it.
    pub body_timeout: Duration,
    /// Without a request.
    pub idle_timeout: Duration,
    /// Without the client acknowledging anything of a response. A slow client is waited for as long as it takes
    /// something.
    pub send_timeout: Duration,
    /// For the handshake of TLS.
    pub handshake_timeout: Duration,
    /// Streams of one connection of HTTP/2 at once.
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
