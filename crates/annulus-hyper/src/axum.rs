//! axum's routers on the cores of Annulus, with Tokio's context on each core. Feature `axum`, for axum 0.8, from
//! 0.8.9 on.
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
//! The cores are threads beside those of the program's Tokio runtime, one per processor. Each has a Tokio runtime of
//! its own: connections, the handlers of their requests, the tasks that these spawn, and WebSockets stay on one core.
//! Pools and clients that `main` has made work there, too.
//!
//! - **End.** SIGTERM and SIGINT end the server gracefully: it accepts no more connections, and requests in progress
//!   have until the [deadline](Serve::deadline). Upgraded connections are closed then.
//! - **Panics.** A handler that panics responds with status 500, and its connection goes on.
//! - **TLS.** `Serve::tls`, with the feature `tls`. The certificate can be replaced while the server runs.
//! - **Peer.** `ConnectInfo<SocketAddr>` works with `router.into_make_service_with_connect_info::<SocketAddr>()`.
//! - **Listeners.** In place of an address, [`serve`] takes a bound [`Listener`] of std or Tokio: TCP, or a Unix
//!   socket.
//! - **Services.** Any service of tower is served as `ServiceExt::<Request>::into_make_service(service)` of axum.

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::io;
use std::mem;
use std::net::{self, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::os::unix::net as unix;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::thread;
use std::time::Duration;

use annulus::net::{TcpListener, UnixListener};
use annulus::runtime::{self, CoreInfo, Handle, Runtime, RuntimeBuilder};
use axum::Router;
use axum::body::Body;
use axum::extract::connect_info::{Connected, IntoMakeServiceWithConnectInfo};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::IntoMakeService;
use hyper::Request;
use hyper::body::Incoming;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};

use super::{Listener, Server};

