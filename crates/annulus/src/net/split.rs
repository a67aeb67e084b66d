//! The two directions of a stream, each by itself.

use std::fmt;
use std::marker::PhantomData;
use std::rc::Rc;

use super::acceptor::Accepted;
use super::exact::RecvExact;
use super::receiver::RecvStream;
use super::stream::{Recv, SendAll, Stream};
use super::writer::Writer;
use crate::buf::{IoBuf, IoBufMut};

/// The receiving direction of a borrowed stream. Made by [`TcpStream::split`](super::TcpStream::split).
#[derive(Clone, Copy, Debug)]
pub struct ReadHalf<'a>(&'a Stream);

/// The sending direction of a borrowed stream. Made by [`TcpStream::split`](super::TcpStream::split).
#[derive(Clone, Copy, Debug)]
pub struct WriteHalf<'a>(&'a Stream);

pub(super) fn split(stream: &Stream) -> (ReadHalf<'_>, WriteHalf<'_>) {
    (ReadHalf(stream), WriteHalf(stream))
}

impl<'a> ReadHalf<'a> {
    /// As [`TcpStream::recv`](super::TcpStream::recv).
    pub fn recv<B: IoBufMut>(&self, buf: B) -> Recv<'a, B> {
        self.0.recv(buf)
    }

    /// As [`TcpStream::recv_exact`](super::TcpStream::recv_exact).
    pub fn recv_exact<B: IoBufMut>(&self, buf: B) -> RecvExact<'a, B> {
        self.0.recv_exact(buf)
    }

    /// As [`TcpStream::recv_multishot`](super::TcpStream::recv_multishot).
    pub fn recv_multishot(&self) -> RecvStream<'a> {
        self.0.recv_multishot()
    }
}

impl<'a> WriteHalf<'a> {
    /// As [`TcpStream::send_all`](super::TcpStream::send_all).
    pub fn send_all<B: IoBuf>(&self, buf: B) -> SendAll<'a, B> {
        self.0.send_all(buf)
    }

    /// As [`TcpStream::writer`](super::TcpStream::writer).
    pub fn writer(&self) -> Writer {
        self.0.writer()
    }

    /// Tells the peer that nothing follows, when what has been given to be sent has been.
    pub fn finish(&self) {
        self.0.socket.finish_sending();
    }
}

/// The receiving direction of a stream. Made by [`TcpStream::into_split`](super::TcpStream::into_split).
/// Dropped, it receives no more.
pub struct OwnedReadHalf<S> {
    /// `None` on its way back.
    stream: Option<Rc<Stream>>,
    kind: PhantomData<S>,
}

/// The sending direction of a stream. Made by [`TcpStream::into_split`](super::TcpStream::into_split).
/// Dropped, it tells the peer that nothing follows, when what has been given to be sent has been.
pub struct OwnedWriteHalf<S> {
    /// `None` on its way elsewhere.
    stream: Option<Rc<Stream>>,
    kind: PhantomData<S>,
}

pub(super) fn into_split<S>(stream: Stream) -> (OwnedReadHalf<S>, OwnedWriteHalf<S>) {
    let stream = Rc::new(stream);
    let read = OwnedReadHalf {
        stream: Some(Rc::clone(&stream)),
        kind: PhantomData,
    };
    let write = OwnedWriteHalf {
        stream: Some(stream),
        kind: PhantomData,
    };
    (read, write)
}

/// It is there until the half is consumed.
fn there(stream: &Option<Rc<Stream>>) -> &Stream {
    match stream {
        Some(stream) => stream,
        None => unreachable!("a half has its stream until it is consumed"),
    }
}

impl<S> OwnedReadHalf<S> {
    /// As [`TcpStream::recv`](super::TcpStream::recv).
    pub fn recv<B: IoBufMut>(&self, buf: B) -> Recv<'_, B> {
        there(&self.stream).recv(buf)
    }

    /// As [`TcpStream::recv_exact`](super::TcpStream::recv_exact).
    pub fn recv_exact<B: IoBufMut>(&self, buf: B) -> RecvExact<'_, B> {
        there(&self.stream).recv_exact(buf)
    }

    /// As [`TcpStream::recv_multishot`](super::TcpStream::recv_multishot).
    pub fn recv_multishot(&self) -> RecvStream<'_> {
        there(&self.stream).recv_multishot()
    }

    /// Makes a stream of its two halves.
    ///
    /// # Errors
    ///
    /// The halves themselves, if they are of two different streams.
    pub fn reunite(mut self, mut other: OwnedWriteHalf<S>) -> Result<S, ReuniteError<S>>
    where
        S: From<Accepted>,
    {
        if !std::ptr::eq(there(&self.stream), there(&other.stream)) {
            return Err(ReuniteError(self, other));
        }
        let (one, same) = (self.stream.take(), other.stream.take());
        drop(same);
        match one.and_then(Rc::into_inner) {
            Some(stream) => Ok(S::from(Accepted(stream))),
            None => unreachable!("a stream has two halves and no more"),
        }
    }
}

impl<S> OwnedWriteHalf<S> {
    /// As [`TcpStream::send_all`](super::TcpStream::send_all).
    pub fn send_all<B: IoBuf>(&self, buf: B) -> SendAll<'_, B> {
        there(&self.stream).send_all(buf)
    }

    /// Gathers what is written; when the writer is dropped and all is sent, the peer is told that nothing
    /// follows.
    pub fn into_writer(mut self) -> Writer {
        let writer = there(&self.stream).writer();
        drop(self.stream.take());
        writer.that_ends()
    }
}

impl<S> Drop for OwnedReadHalf<S> {
    fn drop(&mut self) {
        if let Some(stream) = &self.stream {
            stream.receiver.close();
        }
    }
}

impl<S> Drop for OwnedWriteHalf<S> {
    fn drop(&mut self) {
        if let Some(stream) = &self.stream {
            stream.socket.finish_sending();
        }
    }
}

impl<S> fmt::Debug for OwnedReadHalf<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnedReadHalf").field(&self.stream).finish()
    }
}

impl<S> fmt::Debug for OwnedWriteHalf<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnedWriteHalf").field(&self.stream).finish()
    }
}

/// The halves are of two different streams. Both come back.
pub struct ReuniteError<S>(pub OwnedReadHalf<S>, pub OwnedWriteHalf<S>);

impl<S> fmt::Debug for ReuniteError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReuniteError({self})")
    }
}

impl<S> fmt::Display for ReuniteError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the halves are of two different streams; reunite those that one call made")
    }
}

impl<S> std::error::Error for ReuniteError<S> {}
