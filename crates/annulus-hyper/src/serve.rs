//! HTTP servers that run one task per connection.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use annulus::net::{ConnectedStream, Incoming, TcpListener, TcpStream, UnixListener, UnixStream};
use annulus::{runtime, time};
use hyper::body;
use hyper::rt::bounds::Http2ServerConnExec;
use hyper::rt::{Read, Write};
use hyper::server::conn::{http1, http2};
use hyper::service::HttpService;

use super::io::{HyperStream, PollEnd};
use super::time::HeadTimer;
#[cfg(feature = "tls")]
use super::tls::Tls;
use super::{CoreExecutor, CoreTimer};

/// The time that a client has to send the head of a request, and the longest pause between two requests.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(30);
/// The first bytes of an HTTP/2 connection.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A listener of [`annulus::net`]: TCP or Unix. Sealed.
pub trait Listener: sealed::Listens {}

impl Listener for TcpListener {}
impl Listener for UnixListener {}

mod sealed {
    use super::{ConnectedStream, Context, Incoming, Poll, SocketAddr, io};
    use super::{TcpListener, TcpStream, UnixListener, UnixStream};

    pub trait Listens {
        type Stream: ConnectedStream + 'static;

        /// Returns the address of the client; `None` if it has left, or is a Unix socket.
        fn peer(stream: &Self::Stream) -> Option<SocketAddr>;

        fn incoming(self) -> io::Result<Incoming<Self::Stream>>;

        fn poll_next(
            incoming: &mut Incoming<Self::Stream>,
            context: &mut Context<'_>,
        ) -> Poll<Option<io::Result<Self::Stream>>>;
    }

    impl Listens for TcpListener {
        type Stream = TcpStream;

        fn peer(stream: &TcpStream) -> Option<SocketAddr> {
            stream.peer_addr().ok()
        }

        fn incoming(self) -> io::Result<Incoming<TcpStream>> {
            // Accepted connections inherit the option. A response in two sends then does not wait for an
            // acknowledgement.
            self.options().set_nodelay(true)?;
            Ok(self.accept_multishot())
        }

        fn poll_next(
            incoming: &mut Incoming<TcpStream>,
            context: &mut Context<'_>,
        ) -> Poll<Option<io::Result<TcpStream>>> {
            incoming.poll_next(context)
        }
    }

    impl Listens for UnixListener {
        type Stream = UnixStream;

        fn peer(_: &UnixStream) -> Option<SocketAddr> {
            None
        }

        fn incoming(self) -> io::Result<Incoming<UnixStream>> {
            Ok(self.accept_multishot())
        }

        fn poll_next(
            incoming: &mut Incoming<UnixStream>,
            context: &mut Context<'_>,
        ) -> Poll<Option<io::Result<UnixStream>>> {
            incoming.poll_next(context)
        }
    }
}

/// Serves the connections that `listener` accepts, over HTTP/1.1 and HTTP/2.
///
/// Call it on each core, with a listener per core. This is [`Server::serve`] with the options of [`Server::new`].
///
/// ```
/// use std::convert::Infallible;
///
/// use annulus::net::TcpListener;
/// use annulus::runtime::Runtime;
/// use http_body_util::Full;
/// use hyper::body::{Bytes, Incoming};
/// use hyper::service::service_fn;
/// use hyper::{Request, Response};
///
/// async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
///     Ok(Response::new(Full::new(Bytes::from_static(b"Hello, World!"))))
/// }
///
/// # fn main() -> std::io::Result<()> {
/// Runtime::builder().cores(1).run(|_core| async {
///     let listener = TcpListener::bind("127.0.0.1:0")?;
///     println!("http://{}/", listener.local_addr()?);
/// #   annulus::runtime::handle().shutdown(); // The example ends at once.
///     annulus_hyper::serve(listener, service_fn(hello)).await
/// })
/// # }
/// ```
///
/// # Errors
///
/// Fails if `TCP_NODELAY` cannot be set on the listener. Errors of single connections are not returned.
///
/// # Panics
///
/// Panics if called outside a runtime.
pub async fn serve<L, S>(listener: L, service: S) -> io::Result<()>
where
    L: Listener,
    S: HttpService<body::Incoming, ResBody: body::Body<Error: Into<BoxError>> + 'static>
        + Clone
        + 'static,
    S::Error: Into<BoxError>,
    S::Future: 'static,
    CoreExecutor: Http2ServerConnExec<S::Future, S::ResBody>,
{
    Server::new().serve(listener, service).await
}

