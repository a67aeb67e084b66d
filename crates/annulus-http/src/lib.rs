//! A static HTTP server on Annulus. The tool's `annulus serve http` is this crate and a command line.
//!
//! [`site`] knows files: which one a path names, and what the response to a request for it is. It knows no
//! connection.
#![forbid(unsafe_code)]

mod clock;
mod conn;
mod http2;
mod listeners;
mod log;
mod options;
mod per_core;
mod server;
pub mod site;
mod stall;
mod tls;
mod transport;
mod watch;

pub use log::{AccessLog, LogFormat};
pub use options::{Limits, Options};
pub use server::{serve, serve_all};
pub use tls::config as tls_config;