/// The address of a client that has left, and of a Unix socket.
const NO_ADDRESS: SocketAddr = SocketAddr::new(net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// The default deadline. `docker stop` kills a process ten seconds after SIGTERM.
const DEADLINE: Duration = Duration::from_secs(8);

/// Serves `app` on every core, until SIGTERM or SIGINT. Await the result in a Tokio runtime, or call
/// [`run`](Serve::run) outside of one.
///
/// `endpoint` is an address, or a bound `TcpListener` or `UnixListener` of std or Tokio. With an address, each core
/// binds its own socket. The socket of a listener is shared by all cores.
///
/// ```no_run
/// use std::os::unix::net::UnixListener;
///
/// # fn main() -> std::io::Result<()> {
/// # let router = axum::Router::new();
/// let listener = UnixListener::bind("/run/site.sock")?;      // the path stays after the end of the server
/// annulus_hyper::axum::serve(listener, router).run()
/// # }
/// ```
pub fn serve<A: App, Kind>(endpoint: impl Endpoint<Kind>, app: A) -> Serve<A> {
    Serve {
        endpoint: endpoint.endpoint(),
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
pub async fn serve_on_core<L: Listener, A: App>(
    server: &Server,
    listener: L,
    app: A,
) -> io::Result<()> {
    let serve = server.serve_each(listener, |stream| {
        Contains(app.service(|| L::peer(stream).unwrap_or(NO_ADDRESS)))
    });
    serve.await
}

/// Returns a server with the defaults of [`Server::new`] that also accepts WebSockets over HTTP/2.
pub fn server() -> Server {
    let mut server = Server::new();
    server.http2().enable_connect_protocol();
    server
}

/// The place where [`serve`] accepts connections: an address, or a bound listener of std or Tokio. Sealed.
pub trait Endpoint<Kind>: sealed::Binds<Kind> {}

impl<Kind, E: sealed::Binds<Kind>> Endpoint<Kind> for E {}

/// An application: a [`Router`], or the result of `into_make_service` or `into_make_service_with_connect_info`, of a
/// router or of any other [`Service`]. Sealed.
pub trait App: sealed::Serves {}

impl App for Router {}
impl<S: Service> App for IntoMakeService<S> {}
impl<S: Service, C: Connected<SocketAddr> + Sync> App for IntoMakeServiceWithConnectInfo<S, C> {}

/// A service of tower that axum can serve. Implemented for every type with these properties.
pub trait Service:
    tower_service::Service<
        Request<Body>,
        Response: IntoResponse,
        Error = Infallible,
        Future: Send + 'static,
    > + Clone
    + Send
    + Sync
    + 'static
{
}

impl<S> Service for S
where
    S: tower_service::Service<Request<Body>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Response: IntoResponse,
    S::Future: Send + 'static,
{
}

mod sealed {
    use axum::extract::ConnectInfo;
    use axum::middleware::AddExtension;

    use super::*;

    /// An address or a bound listener.
    #[derive(Debug)]
    pub enum ListenTarget {
        /// Each core binds a socket.
        Addresses(Vec<SocketAddr>),
        /// The cores share a socket.
        Tcp(net::TcpListener),
        Unix(unix::UnixListener),
    }

    /// `Kind` keeps the implementations apart.
    pub trait Binds<Kind> {
        fn endpoint(self) -> io::Result<ListenTarget>;
    }

    #[derive(Debug)]
    pub struct Address;

    impl<E: ToSocketAddrs> Binds<Address> for E {
        fn endpoint(self) -> io::Result<ListenTarget> {
            Ok(ListenTarget::Addresses(self.to_socket_addrs()?.collect()))
        }
    }

    #[derive(Debug)]
    pub struct Bound;

    impl Binds<Bound> for net::TcpListener {
        fn endpoint(self) -> io::Result<ListenTarget> {
            Ok(ListenTarget::Tcp(self))
        }
    }

    impl Binds<Bound> for unix::UnixListener {
        fn endpoint(self) -> io::Result<ListenTarget> {
            Ok(ListenTarget::Unix(self))
        }
    }

    impl Binds<Bound> for tokio::net::TcpListener {
        fn endpoint(self) -> io::Result<ListenTarget> {
            self.into_std()?.endpoint()
        }
    }

    impl Binds<Bound> for tokio::net::UnixListener {
        fn endpoint(self) -> io::Result<ListenTarget> {
            self.into_std()?.endpoint()
        }
    }

    pub trait Serves: Clone + Send + Sync + 'static {
        type Service: Service;

        /// Returns the service for the connection of `peer`.
        fn service(&self, peer: impl FnOnce() -> SocketAddr) -> Self::Service;
    }

    impl Serves for Router {
        type Service = Router;

        fn service(&self, _: impl FnOnce() -> SocketAddr) -> Router {
            self.clone()
        }
    }

    impl<S: Service> Serves for IntoMakeService<S> {
        type Service = S;

        fn service(&self, peer: impl FnOnce() -> SocketAddr) -> S {
            made(self.clone(), peer())
        }
    }

    impl<S: Service, C: Connected<SocketAddr> + Sync> Serves for IntoMakeServiceWithConnectInfo<S, C> {
        type Service = AddExtension<S, ConnectInfo<C>>;

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
    endpoint: io::Result<sealed::ListenTarget>,
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
    /// port. For a Unix socket, the address is `0.0.0.0:0`.
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
        let target = Arc::new(self.endpoint?);
        let stop = match self.stop {
            Some(stop) => stop,
            None => Box::pin(terminated()?),
        };
        let (app, server) = (self.app, self.server);
        let runtime = self.runtime;
        let on_listening = Mutex::new(self.on_listening);
        let (bound, _) = watch::channel(None);
        let main = move |core: CoreInfo| {
            let (app, server, target) = (app.clone(), server.clone(), Arc::clone(&target));
            let bound = bound.clone();
            let tell = on_listening
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            let tell = move |address| {
                if let Some(tell) = tell {
                    tell(address);
                }
            };
            async move {
                match &*target {
                    sealed::ListenTarget::Unix(listener) => {
                        let listener = UnixListener::from_std(listener.try_clone()?)?;
                        tell(NO_ADDRESS);
                        serve_on_core(&server, listener, app).await
                    }
                    sealed::ListenTarget::Tcp(listener) => {
                        let listener = TcpListener::from_std(listener.try_clone()?)?;
                        tell(listener.local_addr()?);
                        serve_on_core(&server, listener, app).await
                    }
                    sealed::ListenTarget::Addresses(addresses) => {
                        let listener = bind(&core, addresses, &bound).await?;
                        tell(listener.local_addr()?);
                        serve_on_core(&server, listener, app).await
                    }
                }
            }
        };
        let (send_handle, mut handle) = mpsc::unbounded_channel();
        let (send_end, mut ended) = oneshot::channel();
        let run = move || {
            let ended = runtime.run(move |core: CoreInfo| {
                if core.index() == 0 {
                    let _ = send_handle.send(Stops(runtime::handle()));
                }
                main(core)
            });
            drop(send_end.send(ended));
        };
        thread::Builder::new()
            .name("annulus-0".to_owned())
            .spawn(run)?;
        let panicked = |_| Err(io::Error::other("a core of the server panicked"));
        let Some(stops) = handle.recv().await else {
            return ended.await.unwrap_or_else(panicked);
        };
        tokio::select! {
            ended = &mut ended => return ended.unwrap_or_else(panicked),
            () = stop => drop(stops),
        }
        ended.await.unwrap_or_else(panicked)
    }
}

/// Binds a socket of `core`. The first core selects the address, and the others bind the same.
async fn bind(
    core: &CoreInfo,
    addresses: &[SocketAddr],
    bound: &watch::Sender<Option<SocketAddr>>,
) -> io::Result<TcpListener> {
    if core.index() == 0 {
        let listener = TcpListener::bind(addresses)?;
        bound.send_replace(Some(listener.local_addr()?));
        return Ok(listener);
    }
    let mut first = bound.subscribe();
    let first = first.wait_for(Option::is_some).await;
    let first = first.map_err(io::Error::other)?;
    TcpListener::bind(first.unwrap_or(NO_ADDRESS))
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
            .field("endpoint", &self.endpoint)
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

impl<S: Service> hyper::service::Service<Request<Incoming>> for Contains<S> {
    type Response = Response;
    type Error = Infallible;
    type Future = Contained<S, S::Future>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        Contained::Waiting {
            call: Some((self.0.clone(), request.map(Body::new))),
        }
    }
}

pin_project_lite::pin_project! {
    /// The response of a handler.
    #[project = Projected]
    enum Contained<S, F> {
        /// The service may not be ready yet; a router always is.
        Waiting { call: Option<(S, Request<Body>)> },
        Called { #[pin] future: F },
        Ended,
    }
}

impl<S: Service> Contained<S, S::Future> {
    /// Runs the handler to its response.
    fn advance(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Response> {
        if let Projected::Waiting { call } = self.as_mut().project()
            && let Some((service, _)) = call
        {
            let Ok(()) = ready!(service.poll_ready(context));
            if let Some((mut service, request)) = call.take() {
                let future = service.call(request);
                self.set(Contained::Called { future });
            }
        }
        match self.project() {
            Projected::Called { future } => {
                let Ok(response) = ready!(future.poll(context));
                Poll::Ready(response.into_response())
            }
            Projected::Waiting { .. } | Projected::Ended => Poll::Pending,
        }
    }
}

impl<S: Service> Future for Contained<S, S::Future> {
    type Output = Result<Response, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match catch_unwind(AssertUnwindSafe(|| self.as_mut().advance(context))) {
            Ok(polled) => return polled.map(Ok),
            // The payload's drop is code of the user, which may panic again.
            Err(panic) => mem::forget(panic),
        }
        let dropped = catch_unwind(AssertUnwindSafe(|| self.set(Contained::Ended)));
        mem::forget(dropped);
        Poll::Ready(Ok(StatusCode::INTERNAL_SERVER_ERROR.into_response()))
    }
}
