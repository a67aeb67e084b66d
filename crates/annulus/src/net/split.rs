//! The receiving and the sending half of a stream.

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
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// # let (near, far) = annulus::net::UnixStream::pair()?;
/// let (read, write) = near.split();
/// write.send_all("hello").await?;
/// write.finish(); // the peer reads the end after the data
/// assert_eq!(far.recv_exact(vec![0; 5]).await?, b"hello");
/// assert_eq!(far.recv(vec![0; 1]).await?.0, 0);
/// far.send_all("bye").await?;
/// assert_eq!(read.recv_exact(vec![0; 3]).await?, b"bye");
/// # Ok(()) })? }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ReadHalf<'a>(&'a Stream);

/// The sending direction of a borrowed stream. Made by [`TcpStream::split`](super::TcpStream::split).
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// # let (near, far) = annulus::net::UnixStream::pair()?;
/// let (_, write) = near.split();
/// let copy = write; // both send on the same stream, one send after another
/// write.send_all("hel").await?;
/// copy.send_all("lo").await?;
/// // Dropping one does not end the direction, unlike an `OwnedWriteHalf`.
/// near.send_all("!").await?;
/// assert_eq!(far.recv_exact(vec![0; 6]).await?, b"hello!");
/// # Ok(()) })? }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct WriteHalf<'a>(&'a Stream);

pub(super) fn split(stream: &Stream) -> (ReadHalf<'_>, WriteHalf<'_>) {
    (ReadHalf(stream), WriteHalf(stream))
}

impl<'a> ReadHalf<'a> {
    /// Receives the available bytes; see [`TcpStream::recv`](super::TcpStream::recv).
    pub fn recv<B: IoBufMut>(&self, buf: B) -> Recv<'a, B> {
        self.0.recv(buf)
    }

    /// Receives until the buffer is full; see [`TcpStream::recv_exact`](super::TcpStream::recv_exact).
    pub fn recv_exact<B: IoBufMut>(&self, buf: B) -> RecvExact<'a, B> {
        self.0.recv_exact(buf)
    }

    /// Receives into the core's buffers; see [`TcpStream::recv_multishot`](super::TcpStream::recv_multishot).
    pub fn recv_multishot(&self) -> RecvStream<'a> {
        self.0.recv_multishot()
    }
}

impl<'a> WriteHalf<'a> {
    /// Sends all of `buf` and returns it; see [`TcpStream::send_all`](super::TcpStream::send_all).
    pub fn send_all<B: IoBuf>(&self, buf: B) -> SendAll<'a, B> {
        self.0.send_all(buf)
    }

    /// Returns a writer that gathers small writes; see [`TcpStream::writer`](super::TcpStream::writer).
    pub fn writer(&self) -> Writer {
        self.0.writer()
    }

    /// Ends the sending direction (FIN) once the sends that have begun or wait are complete. Does not wait for that.
    ///
    /// A request whose end is the end of the direction:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # let (near, far) = annulus::net::UnixStream::pair()?;
    /// let (read, write) = near.split();
    /// write.send_all("all of it").await?;
    /// write.finish();
    /// let mut request = Vec::new();
    /// let mut chunks = far.recv_multishot();
    /// while let Some(chunk) = chunks.next().await {
    ///     request.extend_from_slice(&chunk?);
    /// }
    /// far.send_all("answer").await?; // the other direction is still open
    /// assert_eq!(read.recv_exact(vec![0; 6]).await?, b"answer");
    /// # Ok(()) })? }
    /// ```
    pub fn finish(&self) {
        self.0.socket.finish_sending();
    }
}

/// The receiving direction of a stream. Made by [`TcpStream::into_split`](super::TcpStream::into_split). Dropping it
/// cancels receives and discards unread data.
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// # let (near, far) = annulus::net::UnixStream::pair()?;
/// use annulus::runtime;
///
/// let (read, write) = near.into_split();
/// // Echo, one direction per task:
/// let echo = runtime::spawn(async move {
///     let mut chunks = read.recv_multishot();
///     while let Some(chunk) = chunks.next().await {
///         write.send_all(chunk?).await?;
///     }
///     std::io::Result::Ok(())
/// });
/// far.send_all("hello").await?;
/// assert_eq!(far.recv_exact(vec![0; 5]).await?, b"hello");
/// drop(far);
/// echo.await??;
/// # Ok(()) })? }
/// ```
pub struct OwnedReadHalf<S> {
    /// `None` after `reunite`.
    stream: Option<Rc<Stream>>,
    kind: PhantomData<S>,
}

