//! The listeners of a core, accepted from as if they were one: by one task, in turn. One per core.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use annulus::net::{Incoming, TcpListener, TcpStream};

pub(crate) struct Listeners {
    all: Vec<Incoming<TcpStream>>,
    /// Which is asked first: the one behind that which has answered last.
    first: usize,
}

impl Listeners {
    pub(crate) fn new(listeners: Vec<TcpListener>) -> Listeners {
        let all = listeners.into_iter().map(TcpListener::accept_multishot);
        Listeners {
            all: all.collect(),
            first: 0,
        }
    }

    /// Says how many more connections there is room for.
    pub(crate) fn set_limit(&mut self, connections: usize) {
        (self.all.iter_mut()).for_each(|incoming| incoming.set_limit(connections));
    }

    /// Connections that have been accepted and not yet been returned.
    pub(crate) fn queued(&self) -> usize {
        self.all.iter().map(Incoming::queued).sum()
    }

    /// The next connection of any of them; `None` when the runtime ends.
    pub(crate) async fn next(&mut self) -> Option<io::Result<TcpStream>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<TcpStream>>> {
        let count = self.all.len();
        for index in (0..count).map(|offset| (self.first + offset) % count) {
            if let Poll::Ready(accepted) = self.all[index].poll_next(context) {
                self.first = index + 1;
                return Poll::Ready(accepted);
            }
        }
        Poll::Pending
    }
}
