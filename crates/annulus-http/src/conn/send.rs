//! Sending of the output buffer, and of bodies that are too large for it.

use std::io::{self, Write};
use std::rc::Rc;

use super::{Connection, End, OUT_BYTES_MAX};
use crate::site::{Body, Cached, OpenFile, Piece};
use crate::stall::with_send_timeout;
use crate::transport::Transport;
use crate::watch::Phase;

/// The size of the pieces in which a file is read and sent, for slow and for fast clients.
const PIECE_BYTES_MIN: usize = 64 << 10;
const PIECE_BYTES_MAX: usize = 256 << 10;

/// The number of bytes of a file that are checked for presence in the page cache at a time.
const CACHED_BYTES: u64 = 4 << 20;

impl<T: Transport> Connection<T> {
    /// Starts to send the output buffer. If the previous send is still in flight, waits for it.
    #[inline]
    pub(super) async fn flush(&mut self) -> Result<(), End> {
        if self.out.is_empty() {
            return Ok(());
        }
        let out = std::mem::take(&mut self.out);
        self.queued_bytes += out.len() as u64;
        match self.io.try_send(out, &self.core.buffers) {
            Ok(()) => Ok(()),
            Err(out) => Box::pin(self.send_slowly(out)).await,
        }
    }

    /// Sends and waits for the completion. The memory is reused.
    async fn send_slowly(&mut self, bytes: Vec<u8>) -> Result<(), End> {
        let progress = self.io.socket().send_progress();
        match with_send_timeout(
            &self.registration,
            &self.core.ticks,
            progress,
            self.io.send(bytes),
        )
        .await
        {
            Some(Ok(out)) => self.core.buffers.give_back(out),
            _ => return Err(End::Now),
        }
        Ok(())
    }

    /// Waits until the kernel has all bytes.
    pub(super) async fn sent(&mut self) -> Result<(), End> {
        self.flush().await?;
        let socket = self.io.socket();
        let progress = socket.send_progress();
        match with_send_timeout(
            &self.registration,
            &self.core.ticks,
            progress,
            socket.sent(),
        )
        .await
        {
            Some(Ok(())) => Ok(()),
            _ => Err(End::Now),
        }
    }

    /// Sends a body after the head in the output buffer.
    pub(super) async fn send_body(&mut self, body: Body) -> Result<(), End> {
        match body {
            Body::Empty => Ok(()),
            Body::Bytes(bytes) => self.send_bytes(&bytes).await,
            Body::File {
                file,
                offset,
                bytes,
            } => self.send_file(&file, offset, bytes).await,
            Body::Parts { pieces, .. } => {
                for piece in pieces {
                    match piece {
                        Piece::Bytes(bytes) => self.send_bytes(&bytes).await?,
                        Piece::File {
                            file,
                            offset,
                            bytes,
                        } => self.send_file(&file, offset, bytes).await?,
                    }
                }
                Ok(())
            }
        }
    }

    async fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), End> {
        for piece in bytes.chunks(OUT_BYTES_MAX) {
            if self.out.len() + piece.len() > 2 * OUT_BYTES_MAX {
                self.flush().await?;
            }
            self.out.extend_from_slice(piece);
        }
        Ok(())
    }

    /// Sends a range of a file. If the file was truncated, the connection ends, because the head announced more.
    pub(super) async fn send_file(
        &mut self,
        file: &Rc<OpenFile>,
        offset: u64,
        bytes: u64,
    ) -> Result<(), End> {
        let end = offset.saturating_add(bytes);
        let mut at = offset;
        while at < end {
            let next = (at + CACHED_BYTES).min(end);
            let now = self.core.clock.now();
            match file.cached(&(at..next), now) {
                Cached::Yes => {}
                // Other connections run while this one waits for the disk.
                Cached::No => {
                    self.send_read(file, at, next).await?;
                    at = next;
                    continue;
                }
                Cached::Unknown => {
                    self.read(file, next - 1, 1).await?;
                    file.note_cached(&(at..next), now);
                }
            }
            let head = std::mem::take(&mut self.out);
            let (registration, ticks) = (&self.registration, &self.core.ticks);
            let progress = self.io.socket().send_progress();
            let has_room = || registration.set(Phase::Busy, ticks.send_check);
            let sending = self.io.send_file(&head, file, at..next, has_room);
            match with_send_timeout(registration, ticks, progress, sending).await {
                Some(Ok(Some(sent))) if sent == next - at => {
                    self.queued_bytes += head.len() as u64 + sent;
                    self.core.buffers.give_back(head);
                }
                Some(Ok(None)) => {
                    self.out = head;
                    return self.send_read(file, at, end).await;
                }
                _ => return Err(End::Now),
            }
            at = next;
        }
        Ok(())
    }

    /// Reads and sends in turns. The next piece is read while the previous one is being sent.
    async fn send_read(&mut self, file: &Rc<OpenFile>, offset: u64, end: u64) -> Result<(), End> {
        let mut at = offset;
        let mut piece_bytes = PIECE_BYTES_MIN;
        while at < end {
            let piece_len = usize::try_from(end - at)
                .unwrap_or(usize::MAX)
                .min(piece_bytes);
            let piece = self.read(file, at, piece_len).await?;
            let began = self.registration.now();
            self.flush().await?;
            self.out = piece;
            at += piece_len as u64;
            piece_bytes = match self.registration.now() - began {
                0 | 1 => (piece_bytes * 2).min(PIECE_BYTES_MAX),
                _ => PIECE_BYTES_MIN,
            };
        }
        self.flush().await
    }

    async fn read(&mut self, file: &Rc<OpenFile>, at: u64, bytes: usize) -> Result<Vec<u8>, End> {
        self.registration.set(Phase::Busy, 0);
        let read: io::Result<Vec<u8>> = match file
            .file()
            .read_exact_at(Vec::with_capacity(bytes), at)
            .await
        {
            Ok(read) => Ok(read),
            Err(error) => Err(error.into()),
        };
        match read {
            Ok(read) => Ok(read),
            Err(error) => {
                if error.kind() != io::ErrorKind::UnexpectedEof {
                    let _ = writeln!(
                        io::stderr(),
                        "annulus: cannot read a file: {error}; its connection is closed"
                    );
                }
                Err(End::Now)
            }
        }
    }
}
