//! HTTP/2, by hyper: one task per connection and one per stream. What is answered is the site's, as over HTTP/1.1;
//! what is bounded is set here.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use annulus_adapters::hyper::CoreExecutor;
use bytes::Bytes;
use http::{HeaderMap, Method as HttpMethod, Request, Response, StatusCode};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::log::Line;
use crate::per_core::PerCore;
use crate::site::{Answer, Asked, Body, FieldLines, Method, OpenFile, Piece};
use crate::watch::{Phase, Place};

/// Bytes of a file that are read at once.
const PIECE_BYTES: u64 = 64 << 10;
/// Bytes of a stream that wait for the client's window.
const WAITING_BYTES_MAX: usize = 128 << 10;
/// Streams that the client has reset and hyper has not looked at yet, by which the connection ends: rapid reset
/// (CVE-2023-44487) makes nothing but these.
const RESET_STREAMS_MAX: usize = 20;

/// What the streams of a connection share.
struct Streams {
    core: Rc<PerCore>,
    place: Place,
    peer: Option<SocketAddr>,
    /// Requests whose answers have not been sent.
    open: Cell<u32>,
}

/// One of them. Dropped, it is over.
struct Open(Rc<Streams>);

impl Streams {
    fn begin(self: &Rc<Self>) -> Open {
        self.open.set(self.open.get() + 1);
        self.progress();
        Open(Rc::clone(self))
    }

    /// The client has asked, or taken something: its time begins anew.
    fn progress(&self) {
        self.place.set(Phase::Busy, self.core.ticks.send);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let streams = &self.0;
        streams.open.set(streams.open.get() - 1);
        if streams.open.get() == 0 {
            streams.place.set(Phase::Idle, streams.core.ticks.idle);
        }
    }
}

/// Speaks HTTP/2 until the end.
pub(crate) async fn serve<S>(stream: S, peer: Option<SocketAddr>, core: Rc<PerCore>, place: Place)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    place.set(Phase::Fresh, core.ticks.head);
    let streams = Rc::new(Streams {
        core: Rc::clone(&core),
        place,
        peer,
        open: Cell::new(0),
    });
    let service = {
        let streams = Rc::clone(&streams);
        service_fn(move |request| respond(request, Rc::clone(&streams)))
    };
    let limits = &core.limits;
    let mut builder = hyper::server::conn::http2::Builder::new(CoreExecutor);
    builder
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(u32::try_from(limits.head_bytes).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(RESET_STREAMS_MAX)
        .max_send_buf_size(WAITING_BYTES_MAX);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut told = false;
    poll_fn(|context| {
        // Its error is the client's, who has been told or has gone.
        if connection.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        let late = streams.place.take_expired();
        if late && (told || streams.open.get() > 0) {
            return Poll::Ready(());
        }
        if (late || core.watches.is_stopping()) && !told {
            told = true;
            connection.as_mut().graceful_shutdown();
            streams.place.set(Phase::Busy, core.ticks.send);
            context.waker().wake_by_ref();
        }
        streams.place.wait(context);
        Poll::Pending
    })
    .await;
}

impl FieldLines for HeaderMap {
    fn each<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        self.get_all(name)
            .iter()
            .for_each(|value| each(value.as_bytes()));
    }
}

/// Reads a request's body, which means nothing, to its end: only there does HTTP/2 tell whether it has the length that
/// was said. False: it is longer than what is read of one.
async fn discard(body: &mut Incoming, bytes_max: u64) -> hyper::Result<bool> {
    let mut bytes = 0;
    while let Some(frame) = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await {
        bytes += frame?.data_ref().map_or(0, |data| data.len() as u64);
        if bytes > bytes_max {
            return Ok(false);
        }
    }
    Ok(true)
}

/// An error resets the stream.
async fn respond(
    mut request: Request<Incoming>,
    streams: Rc<Streams>,
) -> hyper::Result<Response<Sending>> {
    let open = streams.begin();
    if !discard(request.body_mut(), streams.core.limits.body_bytes).await? {
        let mut response = Response::new(Sending::new(open, Body::Empty, false));
        *response.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
        return Ok(response);
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
    let asked = Asked {
        method,
        target: path.as_bytes(),
        fields: request.headers(),
    };
    let answer = streams.core.site.answer(&asked).await;
    note(&request, &answer, &streams);
    let mut response = Response::new(Sending::new(open, answer.body, method == Method::Head));
    *response.status_mut() = answer.status;
    for (name, value) in answer.fields {
        response.headers_mut().append(name, value);
    }
    Ok(response)
}

fn note(request: &Request<Incoming>, answer: &Answer, streams: &Streams) {
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
        status: answer.status.as_u16(),
        bytes: match *request.method() {
            HttpMethod::HEAD => 0,
            _ => answer.body.bytes(),
        },
        referer: field("referer"),
        user_agent: field("user-agent"),
    };
    log.note(&streams.core.clock, &line);
}

type Reading = Pin<Box<dyn Future<Output = io::Result<Vec<u8>>>>>;

/// An answer's body on its way.
struct Sending {
    open: Open,
    pieces: VecDeque<Piece>,
    left: u64,
    reading: Option<Reading>,
}

impl Sending {
    fn new(open: Open, body: Body, head_only: bool) -> Sending {
        let left = if head_only { 0 } else { body.bytes() };
        let pieces = match body {
            _ if head_only => VecDeque::new(),
            Body::Empty => VecDeque::new(),
            Body::Bytes(bytes) => VecDeque::from([Piece::Bytes(bytes)]),
            Body::File {
                file,
                offset,
                bytes,
            } => VecDeque::from([Piece::File {
                file,
                offset,
                bytes,
            }]),
            Body::Parts { pieces, .. } => pieces.into(),
        };
        Sending {
            open,
            pieces,
            left,
            reading: None,
        }
    }

    /// Begins to read the next part of a file, or has bytes that are there.
    fn next(&mut self) -> Option<Bytes> {
        match self.pieces.pop_front()? {
            Piece::Bytes(bytes) => Some(bytes),
            Piece::File {
                file,
                offset,
                bytes,
            } => {
                let now = bytes.min(PIECE_BYTES);
                if bytes > now {
                    self.pieces.push_front(Piece::File {
                        file: Rc::clone(&file),
                        offset: offset + now,
                        bytes: bytes - now,
                    });
                }
                self.reading = Some(Box::pin(read(file, offset, now)));
                None
            }
        }
    }
}

async fn read(file: Rc<OpenFile>, offset: u64, bytes: u64) -> io::Result<Vec<u8>> {
    let buf = Vec::with_capacity(usize::try_from(bytes).unwrap_or_default());
    Ok(file.file().read_exact_at(buf, offset).await?)
}

impl http_body::Body for Sending {
    type Data = Bytes;
    /// A file has become shorter, or can't be read: the stream is reset, as its head has promised more.
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.open.0.progress();
        loop {
            let bytes = if let Some(reading) = &mut self.reading {
                let read = ready!(reading.as_mut().poll(context));
                self.reading = None;
                match read {
                    Ok(read) => Bytes::from(read),
                    Err(error) => return Poll::Ready(Some(Err(error))),
                }
            } else if self.pieces.is_empty() {
                return Poll::Ready(None);
            } else if let Some(bytes) = self.next() {
                bytes
            } else {
                continue;
            };
            self.left -= bytes.len() as u64;
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty() && self.reading.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
