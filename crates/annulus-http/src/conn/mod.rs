//! An HTTP/1.1 connection: one task each.
//!
//! Requests are parsed in the buffer in which they were received. The responses to all requests of a chunk are written
//! to one buffer, and leave in one send.
//!
//! The hot path is `Connection::step`. It does not await, read a clock, or allocate more than the buffer. Everything
//! else goes through `cold`: files that are not in memory, bodies, errors. Memory is bounded: while [`OUT_BYTES_MAX`]
//! of responses wait for the client, nothing more is read.

mod body;
mod cold;
mod head;
mod response;
mod send;

use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Poll;

use crate::log::Line;
use crate::per_core::PerCore;
use crate::site::{OpenFile, Prompt};
use crate::transport::Transport;
use crate::watch::{Phase, Registration};
use body::Discard;
use head::{Head, Refusal, Verb, refusal};
use response::{Manner, write_ready};

/// The largest number of response bytes in one send. Nothing more is read before they have been sent.
const OUT_BYTES_MAX: usize = 64 << 10;
/// The number of sent bytes that always fit into the socket buffer, even if the client reads nothing.
const SOCKET_BUFFER_BYTES: u64 = 8 << 10;
/// The first bytes of an HTTP/2 connection (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The number of bytes that are read and discarded before a close, so that the client receives the last response.
pub(crate) const LINGER_BYTES_MAX: usize = 256 << 10;

/// An HTTP/1.1 connection.
pub(crate) struct Connection<T: Transport> {
    io: T,
    core: Rc<PerCore>,
    registration: Registration,
    /// Responses that have not been submitted.
    out: Vec<u8>,
    /// The first bytes of the connection, while they may be the start of HTTP/2.
    early: Vec<T::Chunk>,
    /// An incomplete head.
    unparsed: Vec<u8>,
    /// A request whose body is being read.
    unread: Option<Box<Unread>>,
    requests: u64,
    /// The number of requests when the head with the current deadline began.
    timed: u64,
    /// The number of submitted bytes.
    queued_bytes: u64,
    /// The client has announced that the current request is its last.
    is_last_request: bool,
    peer: Option<SocketAddr>,
}

/// A request that is answered once its body has been read.
struct Unread {
    head: Vec<u8>,
    body: Discard,
    /// The tick until which the body must have arrived.
    until: u64,
}

/// The way in which a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The connection continues as HTTP/2.
    Http2,
    /// All requests are answered. The connection is closed once the responses have been sent.
    Complete,
    /// `Complete`, and the last response can be sent together with the end of the stream.
    LastResponse,
    /// `Complete`, but the client may still send. The close must not reset the connection before the client has
    /// received the response.
    Lingering,
    /// Nothing more can or should be sent.
    Now,
}

/// The result of the hot path.
enum Step {
    /// All complete requests are answered.
    More,
    /// The output buffer is full.
    Full,
    /// The next request needs the cold path.
    Cold,
    /// A request body has been read.
    BodyRead,
    /// A head was written; its body is this file, with this length.
    File(Rc<OpenFile>, u64, Manner),
    /// The last request of the connection was answered.
    Last,
    Refused(Refusal),
}

enum Received<C> {
    Chunk(C),
    /// The client sends no more, or the connection must end.
    End,
    Late,
    Failed,
}

impl<T: Transport> Connection<T> {
    pub(crate) fn new(io: T, core: Rc<PerCore>, registration: Registration) -> Connection<T> {
        // Only needed for the log.
        let peer = core.log.as_ref().and_then(|_| io.socket().peer_addr().ok());
        Connection {
            io,
            core,
            registration,
            out: Vec::new(),
            early: Vec::new(),
            unparsed: Vec::new(),
            unread: None,
            requests: 0,
            timed: 0,
            queued_bytes: 0,
            is_last_request: false,
            peer,
        }
    }

    /// Serves requests until the end. Returns the transport if the client uses HTTP/2.
    pub(crate) async fn run(mut self) -> Option<(T, Registration)> {
        self.registration.set(Phase::Fresh, self.core.ticks.idle);
        let end = loop {
            match self.receive().await {
                Received::Chunk(chunk) => {
                    if let Err(end) = self.take(chunk).await {
                        break end;
                    }
                }
                Received::End => break End::Complete,
                Received::Late => break Box::pin(self.late()).await,
                // TLS can still send an alert. A TCP connection is gone.
                Received::Failed if !T::ENDS_WHEN_DROPPED => break End::Lingering,
                Received::Failed => break End::Now,
            }
        };
        match end {
            End::Http2 => return Some((self.io, self.registration)),
            End::LastResponse => self.send_last().await,
            End::Complete if self.fits_socket_buffer() => {}
            _ => Box::pin(self.end(end)).await,
        }
        None
    }

