//! hyper on an Annulus runtime: HTTP/1.1 and HTTP/2 servers and clients.
//!
//! This crate is for programs that use hyper's services and bodies, or libraries built on hyper such
//! as axum, and want Annulus's sockets, tasks and timers underneath.
//!
//! ```
//! use std::convert::Infallible;
//!
//! use annulus::net::{TcpListener, TcpStream};
//! use annulus::runtime::{self, Runtime};
//! use annulus_hyper::{HyperStream, serve};
//! use http_body_util::{BodyExt, Empty, Full};
//! use hyper::body::{Bytes, Incoming};
//! use hyper::service::service_fn;
//! use hyper::{Request, Response};
//!
//! async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
//!     Ok(Response::new(Full::new(Bytes::from_static(b"Hello, World!"))))
//! }
//!
//! # fn main() -> std::io::Result<()> {
//! Runtime::builder().cores(1).run(|_core| async {
//!     // A server, in a task.
//!     let listener = TcpListener::bind("127.0.0.1:0")?;
//!     let address = listener.local_addr()?;
//!     runtime::spawn(serve(listener, service_fn(hello)));
//!
//!     // A client.
//!     let stream = HyperStream::new(TcpStream::connect(address).await?);
//!     let handshake = hyper::client::conn::http1::handshake(stream).await;
//!     let (mut sender, connection) = handshake.map_err(std::io::Error::other)?;
//!     runtime::spawn(connection);
//!     let request = Request::get("/").header("host", "localhost").body(Empty::<Bytes>::new());
//!     let response = sender.send_request(request.map_err(std::io::Error::other)?).await;
//!     let body = response.map_err(std::io::Error::other)?.collect().await;
//!     assert_eq!(body.map_err(std::io::Error::other)?.to_bytes(), "Hello, World!");
//!     Ok(())
//! })
//! # }
//! ```
//!
//! # Servers and clients
//!
//! [`serve`] runs a task for each connection of a listener. [`Server`] adds options. For everything
//! else, pass a [`HyperStream`], a [`CoreExecutor`] and a [`CoreTimer`] to hyper's own builders.
//!
//! # axum and tower
//!
//! The feature `axum` serves axum's routers with one line, and with Tokio's context for their handlers
//! ([`axum`](axum/index.html)). Other tower services run with `hyper_util::service::TowerToHyperService`. Layers that
//! use Tokio need a runtime built with [`with_tokio`](annulus::runtime::RuntimeBuilder).
//!
//! # Upgrades
//!
//! For WebSockets and other upgrades, await `hyper::upgrade::on(request)`. A task started by
//! [`annulus::runtime::spawn`], or by `tokio::spawn` with the core's own Tokio runtime, uses the stream on its core. On
//! any other thread, the core moves the bytes.
//!
//! # Features and fallback
//!
//! `tls` adds TLS by rustls (`Tls`, `Server::with_tls`). Without the feature `axum`, the crate uses no runtime but
//! Annulus. The backend is that of the runtime: without
//! io_uring the same program runs on epoll ([`annulus::Backend`]).
//!
//! # Cancellation
//!
//! Dropping the future of [`serve`] stops accepting; open connections go on. When the runtime stops,
//! idle connections are closed and requests in progress have its grace period to finish. Dropping a
//! [`HyperStream`] sends the written bytes and closes the socket.
//!
//! # Copies and sends
//!
//! hyper lends its buffers only for the length of a call, and the kernel needs them for longer. Each
//! received byte is therefore copied once, from the core's receive buffer to hyper's, and each sent
//! byte once, into the buffer of a send. Uploads are received by a system call into hyper's buffer,
//! when the ring reports that data has arrived. The head and body of a small response leave in one send.
//! Under [`serve`], one send carries all responses to requests that arrived together.
//!
//! # Where to go next
//!
//! - [The guide for axum programs](guide/index.html): options, TLS, speed, and what works in handlers.
//! - [`annulus::runtime`]: cores, tasks, timers and shutdown.
//! - `examples/axum.rs` (feature `axum`) and `examples/http_get.rs`: a server and a client to copy.
//! - The crate `annulus-http` serves files without hyper.

// Shows on docs.rs which feature an item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "axum")]
pub mod axum;
mod cursor;
// The page of docs/guide, whose examples are tested here. The first definition of a link counts: links.txt replaces the
// page's links from file to file. The page is a symbolic link, so that the package contains it.
#[cfg(all(doc, feature = "axum", feature = "tls"))]
#[cfg_attr(not(doctest), doc = include_str!("../guide/links.txt"))]
#[doc = include_str!("../guide/axum.txt")]
pub mod guide {}
mod io;
mod remote;
mod serve;
mod time;
#[cfg(feature = "tls")]
mod tls;

pub use io::HyperStream;
pub use serve::{Listener, Server, serve};
pub use time::{CoreSleep, CoreTimer};
#[cfg(feature = "tls")]
pub use tls::Tls;
#[cfg(feature = "tls")]
pub use tokio_rustls::rustls;

use std::future::Future;

use hyper::rt::Executor;

/// Runs hyper's tasks on the calling core. They stay there and need not be `Send`.
///
/// # Panics
///
/// [`execute`](Executor::execute) panics outside a runtime.
#[derive(Clone, Copy, Debug, Default)]
pub struct CoreExecutor;

impl<F> Executor<F> for CoreExecutor
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        drop(annulus::runtime::spawn(future));
    }
}

/// The Rust code of a page of the guide as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/sockets.md")]
struct GuideSockets;
