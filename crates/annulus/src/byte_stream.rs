//! The byte-stream traits of Tokio and futures-io, implemented once for each type that has the methods of
//! [`ByteStream`].

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

/// The methods from which both families of traits follow.
pub(crate) trait ByteStream: Unpin {
    /// Returns the next bytes without consuming them; none at the end.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>>;

    /// Consumes bytes that `poll_fill` returned.
    fn consume(&mut self, bytes: usize);

    /// Writes as many bytes of `pieces` as fit, in order, and waits while none do. Returns their number.
    fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>>;

    /// Waits until all written bytes are with the kernel.
    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Flushes, and ends the writing direction if there is one.
    fn poll_close(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// Copies the next bytes to the front of `buf`. Returns their number.
#[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
pub(crate) fn poll_read<S: ByteStream>(
    stream: &mut S,
    context: &mut Context<'_>,
    space: usize,
    copy: impl FnOnce(&[u8]),
) -> Poll<io::Result<usize>> {
    if space == 0 {
        return Poll::Ready(Ok(0));
    }
    let filled = std::task::ready!(stream.poll_fill(context))?;
    let bytes = filled.len().min(space);
    copy(&filled[..bytes]);
    stream.consume(bytes);
    Poll::Ready(Ok(bytes))
}

/// Implements both families of traits for a type, each with its feature.
macro_rules! byte_stream_traits {
    ([$($generics:tt)*] $stream:ty) => {
        #[cfg(feature = "futures")]
        impl<$($generics)*> futures_io::AsyncRead for $stream {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buf: &mut [u8],
            ) -> Poll<io::Result<usize>> {
                let space = buf.len();
                let copy = |from: &[u8]| buf[..from.len()].copy_from_slice(from);
                $crate::byte_stream::poll_read(self.get_mut(), context, space, copy)
            }
        }

        #[cfg(feature = "futures")]
        impl<$($generics)*> futures_io::AsyncBufRead for $stream {
            fn poll_fill_buf(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<&[u8]>> {
                ByteStream::poll_fill(self.get_mut(), context)
            }

            fn consume(self: Pin<&mut Self>, bytes: usize) {
                ByteStream::consume(self.get_mut(), bytes);
            }
        }

        #[cfg(feature = "futures")]
        impl<$($generics)*> futures_io::AsyncWrite for $stream {
            fn poll_write(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                ByteStream::poll_write(self.get_mut(), context, &[IoSlice::new(bytes)])
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                pieces: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                ByteStream::poll_write(self.get_mut(), context, pieces)
            }

            fn poll_flush(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                ByteStream::poll_flush(self.get_mut(), context)
            }

            fn poll_close(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                ByteStream::poll_close(self.get_mut(), context)
            }
        }

        #[cfg(any(feature = "tokio", feature = "tokio-io"))]
        impl<$($generics)*> tokio::io::AsyncRead for $stream {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buf: &mut tokio::io::ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                let space = buf.remaining();
                let copy = |from: &[u8]| buf.put_slice(from);
                $crate::byte_stream::poll_read(self.get_mut(), context, space, copy)
                    .map_ok(drop)
            }
        }

        #[cfg(any(feature = "tokio", feature = "tokio-io"))]
        impl<$($generics)*> tokio::io::AsyncBufRead for $stream {
            fn poll_fill_buf(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<&[u8]>> {
                ByteStream::poll_fill(self.get_mut(), context)
            }

            fn consume(self: Pin<&mut Self>, bytes: usize) {
                ByteStream::consume(self.get_mut(), bytes);
            }
        }

        #[cfg(any(feature = "tokio", feature = "tokio-io"))]
        impl<$($generics)*> tokio::io::AsyncWrite for $stream {
            fn poll_write(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                ByteStream::poll_write(self.get_mut(), context, &[IoSlice::new(bytes)])
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                pieces: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                ByteStream::poll_write(self.get_mut(), context, pieces)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                ByteStream::poll_flush(self.get_mut(), context)
            }

            fn poll_shutdown(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                ByteStream::poll_close(self.get_mut(), context)
            }
        }
    };
}

pub(crate) use byte_stream_traits;
