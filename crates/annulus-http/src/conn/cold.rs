//! The cold path: responses that need I/O, request bodies, errors, and the end of a connection.

use http::StatusCode;
use httparse::Header;

use super::body::Discard;
use super::head::{self, Framing, Head, Verb};
use super::response::{self, CONTINUE, Manner, write_head};
use super::{Connection, End, LINGER_BYTES_MAX, Received, Refusal, Unread, refusal};
use crate::log::Line;
use crate::site::{Body, FieldLines, Method, SiteRequest, SiteResponse};
use crate::stall::with_send_timeout;
use crate::transport::Transport;
use crate::watch::Phase;

/// The fields of a request, for the site.
struct Lines<'h, 'b>(&'h [Header<'b>]);

impl FieldLines for Lines<'_, '_> {
    fn each<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        let named = self
            .0
            .iter()
            .filter(|field| field.name.eq_ignore_ascii_case(name));
        named.for_each(|field| each(field.value));
    }
}

impl<T: Transport> Connection<T> {
    /// Handles the request at the start of `bytes`: answers it, or prepares to read its body. Returns the length of its
    /// head.
    pub(super) async fn begin(&mut self, bytes: &[u8]) -> Result<usize, End> {
        let mut headers = head::header_array();
        let head = match head::parse(bytes, &mut headers, &self.core.limits) {
            Ok(Some(head)) => head,
            // Unreachable: the hot path has parsed the same bytes.
            Ok(None) => return Ok(0),
            Err(refusal) => return Err(self.refuse(refusal).await),
        };
        if head.framing == Framing::Empty {
            self.response(&head, bytes.len() > head.bytes, true).await?;
            return Ok(head.bytes);
        }
        let is_served = matches!(head.verb, Verb::Get | Verb::Head | Verb::Options);
        let body = match Discard::new(head.framing, self.core.limits.body_bytes) {
            // A refused method is refused without the body if the client waits for `100 Continue`.
            Ok(_) if !is_served && head.expects_continue => {
                self.response(&head, true, false).await?;
                return Ok(head.bytes);
            }
            Ok(body) => body,
            Err(_) if !is_served => {
                self.response(&head, true, false).await?;
                return Ok(head.bytes);
            }
            Err(refusal) => return Err(self.refuse(refusal).await),
        };
        if head.expects_continue && bytes.len() == head.bytes {
            self.out.extend_from_slice(CONTINUE);
        }
        self.unread = Some(Box::new(Unread {
            head: bytes[..head.bytes].to_vec(),
            body,
            until: self.registration.now() + self.core.ticks.body,
        }));
        Ok(head.bytes)
    }

    /// Answers a request whose body has been read.
    pub(super) async fn respond_unread(&mut self) -> Result<(), End> {
        let Some(unread) = self.unread.take() else {
            return Ok(());
        };
        let mut headers = head::header_array();
        match head::parse(&unread.head, &mut headers, &self.core.limits) {
            // Whether a request is pipelined behind the body is not known here, and does not matter.
            Ok(Some(head)) => self.response(&head, false, true).await,
            _ => Err(End::Now),
        }
    }

    /// Answers a request. `more`: further bytes follow it. `goes_on`: the connection may go on.
    async fn response(
        &mut self,
        head: &Head<'_, '_>,
        more: bool,
        goes_on: bool,
    ) -> Result<(), End> {
        // The time until the response is the server's; no deadline applies.
        self.registration.set(Phase::Busy, 0);
        let method = match head.verb {
            Verb::Get => Method::Get,
            Verb::Head => Method::Head,
            Verb::Options => Method::Options,
            Verb::Known | Verb::Unknown => Method::Other,
        };
        let response = match head.verb {
            Verb::Unknown => response::refused(refusal(501, "unknown method")),
            _ => {
                let fields = Lines(head.fields);
                let site_request = SiteRequest {
                    method,
                    target: head.target,
                    fields: &fields,
                };
                self.core.site.response(&site_request).await
            }
        };
        let manner = match self.count(head) {
            // The bytes after a CONNECT are not HTTP.
            _ if !goes_on || head.method == "CONNECT" => Manner::Closes,
            manner => manner,
        };
        self.note(head, response.status.as_u16(), response.body.bytes());
        if self.out.capacity() == 0 {
            self.out = self.core.buffers.take();
        }
        write_head(&mut self.out, &self.core.clock, manner, &response);
        if head.verb != Verb::Head {
            self.send_body(response.body).await?;
        }
        if manner != Manner::Closes {
            return Ok(());
        }
        self.flush().await?;
        Err(if more || !goes_on {
            End::Lingering
        } else {
            End::Complete
        })
    }

    /// Sends an error response and ends the connection, because the start of the next request is unknown.
    pub(super) async fn refuse(&mut self, refusal: Refusal) -> End {
        let response = response::refused(refusal);
        write_head(&mut self.out, &self.core.clock, Manner::Closes, &response);
        self.note_refusal(&response);
        if let Body::Bytes(body) = &response.body {
            self.out.extend_from_slice(body);
        }
        match self.flush().await {
            Ok(()) => End::Lingering,
            Err(end) => end,
        }
    }

    fn note_refusal(&self, response: &SiteResponse) {
        let Some(log) = &self.core.log else {
            return;
        };
        let line = Line {
            peer: self.peer,
            method: b"-",
            target: b"-",
            protocol: "HTTP/1.1",
            status: response.status.as_u16(),
            bytes: response.body.bytes(),
            referer: None,
            user_agent: None,
        };
        log.note(&self.core.clock, &line);
    }

    /// Handles an expired deadline. A client that has begun a request gets a response.
    pub(super) async fn late(&mut self) -> End {
        if self.early.is_empty() && self.unparsed.is_empty() && self.unread.is_none() {
            return End::Complete;
        }
        let late = StatusCode::REQUEST_TIMEOUT.as_u16();
        self.refuse(refusal(late, "the request did not arrive in time"))
            .await
    }

    /// Ends the connection in an orderly way.
    pub(super) async fn end(&mut self, end: End) {
        if end == End::Now || self.sent().await.is_err() {
            return self.io.abort();
        }
        if end == End::Complete {
            return self.close().await;
        }
        self.close().await;
        self.registration.set(Phase::Busy, self.core.ticks.linger);
        let mut left = LINGER_BYTES_MAX;
        while let Received::Chunk(chunk) = self.receive().await {
            left = match left.checked_sub(chunk.len()) {
                Some(left) => left,
                None => break,
            };
        }
    }

    /// Tells the client that no more data follows.
    async fn close(&mut self) {
        let progress = self.io.socket().send_progress();
        with_send_timeout(
            &self.registration,
            &self.core.ticks,
            progress,
            self.io.finish(),
        )
        .await;
    }
}