/// A server with options.
///
/// Each connection has its own task. A panic in a handler ends that connection, or that stream of HTTP/2, and nothing
/// else.
///
/// When the runtime is [stopping](annulus::runtime::stopping), the server accepts no more connections and closes those
/// that wait for a request. Requests in progress have the runtime's grace period to finish.
///
/// The server recognises HTTP/2 by the first bytes of a connection. With TLS (feature `tls`), the handshake selects the
/// protocol.
#[derive(Clone, Debug)]
pub struct Server {
    http1: http1::Builder,
    http2: http2::Builder<CoreExecutor>,
    header_read_timeout: Option<Duration>,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

impl Server {
    /// Returns a server with a header timeout of 30 s and hyper's defaults for everything else.
    pub fn new() -> Server {
        let (mut http1, mut http2) = (http1::Builder::new(), http2::Builder::new(CoreExecutor));
        http1.timer(CoreTimer);
        http2.timer(CoreTimer);
        let server = Server {
            http1,
            http2,
            header_read_timeout: None,
            #[cfg(feature = "tls")]
            tls: None,
        };
        server.with_header_read_timeout(Some(HEADER_READ_TIMEOUT))
    }

    /// Sets the time that a client has to send the head of a request, the first or a later one. The connection is
    /// closed when it expires. `None` removes the limit.
    ///
    /// On an HTTP/2 connection it limits the time until the connection preface has arrived.
    #[must_use]
    pub fn with_header_read_timeout(mut self, timeout: Option<Duration>) -> Server {
        self.http1.header_read_timeout(timeout);
        self.header_read_timeout = timeout;
        self
    }

    /// Returns hyper's options for HTTP/1.
    pub fn http1(&mut self) -> &mut http1::Builder {
        &mut self.http1
    }

    /// Returns hyper's options for HTTP/2.
    pub fn http2(&mut self) -> &mut http2::Builder<CoreExecutor> {
        &mut self.http2
    }

    /// Serves over TLS (feature `tls`). The handshake has the header timeout.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_tls(mut self, tls: Tls) -> Server {
        self.tls = Some(tls);
        self
    }

    /// Serves the connections that `listener` accepts with `service`, until the runtime is stopping.
    ///
    /// Dropping the future stops accepting; open connections go on. Errors of single connections are not returned, and
    /// an accept that fails for lack of descriptors is tried again. [`annulus::metrics`] counts both.
    ///
    /// # Errors
    ///
    /// Fails if `TCP_NODELAY` cannot be set on the listener, or if the listener cannot accept any more; see
    /// [`Incoming::next`].
    ///
    /// # Panics
    ///
    /// Panics if called outside a runtime.
    pub async fn serve<L, S>(&self, listener: L, service: S) -> io::Result<()>
    where
        L: Listener,
        S: HttpService<body::Incoming, ResBody: body::Body<Error: Into<BoxError>> + 'static>
            + Clone
            + 'static,
        S::Error: Into<BoxError>,
        S::Future: 'static,
        CoreExecutor: Http2ServerConnExec<S::Future, S::ResBody>,
    {
        self.serve_each(listener, |_| service.clone()).await
    }

