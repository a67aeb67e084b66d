//! Readiness of any descriptor, and transfers between two descriptors within the kernel.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use super::file::wait_again;
use super::stream::Stream;
use crate::driver::core::{Core, SocketOperation};
use crate::fd::Socket;
use crate::op::{Interest, Poll, Splice};
use crate::sys::call::borrow_fd;

/// A descriptor of any kind on a core: a pipe, an eventfd, a device, or another library's socket. Wait for readiness
/// here, and read or write it with other code (see [`AsFd`]). It stays on its core, which closes it.
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// use std::io::{Read, Write};
/// use annulus::net::Descriptor;
///
/// let (mut reader, mut writer) = std::io::pipe()?;
/// let ready = Descriptor::new(reader.try_clone()?)?;
/// writer.write_all(b"hello")?;
/// ready.readable().await?; // then a read does not block
/// let mut buf = [0; 64];
/// assert_eq!(reader.read(&mut buf)?, 5);
/// drop(writer);
/// ready.readable().await?; // the end counts as readable
/// assert_eq!(reader.read(&mut buf)?, 0);
/// # Ok(()) })? }
/// ```
pub struct Descriptor {
    core: Rc<Core>,
    socket: Rc<Socket>,
}

impl Descriptor {
    /// Takes over a descriptor. Its mode (`O_NONBLOCK`) does not change.
    ///
    /// # Errors
    ///
    /// Fails if the calling thread is not a runtime core.
    pub fn new(fd: impl Into<OwnedFd>) -> io::Result<Descriptor> {
        let core = super::core()?;
        let socket = core.socket(fd.into());
        Ok(Descriptor { core, socket })
    }

    /// Waits until the descriptor is readable: data, the end, or an error. A regular file is always readable. Dropping
    /// the future loses no data.
    ///
    /// # Errors
    ///
    /// Fails with any error of `poll(2)`, unchanged.
    pub async fn readable(&self) -> io::Result<()> {
        ready(&self.core, &self.socket, Interest::Read).await
    }

    /// Waits until the descriptor is writable, or has an error.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// use std::io::Write;
    /// use annulus::net::Descriptor;
    ///
    /// let (reader, writer) = std::io::pipe()?;
    /// let ready = Descriptor::new(writer.try_clone()?)?;
    /// ready.writable().await?;
    /// drop(reader);
    /// ready.writable().await?; // an error counts: the write shows it
    /// let error = (&writer).write(b"x").unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `poll(2)`, unchanged.
    pub async fn writable(&self) -> io::Result<()> {
        ready(&self.core, &self.socket, Interest::Write).await
    }
}

/// Lets other code read or write the descriptor.
impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        borrow_fd(self.socket.raw())
    }
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Descriptor({})", self.socket.raw())
    }
}

pub(super) async fn ready(
    core: &Rc<Core>,
    socket: &Rc<Socket>,
    interest: Interest,
) -> io::Result<()> {
    let poll = Poll::new(Rc::clone(socket), interest);
    SocketOperation::new(Rc::clone(core), poll).await
}

impl Stream {
    /// Data that has been received but not read counts as readable.
    pub(super) async fn readable(&self) -> io::Result<()> {
        poll_fn(|context| self.receiver.poll_under_way(context)).await;
        if !self.receiver.is_idle() {
            return Ok(());
        }
        ready(&self.core, &self.socket, Interest::Read).await
    }

    pub(super) async fn writable(&self) -> io::Result<()> {
        ready(&self.core, &self.socket, Interest::Write).await
    }
}

