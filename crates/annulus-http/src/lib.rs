//! An HTTP server for static files on Annulus: HTTP/1.1 and HTTP/2, with or without TLS.
//!
//! This crate is for programs that serve the files of a directory. The tool's `annulus serve http` is a command line
//! for it. For an HTTP server with handlers, use the crate `annulus-hyper`.
//!
//! ```
//! use annulus::net::TcpListener;
//! use annulus::runtime::Runtime;
//! use annulus_http::Options;
//! use annulus_http::site::SiteOptions;
//!
//! # fn main() -> std::io::Result<()> {
//! # let dir = tempfile::tempdir()?;
//! # let root = dir.path();
//! let mut site = SiteOptions::default();
//! site.root = root.into();
//! let options = Options::new(site);
//!
//! Runtime::builder().cores(1).run(|_core| {
//!     let options = options.clone();
//!     async move {
//!         let listener = TcpListener::bind("127.0.0.1:0")?;
//!         println!("http://{}/", listener.local_addr()?);
//! #       annulus::runtime::handle().shutdown(); // The example ends at once.
//!         annulus_http::serve(listener, &options).await
//!     }
//! })
//! # }
//! ```
//!
//! # Structure
//!
//! [`serve`] accepts connections on one core. [`Options`] holds the [limits](Limits), the [access log](AccessLog) and
//! [TLS](tls_config). The module [`site`] maps requests to files. It is independent of connections and can be used
//! without them.
//!
//! # Features and fallback
//!
//! The crate has no features. The backend is that of the runtime: without io_uring the same program runs on epoll
//! ([`annulus::Backend`]).
//!
//! # Cancellation
//!
//! [`serve`] returns when the runtime is stopping. Idle connections are then closed, and requests in progress have the
//! runtime's grace period to finish. Dropping its future stops accepting, and open connections go on.
//!
//! # Where to go next
//!
//! - `examples/static_files.rs`: a server with a graceful end. `examples/tls_echo.rs`: TLS without HTTP.
//! - docs/reference/http.md: protocols, limits, the mapping of paths to files, ranges, caching, and how bodies are
//!   sent.
#![forbid(unsafe_code)]
// They panic if the output is closed or full.
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout))]

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
