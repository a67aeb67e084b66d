//! An echo server on level-triggered `epoll`, as a C program would have it: the base of every ratio.
//!
//! After each wait it makes one read and one write per ready connection. Bytes that the socket does not accept are
//! kept, and the connection is not read again until they are sent.

#![allow(unsafe_code)]

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use super::listening::{about, accept_failed, without_delay};

/// The largest number of events per wait.
const EVENTS: usize = 512;
/// The largest read. All connections share this buffer.
const BUFFER_BYTES: usize = 64 * 1024;

const READABLE: u32 = libc::EPOLLIN as u32;
const WRITABLE: u32 = libc::EPOLLOUT as u32;

/// Serves connections of `listener` on this thread. Returns only with an error.
pub fn serve(listener: TcpListener) -> io::Result<Infallible> {
    without_delay(&listener)?;
    listener.set_nonblocking(true)?;
    let mut server = Server {
        set: Set::new()?,
        connections: Vec::new(),
        buffer: vec![0; BUFFER_BYTES],
    };
    server.set.add(listener.as_raw_fd())?;
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
    loop {
        let count = server.set.wait(&mut events)?;
        for event in &events[..count] {
            let fd = event.u64 as usize;
            if fd == listener.as_raw_fd() as usize {
                server.accept(&listener)?;
            } else {
                server.ready(fd)?;
            }
        }
    }
}

struct Server {
    set: Set,
    /// Indexed by descriptor.
    connections: Vec<Option<Connection>>,
    buffer: Vec<u8>,
}

struct Connection {
    stream: TcpStream,
    /// Bytes that the socket has not accepted yet. While it is not empty, the server waits for the socket to be
    /// writable.
    rest: Vec<u8>,
}

impl Server {
    /// Accepts all waiting connections.
    fn accept(&mut self, listener: &TcpListener) -> io::Result<()> {
        loop {
            let stream = match accept(listener) {
                Ok(stream) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => {
                    accept_failed(&error)?;
                    continue;
                }
            };
            let fd = stream.as_raw_fd() as usize;
            self.set.add(stream.as_raw_fd())?;
            if self.connections.len() <= fd {
                self.connections.resize_with(fd + 1, || None);
            }
            let rest = Vec::new();
            self.connections[fd] = Some(Connection { stream, rest });
        }
    }

    /// Makes one read and one write, or writes the rest of an earlier write. An error closes the connection, which
    /// removes it from the set.
    fn ready(&mut self, fd: usize) -> io::Result<()> {
        let Some(connection) = &mut self.connections[fd] else {
            return Ok(());
        };
        let waited = !connection.rest.is_empty();
        let alive = if waited {
            connection.write_rest()
        } else {
            connection.echo(&mut self.buffer)
        };
        match alive {
            Ok(true) if waited == connection.rest.is_empty() => {
                let interest = if waited { READABLE } else { WRITABLE };
                self.set.change(connection.stream.as_raw_fd(), interest)
            }
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => {
                self.connections[fd] = None;
                Ok(())
            }
        }
    }
}

impl Connection {
    /// Reads once and writes the bytes back. Returns `false` at the end of the stream.
    fn echo(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        let count = match self.stream.read(buffer) {
            Ok(0) => return Ok(false),
            Ok(count) => count,
            Err(error) if later(&error) => return Ok(true),
            Err(error) => return Err(error),
        };
        let written = match self.stream.write(&buffer[..count]) {
            Ok(written) => written,
            Err(error) if later(&error) => 0,
            Err(error) => return Err(error),
        };
        self.rest.extend_from_slice(&buffer[written..count]);
        Ok(true)
    }

    fn write_rest(&mut self) -> io::Result<bool> {
        match self.stream.write(&self.rest) {
            Ok(written) => drop(self.rest.drain(..written)),
            Err(error) if later(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(true)
    }
}

/// Returns whether the call should be repeated after the next wait. The set is level-triggered, so the wait reports the
/// socket again.
fn later(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Calls `accept4`, so that the new socket is non-blocking without another call.
fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the descriptor is open because `listener` is. No address is requested, so the kernel writes nothing.
    let fd = unsafe {
        libc::accept4(
            listener.as_raw_fd(),
            ptr::null_mut(),
            ptr::null_mut(),
            flags,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just created this descriptor, and no other code knows it.
    Ok(unsafe { TcpStream::from_raw_fd(fd) })
}

/// An epoll set. The token of a descriptor is its number.
struct Set(OwnedFd);

impl Set {
    fn new() -> io::Result<Set> {
        // SAFETY: the call takes a flag and returns a descriptor; it uses no memory.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(about("making an epoll set", &io::Error::last_os_error()));
        }
        // SAFETY: the kernel has just created this descriptor, and no other code knows it.
        Ok(Set(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn add(&self, fd: i32) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, READABLE)
    }

    fn change(&self, fd: i32, interest: u32) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, interest)
    }

    fn control(&self, what: i32, fd: i32, interest: u32) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: interest,
            u64: fd as u64,
        };
        // SAFETY: the event lives for the length of the call, and the kernel copies it. A descriptor that is not open
        // only causes an error.
        let code = unsafe { libc::epoll_ctl(self.0.as_raw_fd(), what, fd, &raw mut event) };
        if code == 0 {
            return Ok(());
        }
        Err(about("changing an epoll set", &io::Error::last_os_error()))
    }

    /// Waits for events and stores them at the front of `events`. Returns their number, or 0 after EINTR.
    fn wait(&self, events: &mut [libc::epoll_event]) -> io::Result<usize> {
        // SAFETY: the kernel writes at most `events.len()` events, while `events` is borrowed.
        let count = unsafe {
            libc::epoll_wait(
                self.0.as_raw_fd(),
                events.as_mut_ptr(),
                events.len() as i32,
                -1,
            )
        };
        match usize::try_from(count) {
            Ok(count) => Ok(count),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(0),
                error => Err(about("waiting on an epoll set", &error)),
            },
        }
    }
}