    /// Returns whether all responses fit into the socket buffer, so that no task needs to wait for them.
    fn fits_socket_buffer(&self) -> bool {
        T::ENDS_WHEN_DROPPED && self.queued_bytes + self.out.len() as u64 <= SOCKET_BUFFER_BYTES
    }

    /// Sends the last response together with the end of the stream.
    async fn send_last(mut self) {
        let out = std::mem::take(&mut self.out);
        if let Err((io, out)) = self.io.close_with(out, &self.core.buffers) {
            // A send is in flight.
            (self.io, self.out) = (io, out);
            Box::pin(self.end(End::Complete)).await;
        }
    }

    async fn receive(&mut self) -> Received<T::Chunk> {
        poll_fn(|context| {
            if let Poll::Ready(received) = self.io.poll_receive(context) {
                return Poll::Ready(match received {
                    Some(Ok(chunk)) => Received::Chunk(chunk),
                    None => Received::End,
                    Some(Err(_)) => Received::Failed,
                });
            }
            if self.registration.take_expired() {
                return Poll::Ready(Received::Late);
            }
            if self.registration.should_close() {
                return Poll::Ready(Received::End);
            }
            self.registration.wait(context);
            Poll::Pending
        })
        .await
    }

    /// Answers the complete requests in `chunk`, sends the responses, and keeps the rest.
    async fn take(&mut self, chunk: T::Chunk) -> Result<(), End> {
        let chunk = match self.requests {
            0 => match self.unless_http2(chunk)? {
                Some(chunk) => chunk,
                None => return Ok(()),
            },
            _ => chunk,
        };
        if self.unparsed.is_empty() {
            let taken = self.consume(&chunk).await?;
            if taken < chunk.len() {
                self.unparsed.extend_from_slice(&chunk[taken..]);
            }
        } else {
            self.take_continuation(chunk).await?;
        }
        self.flush().await?;
        self.wait_for_more();
        Ok(())
    }

    /// Returns `End::Http2` if the first bytes are those of HTTP/2. They stay unread then. Keeps a part of them, which
    /// may arrive in pieces, and returns `None`.
    fn unless_http2(&mut self, chunk: T::Chunk) -> Result<Option<T::Chunk>, End> {
        let before: usize = self.early.iter().map(|piece| piece.len()).sum();
        let rest = &PREFACE[before..];
        let bytes = rest.len().min(chunk.len());
        if !T::DETECTS_HTTP2 || !self.unparsed.is_empty() || chunk[..bytes] != rest[..bytes] {
            for piece in self.early.drain(..) {
                self.unparsed.extend_from_slice(&piece);
            }
            return Ok(Some(chunk));
        }
        self.early.push(chunk);
        if bytes < rest.len() {
            if before == 0 {
                self.registration.set(Phase::Head, self.core.ticks.head);
            }
            return Ok(None);
        }
        for piece in self.early.drain(..).rev() {
            self.io.unread(piece);
        }
        Err(End::Http2)
    }

    /// Takes a chunk that continues an incomplete head.
    async fn take_continuation(&mut self, chunk: T::Chunk) -> Result<(), End> {
        let mut unparsed = std::mem::take(&mut self.unparsed);
        let was_waiting = unparsed.len();
        unparsed.extend_from_slice(&chunk);
        // A head ends with a line feed. Other pieces are not worth parsing.
        let limit = self.core.limits.head_bytes;
        if unparsed.len() <= limit && memchr::memchr(b'\n', &chunk).is_none() {
            self.unparsed = unparsed;
            return Ok(());
        }
        drop(chunk);
        let taken = self.consume(&unparsed).await?;
        debug_assert!(taken == 0 || taken > was_waiting);
        if taken < unparsed.len() {
            unparsed.drain(..taken);
            self.unparsed = unparsed;
        }
        Ok(())
    }

    /// Sets the phase and its deadline.
    fn wait_for_more(&mut self) {
        let ticks = &self.core.ticks;
        if let Some(unread) = &self.unread {
            // The time for a body starts at the end of the head. A send in between had another limit.
            let left = unread.until.saturating_sub(self.registration.now());
            self.registration.set(Phase::Busy, left.max(1));
        } else if self.unparsed.is_empty() {
            self.registration.set(Phase::Idle, ticks.idle);
        } else if self.registration.phase() != Phase::Head || self.timed != self.requests {
            // The time for a head starts with its first byte.
            self.timed = self.requests;
            self.registration.set(Phase::Head, ticks.head);
        }
    }

