//! Sockets on a runtime's cores: TCP, UDP, Unix streams and Unix datagrams.
//!
//! Sockets need a core of a [`Runtime`](crate::runtime::Runtime). A socket belongs to the core on which it was made,
//! and neither the socket nor the futures of its operations are `Send`.
//!
//! Every future may be dropped at any point. Data that arrives for a dropped receive is kept for the next one. A
//! dropped send that has begun is still sent whole.
//!
//! On a ring, a dropped socket is closed when its core next polls the ring. Its peer reads the end then, and a UDP or
//! Unix address can be bound again. A TCP listener gives its address back at once.
//!
//! ```
//! # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
//! use annulus::net::UdpSocket;
//!
//! let socket = UdpSocket::bind("127.0.0.1:0")?;
//! let address = socket.local_addr()?;
//! drop(socket);
//! let again = loop {
//!     match UdpSocket::bind(address) {
//!         Ok(again) => break again,
//!         Err(_) => annulus::time::sleep(std::time::Duration::from_millis(1)).await, // lets the core poll its ring
//!     }
//! };
//! assert_eq!(again.local_addr()?, address);
//! # Ok(()) })? }
//! ```

mod acceptor;
mod async_stream;
mod datagram;
mod descriptor;
mod exact;
mod file;
mod listen;
mod methods;
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

/// Returns the calling thread's core.
fn core() -> io::Result<Rc<Core>> {
    Core::current().ok_or_else(|| {
        io::Error::other(
            "sockets can only be used on a runtime core, and this thread is not one; start a runtime with \
             Runtime::block_on or Runtime::run, or move the task to a core with Handle::spawn_on",
        )
    })
}
