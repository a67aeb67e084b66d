//! An echo server on level-triggered `epoll`, as a C program would have it: the base of every ratio.
//!
//! After each wait it makes one read and one write per ready connection. Bytes that the socket does not accept are
//! kept, and the connection is not read again until they are sent.

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use super::listening::{about, accept_failed, without_delay};

/// The largest number of events per wait.
const EVENTS: usize = 512;
/// The largest read. All connections share this buffer.
const BUFFER_BYTES: usize = 64 * 1024;

/// Serves connections of `listener` on this thread. Returns only with an error.
pub fn serve(listener: TcpListener) -> io::Result<Infallible> {
    without_delay(&listener)?;
    listener.set_nonblocking(true)?;
    let set = epoll::create(CreateFlags::CLOEXEC);
    let mut server = Server {
        set: set.map_err(|error| about("making an epoll set", &error.into()))?,
        connections: Vec::new(),
        buffer: vec![0; BUFFER_BYTES],
    };
    server.add(&listener)?;
    let mut events = Vec::with_capacity(EVENTS);
    loop {
        events.clear();
        match epoll::wait(&server.set, spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(about("waiting on an epoll set", &error.into())),
        }
        for event in &events {
            let fd = event.data.u64() as usize;
            if fd == listener.as_raw_fd() as usize {
                server.accept(&listener)?;
            } else {
                server.ready(fd)?;
            }
        }
    }
}

struct Server {
    /// The token of a descriptor is its number.
    set: OwnedFd,
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
    fn add(&self, socket: impl AsFd) -> io::Result<()> {
        let token = EventData::new_u64(socket.as_fd().as_raw_fd() as u64);
        epoll::add(&self.set, socket, token, EventFlags::IN)
            .map_err(|error| about("changing an epoll set", &error.into()))
    }

    /// Accepts all waiting connections.
    fn accept(&mut self, listener: &TcpListener) -> io::Result<()> {
        loop {
            // `accept4`, so that the new socket is non-blocking without another call.
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let stream = match accept_with(listener, flags) {
                Ok(socket) => TcpStream::from(socket),
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => {
                    accept_failed(&error.into())?;
                    continue;
                }
            };
            let fd = stream.as_raw_fd() as usize;
            self.add(&stream)?;
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
                let interest = if waited {
                    EventFlags::IN
                } else {
                    EventFlags::OUT
                };
                let token = EventData::new_u64(fd as u64);
                epoll::modify(&self.set, &connection.stream, token, interest)
                    .map_err(|error| about("changing an epoll set", &error.into()))
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
