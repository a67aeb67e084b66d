//! axum's routers on the cores of Annulus, with Tokio's context on each core. Feature `axum`.
//!
//! In an axum program, one line of `main` changes. Handlers, layers and state stay as they are:
//!
//! ```no_run
//! use axum::Router;
//! use axum::routing::get;
//!
//! #[tokio::main]
//! async fn main() -> std::io::Result<()> {
//!     let router = Router::new().route("/", get(|| async { "Hello, World!" }));
//!     annulus_hyper::axum::serve("127.0.0.1:8080", router).await
//! }
//! ```
//!
//! The cores are threads beside those of the program's Tokio runtime, one per processor. Each has a Tokio runtime of its
//! own: connections, the handlers of their requests, the tasks that these spawn, and WebSockets stay on one core. Pools and
//! clients that `main` has made work there, too.
//!
//! - **End.** SIGTERM and SIGINT end the server gracefully: it accepts no more connections, and requests in progress
//!   have until the [deadline](Serve::deadline). Upgraded connections are closed then.
//! - **Panics.** A handler that panics responds with status 500, and its connection goes on.
//! - **TLS.** `Serve::tls`, with the feature `tls`. The certificate can be replaced while the server runs.
//! - **Peer.** `ConnectInfo<SocketAddr>` works with `router.into_make_service_with_connect_info::<SocketAddr>()`.

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::io;
use std::mem;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use annulus::net::TcpListener;
use annulus::runtime::{Handle, Runtime, RuntimeBuilder};
use axum::Router;
use axum::extract::connect_info::{Connected, IntoMakeServiceWithConnectInfo};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::IntoMakeService;
use hyper::Request;
use hyper::body::Incoming;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};

use super::Server;

/// The default deadline. `docker stop` kills a process ten seconds after SIGTERM.
const DEADLINE: Duration = Duration::from_secs(8);

/// Serves `app` at `address` on every core, until SIGTERM or SIGINT. Await the result in a Tokio runtime, or call
/// [`run`](Serve::run) outside of one.
pub fn serve<A: App>(address: impl ToSocketAddrs, app: A) -> Serve<A> {
    Serve {
        addresses: address.to_socket_addrs().map(Iterator::collect),
        app,
        runtime: Runtime::builder().grace(DEADLINE).with_tokio(),
        server: server(),
        stop: None,
        on_listening: None,
    }
}

/// Serves the connections of `listener` with `app` on the calling core, until the runtime is stopping. For programs
/// that start the runtime themselves. It should have [Tokio's context](RuntimeBuilder::with_tokio).
///
/// ```no_run
/// use annulus::net::TcpListener;
/// use annulus::runtime::Runtime;
/// use annulus_hyper::axum::{self as on_cores, server};
///
/// # fn main() -> std::io::Result<()> {
/// # let router = axum::Router::new();
/// Runtime::builder().with_tokio().run(|_core| {
///     let router = router.clone();
///     async move { on_cores::serve_on_core(&server(), TcpListener::bind("127.0.0.1:8080")?, router).await }
/// })
/// # }
/// ```
///
/// # Errors
///
/// Fails as [`Server::serve`] does.
///
/// # Panics
///
/// Panics if called outside a runtime.
pub async fn serve_on_core<A: App>(
    server: &Server,
    listener: TcpListener,
    app: A,
) -> io::Result<()> {
    let serve = server.serve_each(listener, |stream| {
        // A client that has left has no address, and sends no request.
        let peer = || {
            stream
                .peer_addr()
                .unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into())
        };
        Contains(app.service(peer))
    });
    serve.await
}

/// Returns a server with the defaults of [`Server::new`] that also accepts WebSockets over HTTP/2.
pub fn server() -> Server {
    let mut server = Server::new();
    server.http2().enable_connect_protocol();
    server
}

/// An application of axum: a [`Router`], or the result of its `into_make_service` or
/// `into_make_service_with_connect_info`. Sealed.
pub trait App: sealed::Serves {}

impl App for Router {}
impl App for IntoMakeService<Router> {}
impl<C: Connected<SocketAddr>> App for IntoMakeServiceWithConnectInfo<Router, C> {}

