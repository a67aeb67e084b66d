//! HTTP/2 by h2: one task per connection and one per stream.
//!
//! The site produces the same responses as over HTTP/1.1. This module sets the limits. A stream reads a file only as
//! far as the client's windows allow (`body`).

mod body;

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use annulus::net::{SendProgress, TcpStream};
use annulus::runtime;
use async_lock::Semaphore;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream};
use http::header::DATE;
use http::{HeaderMap, Method as HttpMethod, Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::log::Line;
use crate::per_core::PerCore;
use crate::site::{Body, FieldLines, Method, SiteRequest, SiteResponse};
use crate::stall::{FIRST_CHECK, Stall};
use crate::watch::{Phase, Registration};
use body::Data;

/// The number of bytes of a stream that may wait in h2.
const WAITING_BYTES_MAX: usize = 128 << 10;
/// The number of file pieces that a connection may have read and not yet written.
const PIECES_MAX: usize = 4;
/// The number of streams that the client may reset before they are accepted. Beyond it the connection ends: a rapid
/// reset attack (CVE-2023-44487) consists of such streams.
const RESET_STREAMS_MAX: usize = 20;

/// The parts of the socket that a connection needs.
pub(crate) struct Client {
    peer: Option<SocketAddr>,
    progress: SendProgress,
}

impl Client {
    pub(crate) fn of(stream: &TcpStream) -> Client {
        Client {
            peer: stream.peer_addr().ok(),
            progress: stream.send_progress(),
        }
    }
}

/// The state that the streams of a connection share.
struct Streams {
    core: Rc<PerCore>,
    registration: Registration,
    peer: Option<SocketAddr>,
    /// The number of requests whose responses have not been written.
    open: Cell<u32>,
    /// Counts requests and written response bytes. It grows while the client makes progress.
    progress: Cell<u64>,
    pieces: Arc<Semaphore>,
}

/// An open stream. Dropping it ends the stream.
struct Open(Rc<Streams>);

impl Streams {
    fn begin(self: &Rc<Self>) -> Open {
        if self.open.replace(self.open.get() + 1) == 0 {
            self.registration.set(Phase::Busy, FIRST_CHECK);
        }
        self.core.streams.set(self.core.streams.get() + 1);
        self.core.note_crowd();
        self.note_progress(1);
        Open(Rc::clone(self))
    }

    /// Notes a request, or response bytes that were written.
    fn note_progress(&self, amount: u64) {
        self.progress.set(self.progress.get() + amount);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let streams = &self.0;
        let all = &streams.core.streams;
        all.set(all.get() - 1);
        streams.open.set(streams.open.get() - 1);
        if streams.open.get() == 0 {
            streams
                .registration
                .set(Phase::Idle, streams.core.ticks.idle);
        }
    }
}

/// Serves an HTTP/2 connection to its end.
pub(crate) async fn serve<S>(
    stream: S,
    client: Client,
    core: Rc<PerCore>,
    registration: Registration,
) where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    registration.set(Phase::Fresh, core.ticks.head);
    let Some(connection) = begin(stream, &core, &registration).await else {
        return;
    };
    registration.set(Phase::Idle, core.ticks.idle);
    let stall = Stall::of_responses(client.progress, &registration);
    let streams = Rc::new(Streams {
        core,
        registration,
        peer: client.peer,
        open: Cell::new(0),
        progress: Cell::new(0),
        pieces: Arc::new(Semaphore::new(PIECES_MAX)),
    });
    let mut session = Session {
        connection,
        streams,
        stall,
        goaway_sent: false,
    };
    poll_fn(|context| session.poll(context)).await;
}

/// Awaits the client's preface and settings.
async fn begin<S>(
    stream: S,
    core: &PerCore,
    registration: &Registration,
) -> Option<Connection<S, Data>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let limits = &core.limits;
    let mut handshake = pin!(
        Builder::new()
            .max_concurrent_streams(limits.streams)
            .max_header_list_size(u32::try_from(limits.head_bytes).unwrap_or(u32::MAX))
            .max_pending_accept_reset_streams(RESET_STREAMS_MAX)
            .max_send_buffer_size(WAITING_BYTES_MAX)
            .handshake(stream)
    );
    poll_fn(|context| {
        if let Poll::Ready(connection) = handshake.as_mut().poll(context) {
            return Poll::Ready(connection.ok());
        }
        if registration.take_expired() || registration.should_close() {
            return Poll::Ready(None);
        }
        registration.wait(context);
        Poll::Pending
    })
    .await
}

/// A connection after the preface.
struct Session<S> {
    connection: Connection<S, Data>,
    streams: Rc<Streams>,
    stall: Stall,
    /// GOAWAY was sent.
    goaway_sent: bool,
}

