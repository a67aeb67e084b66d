//! Any descriptor: when it is ready, and moving bytes between it and another within the kernel.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use super::file::wait_again;
use super::stream::Stream;
use super::tcp::TcpStream;
use super::unix::UnixStream;
use crate::driver::core::{Core, SocketOperation};
use crate::fd::Socket;
use crate::op::{Interest, Poll, Splice};
use crate::sys::call::borrow_fd;

/// A descriptor of any kind — a pipe, an eventfd, a device, a socket of other code — on a core: it is
/// waited for here, and read or written by code that knows how. It stays on its core, which closes it.
pub struct Descriptor {
    core: Rc<Core>,
    socket: Rc<Socket>,
}

impl Descriptor {
    /// Takes it over. Whether calls on it wait (`O_NONBLOCK`) is left as it is.
    ///
    /// # Errors
    ///
    /// Outside a runtime.
    pub fn new(fd: impl Into<OwnedFd>) -> io::Result<Descriptor> {
        let core = super::core()?;
        let socket = core.socket(fd.into());
        Ok(Descriptor { core, socket })
    }

    /// Ready when there is something to read, an end, or an error.
    ///
    /// # Errors
    ///
    /// What `poll(2)` says. A regular file is ready always.
    pub async fn readable(&self) -> io::Result<()> {
        ready(&self.core, &self.socket, Interest::Read).await
    }

    /// Ready when there is room to write, or an error.
    ///
    /// # Errors
    ///
    /// As for [`readable`](Descriptor::readable).
    pub async fn writable(&self) -> io::Result<()> {
        ready(&self.core, &self.socket, Interest::Write).await
    }
}

/// For code that reads or writes it.
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
    /// What has been received already counts.
    pub(super) async fn readable(&self) -> io::Result<()> {
        if !self.receiver.is_idle() {
            return Ok(());
        }
        ready(&self.core, &self.socket, Interest::Read).await
    }

    pub(super) async fn writable(&self) -> io::Result<()> {
        ready(&self.core, &self.socket, Interest::Write).await
    }
}

/// An end of a [`splice`]. Sealed: [`Descriptor`], [`TcpStream`] and [`UnixStream`].
pub trait Splices {
    #[doc(hidden)]
    #[expect(private_interfaces)]
    fn end(&self, _: Sealed) -> End<'_>;
}

/// Makes [`Splices`] the library's own.
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

    /// Whether it was made elsewhere, in whatever mode.
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

impl Splices for TcpStream {
    #[expect(private_interfaces)]
    fn end(&self, _: Sealed) -> End<'_> {
        End::Stream(&self.0)
    }
}

impl Splices for UnixStream {
    #[expect(private_interfaces)]
    fn end(&self, _: Sealed) -> End<'_> {
        End::Stream(&self.0)
    }
}

/// Moves at most `bytes` bytes from one descriptor into another within the kernel, and says how many; 0 is
/// the end. One of the two is a pipe (`std::io::pipe`), the other a socket, a file or a pipe.
///
/// A ring has a worker thread of the kernel's wait for both ends; without one the core waits until they are
/// ready, and a file's disk is waited for on the spot; a [`Descriptor`] in blocking mode, unless it is a pipe, is
/// `O_NONBLOCK` during each call there. Dropped, it moves all it would have or nothing; what
/// it has moved is in `into`.
///
/// # Errors
///
/// `EINVAL`: neither is a pipe. `InvalidInput`: bytes of a stream that were received already would be
/// passed over.
pub async fn splice(from: &impl Splices, into: &impl Splices, bytes: usize) -> io::Result<usize> {
    let core = super::core()?;
    let (from, into) = (from.end(Sealed(())), into.end(Sealed(())));
    if let End::Stream(stream) = &from
        && !stream.receiver.is_idle()
    {
        let what = "bytes of the stream have been received already, or a receive is under way; read them first";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
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
            // A file was sent the other way before the worker looked.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && from.never_waits() => {}
            spliced => return spliced,
        }
    }
}