mod sealed {
    use axum::extract::ConnectInfo;
    use axum::middleware::AddExtension;

    use super::*;

    pub trait Serves: Clone + Send + Sync + 'static {
        type Service: Serve;

        /// Returns the service for the connection of `peer`.
        fn service(&self, peer: impl FnOnce() -> SocketAddr) -> Self::Service;
    }

    /// A service of axum.
    pub trait Serve:
        tower_service::Service<
            Request<Incoming>,
            Response = Response,
            Error = Infallible,
            Future: Send + 'static,
        > + Clone
        + 'static
    {
    }

    impl<S> Serve for S
    where
        S: tower_service::Service<Request<Incoming>, Response = Response, Error = Infallible>
            + Clone
            + 'static,
        S::Future: Send + 'static,
    {
    }

    impl Serves for Router {
        type Service = Router;

        fn service(&self, _: impl FnOnce() -> SocketAddr) -> Router {
            self.clone()
        }
    }

    impl Serves for IntoMakeService<Router> {
        type Service = Router;

        fn service(&self, peer: impl FnOnce() -> SocketAddr) -> Router {
            made(self.clone(), peer())
        }
    }

    impl<C: Connected<SocketAddr>> Serves for IntoMakeServiceWithConnectInfo<Router, C> {
        type Service = AddExtension<Router, ConnectInfo<C>>;

        fn service(&self, peer: impl FnOnce() -> SocketAddr) -> Self::Service {
            made(self.clone(), peer())
        }
    }

    /// Returns the service that `maker` makes. axum's makers are ready immediately.
    fn made<M>(mut maker: M, peer: SocketAddr) -> M::Response
    where
        M: tower_service::Service<SocketAddr, Error = Infallible>,
    {
        let mut making = pin!(maker.call(peer));
        loop {
            let polled = making
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()));
            if let Poll::Ready(Ok(made)) = polled {
                return made;
            }
        }
    }
}

/// A server of [`serve`].
#[must_use = "the server starts when it is awaited, or by `run`"]
pub struct Serve<A> {
    addresses: io::Result<Vec<SocketAddr>>,
    app: A,
    runtime: RuntimeBuilder,
    server: Server,
    stop: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    on_listening: Option<Box<dyn FnOnce(SocketAddr) + Send>>,
}

impl<A: App> Serve<A> {
    /// Sets how long requests in progress may take after the server was stopped, 8 s by default. Connections that are
    /// still open are then closed, and handlers dropped.
    pub fn deadline(mut self, time: Duration) -> Self {
        self.runtime = self.runtime.grace(time);
        self
    }

    /// Stops the server when `signal` is ready, instead of at SIGTERM and SIGINT.
    pub fn with_graceful_shutdown(
        mut self,
        signal: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        self.stop = Some(Box::pin(signal));
        self
    }

    /// Changes the runtime: the number of cores, the backend, and more.
    pub fn runtime(mut self, change: impl FnOnce(RuntimeBuilder) -> RuntimeBuilder) -> Self {
        self.runtime = change(self.runtime);
        self
    }

    /// Changes the options of HTTP.
    pub fn http(mut self, change: impl FnOnce(Server) -> Server) -> Self {
        self.server = change(self.server);
        self
    }

    /// Serves over TLS (feature `tls`).
    #[cfg(feature = "tls")]
    pub fn tls(self, tls: super::Tls) -> Self {
        self.http(|server| server.with_tls(tls))
    }

    /// Calls `tell` with the address once the server accepts connections there. With port 0 the kernel has selected the
    /// port.
    pub fn on_listening(mut self, tell: impl FnOnce(SocketAddr) + Send + 'static) -> Self {
        self.on_listening = Some(Box::new(tell));
        self
    }