/// The sending direction of a stream. Made by [`TcpStream::into_split`](super::TcpStream::into_split). Dropping it
/// ends the direction (FIN) once the sends that have begun or wait are complete.
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// # let (near, far) = annulus::net::UnixStream::pair()?;
/// let (read, write) = near.into_split();
/// drop(write.send_all("never polled"));
/// write.send_all("hello").await?;
/// drop(write); // ends the direction (FIN)
/// assert_eq!(far.recv_exact(vec![0; 5]).await?, b"hello");
/// assert_eq!(far.recv(vec![0; 1]).await?.0, 0);
/// # drop(read);
/// # Ok(()) })? }
/// ```
pub struct OwnedWriteHalf<S> {
    /// `None` after `reunite` or `into_writer`.
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

/// Returns the stream of a half that has not been consumed.
fn stream_of(stream: &Option<Rc<Stream>>) -> &Stream {
    match stream {
        Some(stream) => stream,
        None => unreachable!("a half has its stream until it is consumed"),
    }
}

impl<S> OwnedReadHalf<S> {
    /// Receives the available bytes; see [`TcpStream::recv`](super::TcpStream::recv).
    pub fn recv<B: IoBufMut>(&self, buf: B) -> Recv<'_, B> {
        stream_of(&self.stream).recv(buf)
    }

    /// Receives until the buffer is full; see [`TcpStream::recv_exact`](super::TcpStream::recv_exact).
    pub fn recv_exact<B: IoBufMut>(&self, buf: B) -> RecvExact<'_, B> {
        stream_of(&self.stream).recv_exact(buf)
    }

    /// Receives into the core's buffers; see [`TcpStream::recv_multishot`](super::TcpStream::recv_multishot).
    pub fn recv_multishot(&self) -> RecvStream<'_> {
        stream_of(&self.stream).recv_multishot()
    }

    /// Joins the two halves to a stream again.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # let (near, far) = annulus::net::UnixStream::pair()?;
    /// let (read, write) = near.into_split();
    /// let (other_read, other_write) = far.into_split();
    /// let error = read.reunite(other_write).unwrap_err();
    /// let annulus::net::ReuniteError(read, other_write) = error; // both halves come back
    /// let near = read.reunite(write).expect("halves of the same stream");
    /// let far = other_read.reunite(other_write).expect("halves of the same stream");
    /// near.send_all("hello").await?;
    /// assert_eq!(far.recv_exact(vec![0; 5]).await?, b"hello");
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns both halves if they belong to different streams.
    pub fn reunite(mut self, mut other: OwnedWriteHalf<S>) -> Result<S, ReuniteError<S>>
    where
        S: From<Accepted>,
    {
        if !std::ptr::eq(stream_of(&self.stream), stream_of(&other.stream)) {
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
    /// Sends all of `buf` and returns it; see [`TcpStream::send_all`](super::TcpStream::send_all).
    pub fn send_all<B: IoBuf>(&self, buf: B) -> SendAll<'_, B> {
        stream_of(&self.stream).send_all(buf)
    }

    /// Turns the half into a writer. Dropping the writer ends the sending direction (FIN) once all data is sent.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # let (near, far) = annulus::net::UnixStream::pair()?;
    /// let (_read, write) = near.into_split();
    /// let mut writer = write.into_writer();
    /// writer.write(b"hello").await?;
    /// drop(writer); // sends what was written, then the end
    /// assert_eq!(far.recv_exact(vec![0; 5]).await?, b"hello");
    /// assert_eq!(far.recv(vec![0; 1]).await?.0, 0);
    /// # Ok(()) })? }
    /// ```
    pub fn into_writer(mut self) -> Writer {
        let writer = stream_of(&self.stream).writer();
        drop(self.stream.take());
        writer.ending_on_drop()
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

/// The error of [`OwnedReadHalf::reunite`]: the halves belong to two different streams. It returns both, because
/// dropping them would end two connections.
///
/// It can be passed on as an `io::Error`, if the halves are not needed:
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// # let (near, far) = annulus::net::UnixStream::pair()?;
/// let (read, _write) = near.into_split();
/// let (_other_read, other_write) = far.into_split();
/// let error = read.reunite(other_write).unwrap_err();
/// assert!(std::io::Error::other(error.to_string()).to_string().contains("different streams"));
/// # Ok(()) })? }
/// ```
pub struct ReuniteError<S>(pub OwnedReadHalf<S>, pub OwnedWriteHalf<S>);

impl<S> fmt::Debug for ReuniteError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReuniteError({self})")
    }
}

impl<S> fmt::Display for ReuniteError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the halves belong to two different streams; reunite the halves of one into_split call",
        )
    }
}

impl<S> std::error::Error for ReuniteError<S> {}
