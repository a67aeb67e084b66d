//! Seeks of a cursor: they wait for the writes before them.

use std::io::{self, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::FileCursor;
use crate::narrow::to_usize;
use crate::sys::errno::ESPIPE;

impl FileCursor {
    /// Waits until all writes and the seek that has begun are complete. Returns the position.
    pub(super) fn poll_settled(&mut self, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        // A seek after a failed write has no other effect.
        ready!(self.poll_written(context)).inspect_err(|_| self.seek = None)?;
        let Some(to) = self.seek else {
            return Poll::Ready(Ok(self.position));
        };
        if !self.file.has_offsets() {
            self.seek = None;
            return Poll::Ready(Err(io::Error::from_raw_os_error(ESPIPE)));
        }
        let (from, by) = match to {
            SeekFrom::Start(offset) => (offset, 0),
            SeekFrom::Current(by) => (self.position, by),
            SeekFrom::End(by) => {
                let size = ready!(self.poll_size(context));
                (size.inspect_err(|_| self.seek = None)?, by)
            }
        };
        self.seek = None;
        let target = (from.checked_add_signed(by)).filter(|&target| i64::try_from(target).is_ok());
        let Some(target) = target else {
            let text = format!(
                "can't seek by {by} from {from}: the position is negative or beyond the largest offset"
            );
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidInput, text)));
        };
        // The offset of the block.
        let start = self.position - self.at as u64;
        match target.checked_sub(start).map(to_usize) {
            Some(at) if at <= self.end && matches!(to, SeekFrom::Current(_)) => self.at = at,
            _ => self.discard_block(),
        }
        self.position = target;
        Poll::Ready(Ok(target))
    }

    /// Waits like `poll_settled`, for a seek: the last call that reports a failed write.
    fn poll_sought(&mut self, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        let settled = ready!(self.poll_settled(context));
        self.take_error();
        Poll::Ready(settled)
    }

    fn poll_size(&mut self, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        let size = self.size.get_or_insert_with(|| {
            let file = self.file.clone();
            Box::pin(async move { Ok(file.metadata().await?.len()) })
        });
        let size = ready!(size.as_mut().poll(context));
        self.size = None;
        Poll::Ready(size)
    }

    /// Begins a seek. An earlier one that is not complete has no effect.
    fn begin_seek(&mut self, to: SeekFrom) {
        self.seek = Some(to);
        self.size = None;
    }
}

#[cfg(feature = "futures")]
impl futures_io::AsyncSeek for FileCursor {
    fn poll_seek(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: SeekFrom,
    ) -> Poll<io::Result<u64>> {
        let this = self.get_mut();
        if this.seek != Some(to) {
            this.begin_seek(to);
        }
        this.poll_sought(context)
    }
}

#[cfg(any(feature = "tokio", feature = "tokio-io"))]
impl tokio::io::AsyncSeek for FileCursor {
    fn start_seek(self: Pin<&mut Self>, to: SeekFrom) -> io::Result<()> {
        self.get_mut().begin_seek(to);
        Ok(())
    }

    fn poll_complete(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        self.get_mut().poll_sought(context)
    }
}
