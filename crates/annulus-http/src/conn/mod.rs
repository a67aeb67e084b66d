//! A connection of HTTP/1.1: one task each. What is received is read where it lies, the responses to all requests of a
//! chunk are written to one buffer, and leave as one send.
//!
//! The hot path is `Connection::step`: no await, no allocation but the buffer's, no clock. Whatever else there is (a
//! file that is not in memory, a body, an error) goes through `cold`. Bounded in memory: no more is read while answers
//! of [`OUT_BYTES_MAX`] wait for the client to take them.

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

/// Bytes of responses that leave together; by then nothing more is read before they have.
const OUT_BYTES_MAX: usize = 64 << 10;
/// A connection that has sent no more in all has it in its socket, whatever the client does.
const UNWATCHED_BYTES: u64 = 8 << 10;
/// How a client begins that knows that HTTP/2 is spoken (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes that are read and thrown away at the end, so that the client gets to see the last response.
pub(crate) const LINGER_BYTES_MAX: usize = 256 << 10;

/// One connection.
pub(crate) struct Connection<T> {
    io: T,
    core: Rc<PerCore>,
    registration: Registration,
    /// Answers on their way into a send.
    out: Vec<u8>,
    /// A head of which there is only a part.
    unparsed: Vec<u8>,
    /// A request whose body is being read.
    unread: Option<Box<Unread>>,
    requests: u64,
    /// How many there had been when the head began that has a deadline now.
    timed: u64,
    /// Bytes that have been given to be sent.
    queued_bytes: u64,
    /// The client has said that it sends nothing behind its last request.
    is_last_request: bool,
    peer: Option<SocketAddr>,
}

/// A request that is answered when its body has been read.
struct Unread {
    head: Vec<u8>,
    body: Discard,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It does not: the client speaks HTTP/2.
    Http2,
    /// All is answered; it closes when that has been sent.
    Answered,
    /// The same, and the last response waits to leave together with the end.
    LastAnswer,
    /// As answered, and the client may still be sending: it must not be reset before it has seen the response.
    Lingering,
    /// Nothing more can or should be sent.
    Now,
}

/// What the hot path has come to.
enum Step {
    /// All that is there as a whole is answered.
    More,
    /// Enough answers wait.
    Full,
    /// The next request needs more than the hot path.
    Cold,
    /// A body has been read.
    BodyRead,
    /// A head has been written whose body is this file, so long.
    File(Rc<OpenFile>, u64, Manner),
    /// The last request was the connection's last.
    Last,
    Refused(Refusal),
}

enum Received<C> {
    Chunk(C),
    /// The client sends no more, or nothing is wanted any more.
    End,
    Late,
    Failed,
}

impl<T: Transport> Connection<T> {
    pub(crate) fn new(io: T, core: Rc<PerCore>, registration: Registration) -> Connection<T> {
        // Asked for only where it is written down.
        let peer = core.log.as_ref().and_then(|_| io.socket().peer_addr().ok());
        Connection {
            io,
            core,
            registration,
            out: Vec::new(),
            unparsed: Vec::new(),
            unread: None,
            requests: 0,
            timed: 0,
            queued_bytes: 0,
            is_last_request: false,
            peer,
        }
    }

    /// Speaks until the end; what is returned speaks HTTP/2.
    pub(crate) async fn run(mut self) -> Option<(T, Registration)> {
        self.registration.set(Phase::Fresh, self.core.ticks.idle);
        let end = loop {
            match self.receive().await {
                Received::Chunk(chunk) => {
                    if let Err(end) = self.take(chunk).await {
                        break end;
                    }
                }
                Received::End => break End::Answered,
                Received::Late => break Box::pin(self.late()).await,
                // Of TLS, where the client may be told why; TCP is gone.
                Received::Failed if !T::ENDS_WHEN_DROPPED => break End::Lingering,
                Received::Failed => break End::Now,
            }
        };
        match end {
            End::Http2 => return Some((self.io, self.registration)),
            End::LastAnswer => self.leave().await,
            End::Answered if self.ends_unwatched() => {}
            _ => Box::pin(self.end(end)).await,
        }
        None
    }

    /// Whether all that was answered fits into the socket: nobody needs to wait for it.
    fn ends_unwatched(&self) -> bool {
        T::ENDS_WHEN_DROPPED && self.queued_bytes + self.out.len() as u64 <= UNWATCHED_BYTES
    }

    /// Ends with the last response, which leaves together with the end.
    async fn leave(mut self) {
        let out = std::mem::take(&mut self.out);
        if let Err((io, out)) = self.io.close_with(out, &self.core.buffers) {
            // Something is being sent before it.
            (self.io, self.out) = (io, out);
            Box::pin(self.end(End::Answered)).await;
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

    /// Answers what is there as a whole, sends that, and keeps the rest.
    async fn take(&mut self, chunk: T::Chunk) -> Result<(), End> {
        let chunk = match self.requests {
            0 => self.unless_http2(chunk)?,
            _ => chunk,
        };
        if self.unparsed.is_empty() {
            let taken = self.consume(&chunk).await?;
            if taken < chunk.len() {
                self.unparsed.extend_from_slice(&chunk[taken..]);
            }
        } else {
            self.take_behind(chunk).await?;
        }
        self.flush().await?;
        self.wait_for_more();
        Ok(())
    }

    /// Whether the first bytes are those of HTTP/2: then nothing has been taken.
    fn unless_http2(&mut self, chunk: T::Chunk) -> Result<T::Chunk, End> {
        match self.unparsed.is_empty() && chunk.starts_with(PREFACE) {
            true => self.io.unread(chunk).ok_or(End::Http2),
            false => Ok(chunk),
        }
    }

    /// A head has come in several pieces.
    async fn take_behind(&mut self, chunk: T::Chunk) -> Result<(), End> {
        let mut unparsed = std::mem::take(&mut self.unparsed);
        let was_waiting = unparsed.len();
        unparsed.extend_from_slice(&chunk);
        // A head ends with a line. Bytes that come one by one are not worth a look each.
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

    /// Sets what is waited for, and for how long.
    fn wait_for_more(&mut self) {
        let ticks = &self.core.ticks;
        if self.unread.is_some() {
            // Its time runs from the head on.
            return;
        }
        if self.unparsed.is_empty() {
            self.registration.set(Phase::Idle, ticks.idle);
        } else if self.registration.phase() != Phase::Head || self.timed != self.requests {
            // From its first byte on, however many follow.
            self.timed = self.requests;
            self.registration.set(Phase::Head, ticks.head);
        }
    }

    /// Answers all that `bytes` has as a whole, and says how much that was.
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

    /// Sends what waits, behind which nothing follows. `alone`: the client has not sent more.
    async fn last(&mut self, alone: bool) -> End {
        // A client that might send more would get a reset, and not see a response that has not left.
        if alone && self.is_last_request && self.ends_unwatched() {
            return End::LastAnswer;
        }
        match self.flush().await {
            Ok(()) if alone => End::Answered,
            Ok(()) => End::Lingering,
            Err(end) => end,
        }
    }

    /// Answers requests whose responses are at hand.
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

    /// Another request; whether the connection goes on after it.
    #[inline]
    fn count(&mut self, head: &Head<'_, '_>) -> Manner {
        self.requests += 1;
        self.is_last_request = !head.keep_alive;
        let limit = self.core.limits.requests;
        let goes_on = (limit == 0 || self.requests < limit) && !self.core.watches.is_stopping();
        Manner::of(head, goes_on)
    }

    /// Writes a response down, where that is wanted.
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