    /// Answers all complete requests in `bytes` and returns their length.
    async fn consume(&mut self, bytes: &[u8]) -> Result<usize, End> {
        let mut at = 0;
        loop {
            match self.step(bytes, &mut at) {
                Step::More => return Ok(at),
                Step::Full => self.flush().await?,
                Step::Cold => at += Box::pin(self.begin(&bytes[at..])).await?,
                Step::BodyRead => Box::pin(self.respond_unread()).await?,
                Step::File(file, length, manner) => {
                    Box::pin(self.send_file(&file, 0, length)).await?;
                    if manner == Manner::Closes {
                        return Err(self.last(at == bytes.len()).await);
                    }
                }
                Step::Last => return Err(self.last(at == bytes.len()).await),
                Step::Refused(refusal) => {
                    return Err(Box::pin(self.refuse(refusal)).await);
                }
            }
        }
    }

    /// Sends the remaining responses, after which the connection ends. `alone`: the client has not sent more.
    async fn last(&mut self, alone: bool) -> End {
        // If the client sends more, the connection is reset, and a response that has not left would be lost.
        if alone && self.is_last_request && self.fits_socket_buffer() {
            return End::LastResponse;
        }
        match self.flush().await {
            Ok(()) if alone => End::Complete,
            Ok(()) => End::Lingering,
            Err(end) => end,
        }
    }

    /// Answers requests for which a response is ready.
    fn step(&mut self, bytes: &[u8], at: &mut usize) -> Step {
        loop {
            if *at == bytes.len() {
                return Step::More;
            }
            if let Some(unread) = &mut self.unread {
                match unread.body.take(&bytes[*at..]) {
                    Ok(taken) => *at += taken,
                    Err(refusal) => return Step::Refused(refusal),
                }
                match unread.body.is_over() {
                    true => return Step::BodyRead,
                    false => continue,
                }
            }
            if self.out.len() >= OUT_BYTES_MAX {
                return Step::Full;
            }
            let mut headers = head::header_array();
            let head = match head::parse(&bytes[*at..], &mut headers, &self.core.limits) {
                Ok(Some(head)) => head,
                Ok(None) => return Step::More,
                Err(refusal) => return Step::Refused(refusal),
            };
            if !head.plain || !matches!(head.verb, Verb::Get | Verb::Head) {
                return Step::Cold;
            }
            let now = self.core.clock.now();
            let prompt = self.core.site.ready(now, head.target, head.accept_encoding);
            let (ready, file) = match prompt {
                Some(Prompt::Whole(ready)) => (ready, None),
                Some(Prompt::Opened { ready, file, bytes }) => (ready, Some((file, bytes))),
                None => return Step::Cold,
            };
            *at += head.bytes;
            let manner = self.count(&head);
            if self.out.capacity() == 0 {
                self.out = self.core.buffers.take();
            }
            write_ready(&mut self.out, &self.core.clock, manner, &ready, head.verb);
            let in_memory = (ready.tail().len() - ready.head().len()) as u64;
            let body_bytes = file.as_ref().map_or(in_memory, |(_, bytes)| *bytes);
            self.note(&head, ready.status().as_u16(), body_bytes);
            if let Some((file, bytes)) = file
                && head.verb == Verb::Get
            {
                return Step::File(file, bytes, manner);
            }
            if manner == Manner::Closes {
                return Step::Last;
            }
        }
    }

    /// Counts a request and returns whether the connection goes on after it.
    #[inline]
    fn count(&mut self, head: &Head<'_, '_>) -> Manner {
        self.requests += 1;
        self.is_last_request = !head.keep_alive;
        let limit = self.core.limits.requests;
        let goes_on = (limit == 0 || self.requests < limit) && !self.core.watches.is_stopping();
        Manner::of(head, goes_on)
    }

    /// Logs a response, if there is a log.
    #[inline]
    fn note(&self, head: &Head<'_, '_>, status: u16, bytes: u64) {
        let Some(log) = &self.core.log else {
            return;
        };
        let field = |name: &str| {
            let field = head
                .fields
                .iter()
                .find(|field| field.name.eq_ignore_ascii_case(name));
            field.map(|field| field.value)
        };
        let line = Line {
            peer: self.peer,
            method: head.method.as_bytes(),
            target: head.target,
            protocol: if head.minor == 0 {
                "HTTP/1.0"
            } else {
                "HTTP/1.1"
            },
            status,
            bytes: if head.verb == Verb::Head { 0 } else { bytes },
            referer: field("referer"),
            user_agent: field("user-agent"),
        };
        log.note(&self.core.clock, &line);
    }
}