    /// Serves connections as [`serve`](Server::serve) does, each with the service that `make` returns for it. `make`
    /// can read the peer's address from the stream.
    ///
    /// # Errors
    ///
    /// Fails like [`serve`](Server::serve).
    ///
    /// # Panics
    ///
    /// Panics if called outside a runtime.
    pub async fn serve_each<L, S>(
        &self,
        listener: L,
        mut make: impl FnMut(&L::Stream) -> S,
    ) -> io::Result<()>
    where
        L: Listener,
        S: HttpService<body::Incoming, ResBody: body::Body<Error: Into<BoxError>> + 'static>
            + 'static,
        S::Error: Into<BoxError>,
        S::Future: 'static,
        CoreExecutor: Http2ServerConnExec<S::Future, S::ResBody>,
    {
        let mut incoming = listener.incoming()?;
        let mut stopping = pin!(runtime::stopping());
        let mut next = async || {
            poll_fn(|context| match stopping.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(None),
                Poll::Pending => L::poll_next(&mut incoming, context),
            })
            .await
        };
        while let Some(accepted) = next().await {
            let stream = accepted?;
            let service = make(&stream);
            let server = self.clone();
            drop(runtime::spawn(async move {
                // An error here usually means that the client has left.
                drop(server.serve_connection(stream, service).await);
            }));
        }
        Ok(())
    }

    /// Serves one connection with `service` until it ends.
    ///
    /// # Errors
    ///
    /// Fails with [`TimedOut`](io::ErrorKind::TimedOut) if the first bytes do not arrive within the header timeout.
    /// Also fails with a `hyper::Error`, or with an [`io::Error`] of the stream or the TLS handshake.
    ///
    /// # Panics
    ///
    /// Panics if called outside a runtime.
    pub async fn serve_connection<T, S>(&self, stream: T, service: S) -> Result<(), BoxError>
    where
        T: ConnectedStream + 'static,
        S: HttpService<body::Incoming, ResBody: body::Body<Error: Into<BoxError>> + 'static>
            + 'static,
        S::Error: Into<BoxError>,
        S::Future: 'static,
        CoreExecutor: Http2ServerConnExec<S::Future, S::ResBody>,
    {
        let (stream, poll_end) = HyperStream::with_poll_end(stream);
        let mut stopping = pin!(runtime::stopping());
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            // Boxed, so that a connection without TLS is not larger.
            let handshake = Box::pin(async { tls.accept(stream, &poll_end).await.map(Some) });
            let Some((stream, is_http2)) = self.in_time(stopping.as_mut(), handshake).await? else {
                return Ok(());
            };
            let served = self.serve_protocol(is_http2, stream, service, stopping, poll_end);
            return Box::pin(served).await;
        }
        let first = poll_end.begins_with(HTTP2_PREFACE);
        let Some(is_http2) = self.in_time(stopping.as_mut(), first).await? else {
            return Ok(());
        };
        self.serve_protocol(is_http2, stream, service, stopping, poll_end)
            .await
    }

    /// Serves one connection whose protocol is known.
    async fn serve_protocol<T, I, S>(
        &self,
        is_http2: bool,
        stream: I,
        service: S,
        stopping: Pin<&mut impl Future<Output = ()>>,
        poll_end: PollEnd<T>,
    ) -> Result<(), BoxError>
    where
        T: ConnectedStream + 'static,
        I: Read + Write + Unpin + Send + 'static,
        S: HttpService<body::Incoming, ResBody: body::Body<Error: Into<BoxError>> + 'static>
            + 'static,
        S::Error: Into<BoxError>,
        S::Future: 'static,
        CoreExecutor: Http2ServerConnExec<S::Future, S::ResBody>,
    {
        // Boxed: the future of the other protocol adds nothing to the size of this task.
        if is_http2 {
            let connection = Box::pin(self.http2.serve_connection(stream, service));
            drive(connection, stopping, poll_end).await?;
        } else {
            let mut http1 = self.http1.clone();
            if let Some(timeout) = self.header_read_timeout {
                http1.timer(HeadTimer::new(timeout));
            }
            let connection = http1.serve_connection(stream, service);
            let stream_end = poll_end.stream_end();
            drive(Box::pin(connection.with_upgrades()), stopping, poll_end).await?;
            if !stream_end.has_come() {
                // A task of Tokio uses the upgraded stream. The runtime's grace period only waits for tasks of the
                // core.
                drop(runtime::spawn(stream_end.wait()));
            }
        }
        Ok(())
    }

    /// Awaits the first bytes of a client within the header timeout. Returns `None` if the runtime stops first.
    async fn in_time<T>(
        &self,
        mut stopping: Pin<&mut impl Future<Output = ()>>,
        first: impl Future<Output = io::Result<Option<T>>>,
    ) -> io::Result<Option<T>> {
        let mut first = pin!(first);
        let first = poll_fn(|context| match stopping.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Ok(None)),
            Poll::Pending => first.as_mut().poll(context),
        });
        match self.header_read_timeout {
            Some(timeout) => time::timeout(timeout, first).await?,
            None => first.await,
        }
    }
}

impl Default for Server {
    fn default() -> Server {
        Server::new()
    }
}

/// A connection of hyper that can shut down gracefully.
trait Connection: Future<Output = hyper::Result<()>> {
    fn finish_up(self: Pin<&mut Self>);
}

impl<I, S> Connection for http1::UpgradeableConnection<I, S>
where
    I: Read + Write + Unpin + Send + 'static,
    S: HttpService<body::Incoming, ResBody: body::Body<Error: Into<BoxError>> + 'static> + 'static,
    S::Error: Into<BoxError>,
{
    fn finish_up(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<I, S> Connection for http2::Connection<I, S, CoreExecutor>
where
    I: Read + Write + Unpin + 'static,
    S: HttpService<body::Incoming, ResBody: body::Body<Error: Into<BoxError>> + 'static> + 'static,
    S::Error: Into<BoxError>,
    S::Future: 'static,
    CoreExecutor: Http2ServerConnExec<S::Future, S::ResBody>,
{
    fn finish_up(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Runs a connection to its end, and shuts it down gracefully when the runtime is stopping.
async fn drive<C: Connection, T: ConnectedStream>(
    mut connection: Pin<Box<C>>,
    mut stopping: Pin<&mut impl Future<Output = ()>>,
    poll_end: PollEnd<T>,
) -> hyper::Result<()> {
    let mut finishes = false;
    // The waker that `stopping` wakes.
    let mut waiting: Option<Waker> = None;
    poll_fn(|context| {
        let waits = |waker: &Waker| waker.will_wake(context.waker());
        if !finishes && (runtime::is_stopping() || !waiting.as_ref().is_some_and(waits)) {
            finishes = stopping.as_mut().poll(context).is_ready();
            waiting = Some(context.waker().clone());
            if finishes {
                connection.as_mut().finish_up();
            }
        }
        let polled = connection.as_mut().poll(context);
        poll_end.submit();
        polled
    })
    .await
}