    /// Serves until the end, in a new Tokio runtime. For programs whose `main` is not async.
    ///
    /// # Errors
    ///
    /// Fails if the address can't be bound, or a runtime can't start.
    ///
    /// # Panics
    ///
    /// Panics if called inside a Tokio runtime; await the server there.
    pub fn run(self) -> io::Result<()> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let tokio = builder.enable_all().build()?;
        let served = tokio.block_on(self.serve());
        // Blocking work that outlives the deadline is abandoned.
        tokio.shutdown_background();
        served
    }

    async fn serve(self) -> io::Result<()> {
        let addresses = self.addresses?;
        let stop = match self.stop {
            Some(stop) => stop,
            None => Box::pin(terminated()?),
        };
        let (app, server) = (self.app, self.server);
        let runtime = self.runtime;
        let on_listening = Mutex::new(self.on_listening);
        let (bound, _) = watch::channel(None);
        let main = move |core: annulus::runtime::CoreInfo| {
            let (app, server, addresses) = (app.clone(), server.clone(), addresses.clone());
            let (bound, mut first) = (bound.clone(), bound.subscribe());
            let tell = on_listening
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            async move {
                let listener = if core.index() == 0 {
                    let listener = TcpListener::bind(&addresses[..])?;
                    bound.send_replace(Some(listener.local_addr()?));
                    listener
                } else {
                    let first = first.wait_for(Option::is_some).await;
                    let first = first.map_err(io::Error::other)?;
                    TcpListener::bind(first.unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into()))?
                };
                if let Some(tell) = tell {
                    tell(listener.local_addr()?);
                }
                serve_on_core(&server, listener, app).await
            }
        };
        let (send_handle, handle) = oneshot::channel();
        let (send_end, mut ended) = oneshot::channel();
        let run = move || {
            let started = |handle| drop(send_handle.send(Stops(handle)));
            drop(send_end.send(runtime.run_with(started, main)));
        };
        thread::Builder::new()
            .name("annulus-0".to_owned())
            .spawn(run)?;
        let panicked = |_| Err(io::Error::other("a core of the server panicked"));
        let Ok(stops) = handle.await else {
            return ended.await.unwrap_or_else(panicked);
        };
        tokio::select! {
            ended = &mut ended => return ended.unwrap_or_else(panicked),
            () = stop => drop(stops),
        }
        ended.await.unwrap_or_else(panicked)
    }
}

/// Shuts the runtime down when it is dropped, also with the future of a server.
struct Stops(Handle);

impl Drop for Stops {
    fn drop(&mut self) {
        self.0.shutdown();
    }
}

impl<A: App> IntoFuture for Serve<A> {
    type Output = io::Result<()>;
    type IntoFuture = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

    /// Serves until the end. Dropping the future stops the server gracefully.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.serve())
    }
}

impl<A> fmt::Debug for Serve<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serve")
            .field("addresses", &self.addresses)
            .field("runtime", &self.runtime)
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

/// Waits for SIGTERM or SIGINT.
fn terminated() -> io::Result<impl Future<Output = ()> + Send> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// A service whose panics are responses with status 500.
struct Contains<S>(S);

impl<S: sealed::Serve> hyper::service::Service<Request<Incoming>> for Contains<S> {
    type Response = Response;
    type Error = Infallible;
    type Future = Contained<S::Future>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        // axum's services are always ready.
        let mut service = self.0.clone();
        let called = catch_unwind(AssertUnwindSafe(|| service.call(request)));
        Contained {
            future: called.map_err(mem::forget).ok(),
        }
    }
}

pin_project_lite::pin_project! {
    /// The response of a handler. `None` if it has panicked.
    struct Contained<F> {
        #[pin]
        future: Option<F>,
    }
}

impl<F: Future<Output = Result<Response, Infallible>>> Future for Contained<F> {
    type Output = Result<Response, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Some(future) = this.future.as_mut().as_pin_mut() {
            match catch_unwind(AssertUnwindSafe(|| future.poll(context))) {
                Ok(polled) => return polled,
                // The payload's drop is code of the user, which may panic again.
                Err(panic) => mem::forget(panic),
            }
        }
        let dropped = catch_unwind(AssertUnwindSafe(|| this.future.set(None)));
        mem::forget(dropped);
        Poll::Ready(Ok(StatusCode::INTERNAL_SERVER_ERROR.into_response()))
    }
}
