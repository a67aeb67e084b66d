//! The listeners of a core, from which one task accepts in turn.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use annulus::net::{Incoming, TcpListener, TcpStream};

pub(crate) struct Listeners {
    all: Vec<Incoming<TcpStream>>,
    /// The index of the listener that is polled first: the one after that which returned last.
    first: usize,
}

impl Listeners {
    /// `on_failure`: see [`Incoming::on_failure`].
    pub(crate) fn new(
        listeners: Vec<TcpListener>,
        on_failure: impl Fn(&io::Error) + Clone + 'static,
    ) -> Listeners {
        let all = listeners.into_iter().map(|listener| {
            let mut incoming = listener.accept_multishot();
            incoming.on_failure(on_failure.clone());
            incoming
        });
        Listeners {
            all: all.collect(),
            first: 0,
        }
    }

    /// Limits the number of connections that the listeners may accept.
    pub(crate) fn set_limit(&mut self, connections: usize) {
        (self.all.iter_mut()).for_each(|incoming| incoming.set_limit(connections));
    }

    /// Returns the number of connections that have been accepted and not yet returned by `next`.
    pub(crate) fn queued(&self) -> usize {
        self.all.iter().map(Incoming::queued).sum()
    }

    /// Returns the next connection of any listener, or `None` when the runtime is stopping.
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
