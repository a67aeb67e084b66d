//! Echoes messages over loopback, through one of the simple echo servers of `bench net` on a thread.
//!
//! Both servers have the same client. It writes a message on each of its connections, then reads all the replies, so
//! that the server has several messages pending, like a busy server.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use annulus_baselines::Failure;
use annulus_baselines::net::{epoll_echo, ring_echo};

const CONNECTIONS: usize = 16;
const MESSAGE_BYTES: usize = 64;
/// The timeout of the client, far longer than a round. A server that stalls fails the measurement.
const IO_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug)]
pub(crate) enum Server {
    Epoll,
    Ring,
}

/// The client. The thread of the server runs until the process ends.
pub(crate) struct Echo {
    streams: Vec<TcpStream>,
    message: [u8; MESSAGE_BYTES],
}

impl Echo {
    pub(crate) fn start(server: Server) -> Result<Echo, Failure> {
        let failed = |error| Failure::failed("starting an echo server on loopback", &error);
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let serve = match server {
            Server::Epoll => epoll_echo::serve,
            Server::Ring => ring_echo::serve,
        };
        let thread = thread::Builder::new().name("echo".into());
        // An error of the server breaks the client's connections.
        thread.spawn(move || serve(listener)).map_err(failed)?;
        let connect = |_| {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(IO_TIMEOUT))?;
            stream.set_write_timeout(Some(IO_TIMEOUT))?;
            Ok(stream)
        };
        let streams = (0..CONNECTIONS).map(connect).collect::<Result<_, _>>();
        Ok(Echo {
            streams: streams.map_err(failed)?,
            message: [0; MESSAGE_BYTES],
        })
    }

    /// Sends a message on every connection, and receives the replies. Returns the number of messages.
    pub(crate) fn round(&mut self) -> Result<u64, Failure> {
        let failed = |error| Failure::failed("echoing a message on loopback", &error);
        fastrand::fill(&mut self.message);
        for mut stream in &self.streams {
            stream.write_all(&self.message).map_err(failed)?;
        }
        let mut reply = [0; MESSAGE_BYTES];
        for mut stream in &self.streams {
            stream.read_exact(&mut reply).map_err(failed)?;
            if reply != self.message {
                return Err(Failure::Failed("an echo differs from the message".into()));
            }
        }
        Ok(CONNECTIONS as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_sends_a_message_on_every_connection() {
        let mut echo = Echo::start(Server::Epoll).unwrap();
        for _ in 0..3 {
            assert_eq!(echo.round().unwrap(), CONNECTIONS as u64);
        }
    }
}
