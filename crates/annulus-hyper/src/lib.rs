//! hyper on Annulus, for servers and clients on an Annulus runtime: HTTP/1.1, HTTP/2 and upgrades, and libraries
//! built on hyper, such as axum. The crate has no features.
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
//! Runtime::builder().threads(1).run(|_core| async {
//!     let listener = TcpListener::bind("127.0.0.1:0")?;
//!     let address = listener.local_addr()?;
//!     runtime::spawn(serve(listener, service_fn(hello)));
//!
//!     let stream = HyperStream::new(TcpStream::connect(address).await?);
//!     let shaken = hyper::client::conn::http1::handshake(stream).await;
//!     let (mut requests, connection) = shaken.map_err(std::io::Error::other)?;
//!     runtime::spawn(connection);
//!     let request = Request::get("/").header("host", "localhost").body(Empty::<Bytes>::new());
//!     let answer = requests.send_request(request.map_err(std::io::Error::other)?).await;
//!     let body = answer.map_err(std::io::Error::other)?.collect().await;
//!     assert_eq!(body.map_err(std::io::Error::other)?.to_bytes(), "Hello, World!");
//!     Ok(())
//! })
//! # }
//! ```
//!
//! [`serve`] has a task for each connection; [`Server`] is the same with options. Where more is to be
//! chosen, hyper's own builders take a [`HyperStream`], a [`CoreExecutor`] and a [`CoreTimer`].
//!
//! axum: `serve(listener, TowerToHyperService::new(router))` with `hyper_util::service`, on each core
//! (`examples/axum_hello.rs`). Handlers are asked for `Send` futures by axum, and never leave their core.
//! What asks for Tokio's own clock or tasks, such as `tower_http::timeout`, needs a runtime of Tokio's beside
//! ours, entered by the core's thread: `std::mem::forget(tokio.enter())` where its main future is made.
//!
//! Upgrades (WebSockets): await `hyper::upgrade::on(request)` in a task that [`annulus::runtime::spawn`] starts. A
//! stream stays on its core, so axum's `on_upgrade`, which starts a task of Tokio's, does not work yet: reads and
//! writes there are errors that say so, and the connection is closed when that task drops it, or with its core.
//!
//! What is received is copied once, from the core's receive buffer into hyper's; what is written once, into
//! one buffer per send: hyper lends its memory for the length of a call, and the kernel needs it for longer.
//! Head and body of a small answer leave in one send, and under [`serve`] all answers to requests that came
//! together.

#![forbid(unsafe_code)]

mod io;
mod serve;
mod time;

pub use io::HyperStream;
pub use serve::{Listener, Server, serve};
pub use time::{CoreSleep, CoreTimer};

use std::future::Future;

use hyper::rt::Executor;

/// Runs hyper's tasks on the calling core, where they stay: they need not be `Send`.
///
/// # Panics
///
/// When something is to be run outside a runtime.
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