impl<S> Session<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            while let Poll::Ready(accepted) = self.connection.poll_accept(context) {
                // The client was informed of the error, or has left.
                let Some(Ok((request, responder))) = accepted else {
                    return Poll::Ready(());
                };
                let open = self.streams.begin();
                drop(runtime::spawn(respond(request, responder, open)));
            }
            if self.streams.registration.take_expired() {
                match self.late() {
                    Some(true) => continue,
                    Some(false) => {}
                    None => return Poll::Ready(()),
                }
            }
            if self.streams.core.watches.is_stopping() && !self.goaway_sent {
                self.send_shutdown();
                continue;
            }
            self.streams.registration.wait(context);
            return Poll::Pending;
        }
    }

    /// Handles an expired deadline. Returns whether data was queued, or `None` if the connection ends.
    fn late(&mut self) -> Option<bool> {
        let streams = &self.streams;
        if self.goaway_sent || streams.open.get() > 0 {
            let ticks = &streams.core.ticks;
            let stalled =
                (self.stall).has_stalled(&streams.registration, ticks, streams.progress.get());
            return (!stalled).then_some(false);
        }
        if streams.registration.is_late() {
            self.send_shutdown();
        } else {
            // Another connection needs the slot, so this client's reply is not awaited.
            self.connection.abrupt_shutdown(Reason::NO_ERROR);
            self.send_goaway(self.streams.core.ticks.linger);
        }
        Some(true)
    }

    /// Sends GOAWAY. Requests that the client has already sent are answered.
    fn send_shutdown(&mut self) {
        self.connection.graceful_shutdown();
        self.send_goaway(FIRST_CHECK);
    }

    fn send_goaway(&mut self, ticks: u64) {
        self.goaway_sent = true;
        self.stall.count_all();
        self.streams.note_progress(1);
        self.streams.registration.set(Phase::Busy, ticks);
    }
}

impl FieldLines for HeaderMap {
    fn each<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        self.get_all(name)
            .iter()
            .for_each(|value| each(value.as_bytes()));
    }
}

/// Reads and ignores a request's body. Only at its end does h2 report a body of the wrong length. Returns `false` if it
/// exceeds `bytes_max`.
async fn discard(body: &mut RecvStream, bytes_max: u64) -> Result<bool, h2::Error> {
    let mut bytes = 0;
    while let Some(data) = poll_fn(|context| body.poll_data(context)).await {
        let data = data?.len();
        body.flow_control().release_capacity(data)?;
        bytes += data as u64;
        if bytes > bytes_max {
            return Ok(false);
        }
    }
    poll_fn(|context| body.poll_trailers(context)).await?;
    Ok(true)
}

/// Answers a request unless the client resets the stream.
async fn respond(request: Request<RecvStream>, mut responder: SendResponse<Data>, open: Open) {
    // Boxed, so that its memory is freed before the body is sent, which can take long.
    let mut serving = Box::pin(site_response(request, Rc::clone(&open.0)));
    let served = poll_fn(|context| {
        if let Poll::Ready(served) = serving.as_mut().poll(context) {
            return Poll::Ready(Some(served));
        }
        responder.poll_reset(context).map(|_| None)
    });
    let served = served.await;
    drop(serving);
    match served {
        None => {}
        Some(Err(error)) => responder.send_reset(error.reason().unwrap_or(Reason::INTERNAL_ERROR)),
        Some(Ok((response, body))) => {
            let is_all = body.bytes() == 0;
            if let Ok(stream) = responder.send_response(response, is_all)
                && !is_all
            {
                body::send(stream, body, open).await;
            }
        }
    }
}

/// Returns the head of a response and the body to send.
async fn site_response(
    mut request: Request<RecvStream>,
    streams: Rc<Streams>,
) -> Result<(Response<()>, Body), h2::Error> {
    let core = &streams.core;
    let mut response = Response::new(());
    if !discard(request.body_mut(), core.limits.body_bytes).await? {
        *response.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
        response.headers_mut().insert(DATE, core.clock.date());
        return Ok((response, Body::Empty));
    }
    let method = match *request.method() {
        HttpMethod::GET => Method::Get,
        HttpMethod::HEAD => Method::Head,
        HttpMethod::OPTIONS => Method::Options,
        _ => Method::Other,
    };
    let path = request
        .uri()
        .path_and_query()
        .map_or("/", |path| path.as_str());
    let site_request = SiteRequest {
        method,
        target: path.as_bytes(),
        fields: request.headers(),
    };
    let site_response = core.site.response(&site_request).await;
    note(&request, &site_response, &streams);
    *response.status_mut() = site_response.status;
    for (name, value) in site_response.fields {
        response.headers_mut().append(name, value);
    }
    response.headers_mut().insert(DATE, core.clock.date());
    let body = match method {
        Method::Head => Body::Empty,
        _ => site_response.body,
    };
    Ok((response, body))
}

fn note(request: &Request<RecvStream>, site_response: &SiteResponse, streams: &Streams) {
    let Some(log) = &streams.core.log else {
        return;
    };
    let field = |name: &str| request.headers().get(name).map(|value| value.as_bytes());
    let target = request
        .uri()
        .path_and_query()
        .map_or("*", |path| path.as_str());
    let line = Line {
        peer: streams.peer,
        method: request.method().as_str().as_bytes(),
        target: target.as_bytes(),
        protocol: "HTTP/2.0",
        status: site_response.status.as_u16(),
        bytes: match *request.method() {
            HttpMethod::HEAD => 0,
            _ => site_response.body.bytes(),
        },
        referer: field("referer"),
        user_agent: field("user-agent"),
    };
    log.note(&streams.core.clock, &line);
}
