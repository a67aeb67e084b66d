//! Connections as clients make them, well-behaved and not: raw sockets against a server in this process, on every
//! backend.

mod ends;
mod files;
mod frames;
mod framing;
mod http2;
mod many;
mod pipeline;
mod server;
mod slow;
mod tls;
mod written;
