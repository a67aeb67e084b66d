//! A response's body on its way to a stream of HTTP/2. Nothing of a file is read before the client's windows let it
//! through, and no more than is about to be written: a connection has a few pieces at a time, however many streams it
//! has, and those of all connections of a core are small when together they hold much.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, ready};

use async_lock::SemaphoreGuardArc;
use bytes::{Buf, Bytes};
use h2::{Reason, SendStream};

use super::{Open, Streams};
use crate::site::{Body, OpenFile, Piece};

/// Bytes of a file that are read at once.
const PIECE_BYTES: u64 = 64 << 10;
/// The same while all connections of the core have read as much as this and not yet written it. What they hold more
/// is four of these pieces each.
const SMALL_PIECE_BYTES: u64 = 4 << 10;
const READ_AHEAD_BYTES: usize = 64 << 20;

/// Bytes that h2 is to write. Dropped, they have been, or never will be.
pub(super) struct Data {
    bytes: Bytes,
    open: Rc<Open>,
    _read: Option<Read>,
}

impl Buf for Data {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        self.open.0.has_come(count as u64);
    }
}

/// Memory for a piece of a file, counted until it is freed.
struct Read {
    streams: Rc<Streams>,
    bytes: usize,
    _permit: SemaphoreGuardArc,
}

impl Read {
    /// Waits until the connection may read, and counts what that is: at most `max_bytes` bytes.
    async fn acquire(streams: &Rc<Streams>, max_bytes: u64) -> Read {
        let permit = match streams.pieces.try_acquire_arc() {
            Some(permit) => permit,
            None => Arc::clone(&streams.pieces).acquire_arc().await,
        };
        let all = &streams.core.read_ahead;
        let most = match all.get() < READ_AHEAD_BYTES {
            true => PIECE_BYTES,
            false => SMALL_PIECE_BYTES,
        };
        let bytes = max_bytes.min(most) as usize;
        all.set(all.get() + bytes);
        Read {
            streams: Rc::clone(streams),
            bytes,
            _permit: permit,
        }
    }
}

impl Drop for Read {
    fn drop(&mut self) {
        let all = &self.streams.core.read_ahead;
        all.set(all.get() - self.bytes);
    }
}

/// Why nothing more is sent: the stream has ended, or a file could not be read.
enum End {
    Gone,
    Unreadable,
}

/// Sends a body that has at least one byte. A file that has become shorter, or can't be read, resets the stream: its
/// head has promised more.
pub(super) async fn send(stream: SendStream<Data>, body: Body, open: Open) {
    let mut sending = Sending {
        stream,
        left: body.bytes(),
        open: Rc::new(open),
    };
    let sent = match body {
        Body::Empty => Ok(()),
        Body::Bytes(bytes) => sending.bytes(bytes).await,
        Body::File {
            file,
            offset,
            bytes,
        } => sending.file(&file, offset, bytes).await,
        Body::Parts { pieces, .. } => sending.pieces(pieces).await,
    };
    if let Err(End::Unreadable) = sent {
        sending.stream.send_reset(Reason::INTERNAL_ERROR);
    }
}

struct Sending {
    stream: SendStream<Data>,
    /// Bytes of the body.
    left: u64,
    open: Rc<Open>,
}

impl Sending {
    async fn pieces(&mut self, pieces: Vec<Piece>) -> Result<(), End> {
        for piece in pieces {
            match piece {
                Piece::Bytes(bytes) => self.bytes(bytes).await?,
                Piece::File {
                    file,
                    offset,
                    bytes,
                } => self.file(&file, offset, bytes).await?,
            }
        }
        Ok(())
    }

    async fn bytes(&mut self, mut bytes: Bytes) -> Result<(), End> {
        while !bytes.is_empty() {
            let window = self.reserve_window(bytes.len()).await?;
            self.give(bytes.split_to(window), None)?;
        }
        Ok(())
    }

    async fn file(&mut self, file: &Rc<OpenFile>, mut at: u64, bytes: u64) -> Result<(), End> {
        let end = at.saturating_add(bytes);
        while at < end {
            let max_bytes = (end - at).min(PIECE_BYTES) as usize;
            let window = self.reserve_window(max_bytes).await?;
            let read = Read::acquire(&self.open.0, window as u64).await;
            let buf = Vec::with_capacity(read.bytes);
            match file.file().read_exact_at(buf, at).await {
                Ok(piece) => {
                    at += piece.len() as u64;
                    self.give(Bytes::from(piece), Some(read))?;
                }
                Err(_) => return Err(End::Unreadable),
            }
        }
        Ok(())
    }

    /// How many of N bytes the windows let through; at least one.
    async fn reserve_window(&mut self, max_bytes: usize) -> Result<usize, End> {
        let stream = &mut self.stream;
        stream.reserve_capacity(max_bytes);
        poll_fn(|context| {
            loop {
                let window = stream.capacity().min(max_bytes);
                if window > 0 {
                    return Poll::Ready(Ok(window));
                }
                let Some(Ok(_)) = ready!(stream.poll_capacity(context)) else {
                    return Poll::Ready(Err(End::Gone));
                };
            }
        })
        .await
    }

    fn give(&mut self, bytes: Bytes, read: Option<Read>) -> Result<(), End> {
        self.left -= bytes.len() as u64;
        let data = Data {
            bytes,
            open: Rc::clone(&self.open),
            _read: read,
        };
        let sent = self.stream.send_data(data, self.left == 0);
        sent.map_err(|_| End::Gone)
    }
}
