//! Sockets on a runtime's cores: TCP, UDP, Unix streams and datagrams.
//!
//! A socket belongs to the core it was made on and stays there; so do the futures of its operations, each
//! of which may be dropped at any point. Data that has been received when a receive is dropped is kept for
//! the next; a send that has begun goes on.

mod acceptor;
mod async_stream;
mod datagram;
mod descriptor;
mod exact;
mod file;
mod listen;
mod options;
mod progress;
mod receiver;
mod resolve;
mod sending;
mod split;
mod stream;
mod tcp;
mod udp;
mod unix;
mod unix_datagram;
mod writer;

pub use acceptor::Incoming;
pub use async_stream::{AsyncStream, ConnectedStream};
pub use datagram::{Datagram, Received};
pub use descriptor::{Descriptor, Splices, splice};
pub use exact::RecvExact;
pub use listen::ListenOptions;
pub use options::SocketOptions;
pub use progress::{Acknowledged, SendProgress};
pub use receiver::RecvStream;
pub use resolve::ToSocketAddrs;
pub use split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
pub use stream::{Recv, SendAll};
pub use tcp::{TcpListener, TcpStream};
pub use udp::{Datagrams, UdpSocket};
pub use unix::{PeerCredentials, UnixListener, UnixStream};
pub use unix_datagram::UnixDatagram;
pub use writer::Writer;

use std::io;
use std::rc::Rc;

use crate::driver::core::Core;

/// The calling thread's core.
fn core() -> io::Result<Rc<Core>> {
    Core::current().ok_or_else(|| {
        let what = "sockets can be used on a core of a runtime only, and this thread is none; start it with \
                    Runtime::block_on or Runtime::run, or move the task to a core with spawn_on";
        io::Error::other(what)
    })
}
