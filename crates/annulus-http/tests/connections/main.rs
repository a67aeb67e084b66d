//! Connections of well-behaved and other clients: raw sockets against a server in this process, on each backend.

mod ends;
mod files;
mod frames;
mod framing;
mod http2;
mod many;
mod pipeline;
mod server;
mod slow;
mod stream_tls;
mod tls;
mod written;
