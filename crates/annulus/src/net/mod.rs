//! Sockets on a runtime's cores: TCP, and Unix streams.
//!
//! A socket belongs to the core it was made on and stays there; so do the futures of its operations, each
//! of which may be dropped at any point. Data that has been received when a receive is dropped is kept for
//! the next; a send that has begun goes on.

mod acceptor;
mod receiver;
mod stream;
mod tcp;
mod unix;

pub use acceptor::Incoming;
pub use receiver::Receiving;
pub use stream::{Receive, Send};
pub use tcp::{TcpListener, TcpStream};
pub use unix::{UnixListener, UnixStream};

use std::io;
use std::rc::Rc;

use crate::driver::core::Core;

/// The calling thread's core.
fn core() -> io::Result<Rc<Core>> {
    Core::current().ok_or_else(|| {
        let what =
            "sockets are a runtime's: this thread is none of its cores (see annulus::runtime)";
        io::Error::other(what)
    })
}
