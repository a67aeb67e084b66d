//! The body of an HTTP/2 response.
//!
//! A file is read only as far as the client's windows allow, and just before it is written. A connection holds a few
//! pieces at a time, regardless of its number of streams. The pieces get smaller while all connections of the core
//! together hold many bytes.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, ready};

use async_lock::SemaphoreGuardArc;
use bytes::{Buf, Bytes};
use h2::{Reason, SendStream};

use super::{Open, Streams};
use crate::site::{Body, OpenFile, Piece};

/// The number of bytes of a file that are read at a time.
const PIECE_BYTES: u64 = 64 << 10;
/// The size of a piece while the connections of the core hold [`READ_AHEAD_BYTES`] that are read and not yet written.
/// Each then adds at most four pieces of this size.
const SMALL_PIECE_BYTES: u64 = 4 << 10;
const READ_AHEAD_BYTES: usize = 64 << 20;

/// Bytes for h2 to write. They are dropped once they were written or are no longer needed.
pub(super) struct Data {
    bytes: Bytes,
    open: Rc<Open>,
    _read: Option<ReadPermit>,
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
        self.open.0.note_progress(count as u64);
    }
}

/// The memory of a piece of a file, counted until it is freed.
struct ReadPermit {
    streams: Rc<Streams>,
    bytes: usize,
    _permit: SemaphoreGuardArc,
}

impl ReadPermit {
    /// Waits until the connection may read, and reserves at most `max_bytes` bytes.
    async fn acquire(streams: &Rc<Streams>, max_bytes: u64) -> ReadPermit {
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
        ReadPermit {
            streams: Rc::clone(streams),
            bytes,
            _permit: permit,
        }
    }
}

impl Drop for ReadPermit {
    fn drop(&mut self) {
        let all = &self.streams.core.read_ahead;
        all.set(all.get() - self.bytes);
    }
}

/// The reason why sending stopped: the stream has ended, or a file could not be read.
enum End {
    Gone,
    Unreadable,
}

/// Sends a body of at least one byte. If a file was truncated or cannot be read, resets the stream, because the head
/// announced more.
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
    /// The bytes of the body that are not yet sent.
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
            self.push(bytes.split_to(window), None)?;
        }
        Ok(())
    }

    async fn file(&mut self, file: &Rc<OpenFile>, mut at: u64, bytes: u64) -> Result<(), End> {
        let end = at.saturating_add(bytes);
        while at < end {
            let max_bytes = (end - at).min(PIECE_BYTES) as usize;
            let window = self.reserve_window(max_bytes).await?;
            let read = ReadPermit::acquire(&self.open.0, window as u64).await;
            let buf = Vec::with_capacity(read.bytes);
            match file.file().read_exact_at(buf, at).await {
                Ok(piece) => {
                    at += piece.len() as u64;
                    self.push(Bytes::from(piece), Some(read))?;
                }
                Err(_) => return Err(End::Unreadable),
            }
        }
        Ok(())
    }

    /// Waits for the windows and returns how many of `max_bytes` they allow, at least 1.
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

    fn push(&mut self, bytes: Bytes, read: Option<ReadPermit>) -> Result<(), End> {
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
