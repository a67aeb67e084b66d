//! A server: a task for each connection that a listener accepts.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use annulus::net::{ConnectedStream, Incoming, TcpListener, TcpStream, UnixListener, UnixStream};
use annulus::{runtime, time};
use hyper::body;
use hyper::rt::bounds::Http2ServerConnExec;
use hyper::server::conn::{http1, http2};
use hyper::service::HttpService;

use super::io::{HyperStream, PollEnd};
use super::time::HeadTimer;
use super::{CoreExecutor, CoreTimer};

/// How long a client may take for the head of a request; between two requests it may be silent for as long.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(30);
/// What a client that speaks HTTP/2 says first.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The library's listeners.
pub trait Listener: sealed::Listens {}

impl Listener for TcpListener {}
impl Listener for UnixListener {}

mod sealed {
    use super::{ConnectedStream, Context, Incoming, Poll, io};
    use super::{TcpListener, TcpStream, UnixListener, UnixStream};

    pub trait Listens {
        type Stream: ConnectedStream + 'static;

        fn incoming(self) -> io::Result<Incoming<Self::Stream>>;

        fn poll_next(
            incoming: &mut Incoming<Self::Stream>,
            context: &mut Context<'_>,
        ) -> Poll<Option<io::Result<Self::Stream>>>;
    }

    impl Listens for TcpListener {
        type Stream = TcpStream;

        fn incoming(self) -> io::Result<Incoming<TcpStream>> {
            // Its connections take it over: an answer in two sends does not wait for an acknowledgement.
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

/// Serves what `listener` accepts, HTTP/1.1 and HTTP/2 alike; on each core, with a listener of its own. As
/// [`Server::serve`] of [`Server::new`].
///
/// # Errors
///
/// The listener's.
///
/// # Panics
///
/// Outside a runtime.
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

/// A server with options. A task for each connection, whose panic, should a handler have one, ends that
/// connection and nothing else.
///
/// When the runtime is [stopping](annulus::runtime::stopping), nothing more is accepted; connections
/// between two requests are closed, and what is under way comes to its end within the runtime's grace.
///
/// The first bytes of a connection say which HTTP it is; with TLS, where the handshake has said it, use
/// hyper's builders.
#[derive(Clone, Debug)]
pub struct Server {
    http1: http1::Builder,
    http2: http2::Builder<CoreExecutor>,
    header_read_timeout: Option<Duration>,
}

impl Server {
    /// A server that gives clients 30 s for the head of a request, and otherwise has hyper's defaults.
    pub fn new() -> Server {
        let (mut http1, mut http2) = (http1::Builder::new(), http2::Builder::new(CoreExecutor));
        http1.timer(CoreTimer);
        http2.timer(CoreTimer);
        let server = Server {
            http1,
            http2,
            header_read_timeout: None,
        };
        server.with_header_read_timeout(Some(HEADER_READ_TIMEOUT))
    }

    /// A client that takes longer for the head of a request, its first or the next, is sent away.
    #[must_use]
    pub fn with_header_read_timeout(mut self, timeout: Option<Duration>) -> Server {
        self.http1.header_read_timeout(timeout);
        self.header_read_timeout = timeout;
        self
    }

    /// What else hyper lets one choose for HTTP/1.
    pub fn http1(&mut self) -> &mut http1::Builder {
        &mut self.http1
    }

    /// What hyper lets one choose for HTTP/2.
    pub fn http2(&mut self) -> &mut http2::Builder<CoreExecutor> {
        &mut self.http2
    }

    /// Has `service` answer what comes over the connections that `listener` accepts, until the runtime is
    /// stopping or the future is dropped; connections that are open then go on.
    ///
    /// What makes a single connection fail, or its accept, is not told; both are counted
    /// ([`annulus::metrics`]).
    ///
    /// # Errors
    ///
    /// The listener's, of its first use.
    ///
    /// # Panics
    ///
    /// Outside a runtime.
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

    /// As [`serve`](Server::serve), with a service for each connection, which `make` makes: it may want to
    /// know the peer's address.
    ///
    /// # Errors
    ///
    /// As of [`serve`](Server::serve).
    ///
    /// # Panics
    ///
    /// Outside a runtime.
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
            // An accept fails for want of descriptors, or because the client has gone: it is made again.
            let Ok(stream) = accepted else { continue };
            let service = make(&stream);
            let server = self.clone();
            drop(runtime::spawn(async move {
                // A client that goes away is no news.
                drop(server.serve_connection(stream, service).await);
            }));
        }
        Ok(())
    }

    /// Has `service` answer what comes over one connection, to its end.
    ///
    /// # Errors
    ///
    /// `TimedOut` if the client says nothing; hyper's (`hyper::Error`), and the stream's.
    ///
    /// # Panics
    ///
    /// Outside a runtime.
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
        let first = poll_end.begins_with(HTTP2_PREFACE);
        let Some(is_http2) = self.in_time(stopping.as_mut(), first).await? else {
            return Ok(());
        };
        // Boxed: what is driven has a place of its own then, of the size it needs.
        if is_http2 {
            let connection = Box::pin(self.http2.serve_connection(stream, service));
            drive(connection, stopping, poll_end).await?;
        } else {
            let mut http1 = self.http1.clone();
            if let Some(timeout) = self.header_read_timeout {
                http1.timer(HeadTimer::new(timeout));
            }
            let connection = http1.serve_connection(stream, service);
            drive(Box::pin(connection.with_upgrades()), stopping, poll_end).await?;
        }
        Ok(())
    }

    /// What a client says first, if it says anything before it is time to stop.
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

/// A connection of hyper's that can be asked to come to its end.
trait Connection: Future<Output = hyper::Result<()>> {
    fn finish_up(self: Pin<&mut Self>);
}

impl<T, S> Connection for http1::UpgradeableConnection<HyperStream<T>, S>
where
    T: ConnectedStream + 'static,
    S: HttpService<body::Incoming, ResBody: body::Body<Error: Into<BoxError>> + 'static> + 'static,
    S::Error: Into<BoxError>,
{
    fn finish_up(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<T, S> Connection for http2::Connection<HyperStream<T>, S, CoreExecutor>
where
    T: ConnectedStream + 'static,
    S: HttpService<body::Incoming, ResBody: body::Body<Error: Into<BoxError>> + 'static> + 'static,
    S::Error: Into<BoxError>,
    S::Future: 'static,
    CoreExecutor: Http2ServerConnExec<S::Future, S::ResBody>,
{
    fn finish_up(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Runs a connection to its end, which is near when it is time to stop.
async fn drive<C: Connection, T: ConnectedStream>(
    mut connection: Pin<Box<C>>,
    mut stopping: Pin<&mut impl Future<Output = ()>>,
    poll_end: PollEnd<T>,
) -> hyper::Result<()> {
    let mut finishes = false;
    // Who is woken when it is time to stop.
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