/// An end of a [`splice`]. Sealed; implemented for [`Descriptor`], [`TcpStream`](super::TcpStream) and
/// [`UnixStream`](super::UnixStream).
///
/// A function for both kinds of streams:
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// use annulus::net::{Descriptor, Splices, UnixStream, splice};
///
/// async fn fill(pipe: &Descriptor, from: &impl Splices) -> std::io::Result<usize> {
///     splice(from, pipe, 64 << 10).await
/// }
/// let (near, far) = UnixStream::pair()?;
/// let (reader, writer) = std::io::pipe()?;
/// near.send_all("hello").await?;
/// assert_eq!(fill(&Descriptor::new(writer)?, &far).await?, 5);
/// # drop(reader);
/// # Ok(()) })? }
/// ```
pub trait Splices {
    #[doc(hidden)]
    #[expect(private_interfaces)]
    fn end(&self, _: Sealed) -> End<'_>;
}

/// Prevents implementations of [`Splices`] outside this crate.
#[doc(hidden)]
#[derive(Debug)]
pub struct Sealed(());

pub(super) enum End<'a> {
    Descriptor(&'a Descriptor),
    Stream(&'a Stream),
}

impl End<'_> {
    fn socket(&self) -> &Rc<Socket> {
        match self {
            End::Descriptor(descriptor) => &descriptor.socket,
            End::Stream(stream) => &stream.socket,
        }
    }

    /// Returns whether other code opened the descriptor, so that its mode is unknown.
    fn is_foreign(&self) -> bool {
        matches!(self, End::Descriptor(_))
    }
}

impl Splices for Descriptor {
    #[expect(private_interfaces)]
    fn end(&self, _: Sealed) -> End<'_> {
        End::Descriptor(self)
    }
}

/// Moves at most `bytes` bytes from one descriptor to another within the kernel. Returns the number of bytes; 0 is
/// the end. One of the two must be a pipe (`std::io::pipe`), the other a socket, a file or a pipe.
///
/// On a ring, a kernel worker thread waits for both ends. Without a ring, the core waits until both are ready, and
/// blocks while a file is read from the disk. A [`Descriptor`] in blocking mode that is not a pipe is then
/// `O_NONBLOCK` during each call.
///
/// A dropped splice moves either all of its bytes or none; moved bytes are in `into`.
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// # let (near, far) = annulus::net::UnixStream::pair()?;
/// use annulus::net::{Descriptor, splice};
///
/// let (reader, writer) = std::io::pipe()?;
/// let (from, into) = (Descriptor::new(reader)?, Descriptor::new(writer)?);
/// let (client, server) = annulus::net::UnixStream::pair()?;
/// near.send_all("hello").await?;
/// let moved = splice(&far, &into, 4096).await?; // a splice is often short
/// assert_eq!(splice(&from, &client, moved).await?, moved);
/// assert_eq!(server.recv_exact(vec![0; 5]).await?, b"hello");
/// // Two sockets need a pipe between them.
/// assert!(splice(&far, &client, 4096).await.is_err());
/// # Ok(()) })? }
/// ```
///
/// # Errors
///
/// Fails with `EINVAL` if neither end is a pipe. Fails with `InvalidInput` if `from` is a stream with received data
/// that has not been read, because the splice would skip it.
pub async fn splice(from: &impl Splices, into: &impl Splices, bytes: usize) -> io::Result<usize> {
    let core = super::core()?;
    let (from, into) = (from.end(Sealed(())), into.end(Sealed(())));
    if let End::Stream(stream) = &from
        && !stream.receiver.is_idle()
    {
        let text = "can't splice from a stream with received data or a receive under way; read that data first";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    loop {
        let permit = match &into {
            End::Stream(stream) => Some(stream.send_permit().await?),
            End::Descriptor(_) => None,
        };
        wait_again(from.socket())?;
        wait_again(into.socket())?;
        let may_wait = from.is_foreign() || into.is_foreign();
        let (from, into) = (Rc::clone(from.socket()), Rc::clone(into.socket()));
        let splice = Splice::new(Rc::clone(&from), into, bytes, permit, may_wait);
        let spliced = SocketOperation::new(Rc::clone(&core), splice).await;
        match spliced {
            // A file was sent in the other direction before the kernel worker started.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && from.never_waits() => {}
            spliced => return spliced,
        }
    }
}
