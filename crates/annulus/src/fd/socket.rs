//! An open socket of one core. It counts its users, and the last of them closes it (Open). It stays on the core's
//! thread.

use std::cell::Cell;
use std::fmt;
use std::os::fd::{IntoRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use super::order::SendOrder;
use crate::narrow::to_ns;
use crate::sys::{net, option};

/// Closes the sockets of a core.
pub(crate) trait CloseSocket {
    /// Closes a descriptor that nothing uses any more. `watched` is its key in the epoll set.
    fn close(&self, raw: RawFd, watched: Option<u32>);

    /// Returns whether the core has ended, so that interrupted operations are not continued.
    fn is_over(&self) -> bool {
        true
    }

    /// Watches a dropped `socket` that is still sending, so that the core closes it after the timeout. Returns a key
    /// for `forget_closing`.
    fn watch_closing(&self, _socket: &Rc<Socket>) -> Option<usize> {
        None
    }

    /// Stops watching a socket that has finished sending.
    fn forget_closing(&self, _index: usize) {}

    /// Wakes a task, whose waker is foreign code.
    fn wake(&self, task: Waker) {
        task.wake();
    }
}

/// An open socket.
pub(crate) struct Socket {
    raw: RawFd,
    closer: Rc<dyn CloseSocket>,
    /// The key in the epoll set, on a core without a ring.
    watched: Cell<Option<u32>>,
    /// The queue for the permit to send.
    order: SendOrder,
    zero_copy: Cell<ZeroCopy>,
    /// The socket of a ring was made nonblocking; see `net::file`.
    never_waits: Cell<bool>,
    /// The state of the descriptor's number.
    number: Cell<Number>,
    /// A send was cut off, so closing the socket resets the connection.
    cut: Cell<bool>,
    /// The number of streams and writers that use the socket.
    users: Cell<u32>,
    /// A writer was dropped with unsent data.
    leaves: Cell<bool>,
    /// The number of writers with unsent data.
    unsent_writers: Cell<u32>,
    /// Close timeout of this socket, ns: how long the peer may accept no data after the socket was dropped. `None` is
    /// the core's default.
    close_timeout_ns: Cell<Option<u64>>,
    /// The key among the dropped sockets that still send.
    closing: Cell<Option<usize>>,
}

/// The state of a socket's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Open,
    /// The kernel has a close that runs if the send before it sends everything.
    Closing,
    /// The number may belong to another file now.
    Closed,
}

/// The way in which a socket's zero-copy sends are requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ZeroCopy {
    /// Zero-copy, with a report whether the kernel copied anyway.
    Reported,
    /// Zero-copy without the report, which this kernel lacks.
    Unreported,
    /// An ordinary send, because the kernel refuses zero-copy or copies anyway.
    Never,
}

impl Socket {
    /// Takes over `fd`.
    pub(crate) fn new(fd: OwnedFd, closer: Rc<dyn CloseSocket>) -> Rc<Socket> {
        Rc::new(Socket {
            raw: fd.into_raw_fd(),
            closer,
            watched: Cell::new(None),
            order: SendOrder::default(),
            zero_copy: Cell::new(ZeroCopy::Reported),
            never_waits: Cell::new(false),
            number: Cell::new(Number::Open),
            cut: Cell::new(false),
            users: Cell::new(0),
            leaves: Cell::new(false),
            unsent_writers: Cell::new(0),
            close_timeout_ns: Cell::new(None),
            closing: Cell::new(None),
        })
    }

    /// Counts a new stream or writer.
    #[inline]
    pub(crate) fn add_user(&self) {
        self.users.set(self.users.get() + 1);
    }

    /// Counts a dropped stream or writer. `leaves` is set if it still has unsent data.
    #[inline]
    pub(crate) fn remove_user(self: &Rc<Self>, leaves: bool) {
        self.users.set(self.users.get() - 1);
        self.leaves.set(self.leaves.get() || leaves);
        let sends = self.leaves.get() || self.order.is_sending();
        if self.users.get() == 0 && sends && self.closing.get().is_none() {
            self.closing.set(self.closer.watch_closing(self));
        }
    }

    /// Counts a writer that now has unsent data.
    pub(crate) fn add_unsent_writer(&self) {
        self.unsent_writers.set(self.unsent_writers.get() + 1);
    }

    /// Counts a writer that has sent its data, or has given up.
    pub(crate) fn remove_unsent_writer(&self) {
        self.unsent_writers.set(self.unsent_writers.get() - 1);
        self.order.end_if_idle(self);
    }

    pub(super) fn has_unsent_writer(&self) -> bool {
        self.unsent_writers.get() > 0
    }

    pub(crate) fn close_timeout_ns(&self) -> Option<u64> {
        self.close_timeout_ns.get()
    }

    pub(crate) fn set_close_timeout(&self, timeout: Duration) {
        self.close_timeout_ns.set(Some(to_ns(timeout)));
    }

    #[inline]
    pub(crate) fn raw(&self) -> RawFd {
        self.raw
    }

    #[inline]
    pub(super) fn order(&self) -> &SendOrder {
        &self.order
    }

    /// Returns the errno of a failed send that was not awaited, or 0. Later sends can't be made either.
    #[inline]
    pub(crate) fn send_failed(&self) -> i32 {
        self.order.failed()
    }

    /// Ends the sending direction (FIN) once all queued sends are complete.
    pub(crate) fn finish_sending(&self) {
        self.order.finish(self);
    }

    #[inline]
    pub(crate) fn watched(&self) -> Option<u32> {
        self.watched.get()
    }

    pub(crate) fn zero_copy(&self) -> ZeroCopy {
        self.zero_copy.get()
    }

    pub(crate) fn set_zero_copy(&self, mode: ZeroCopy) {
        self.zero_copy.set(mode);
    }

    #[inline]
    pub(crate) fn never_waits(&self) -> bool {
        self.never_waits.get()
    }

    pub(crate) fn set_never_waits(&self, never: bool) {
        self.never_waits.set(never);
    }

    /// Records that the kernel closes the socket after its last send.
    pub(crate) fn close_begins(&self) {
        self.number.set(Number::Closing);
    }

    /// Records whether the kernel has closed the socket.
    pub(crate) fn close_ended(&self, closed: bool) {
        if closed {
            return self.number.set(Number::Closed);
        }
        self.number.set(Number::Open);
        if self.cut.get() {
            self.reset_when_closed();
        }
    }

    /// Returns whether another file may have its number now. No operation may use the number then.
    #[inline]
    pub(crate) fn is_released(&self) -> bool {
        self.number.get() != Number::Open
    }

    /// Returns whether a close waits for the last send.
    pub(crate) fn is_closing(&self) -> bool {
        self.number.get() == Number::Closing
    }

    /// Closes the connection immediately, with a reset if it has one. Sends under way fail.
    pub(crate) fn abort(&self) {
        self.cut();
        net::abort(self.raw);
    }

    /// Records that a send was cut off. Closing the socket, in whatever way, then resets the connection, so that the
    /// peer does not take its data for the whole message. A Unix stream has no reset.
    #[cold]
    pub(crate) fn cut(&self) {
        if !self.cut.replace(true) && !self.is_released() {
            self.reset_when_closed();
        }
    }

    pub(super) fn wake_foreign(&self, task: Waker) {
        self.closer.wake(task);
    }

    pub(super) fn is_cut(&self) -> bool {
        self.cut.get()
    }

    fn reset_when_closed(&self) {
        // The call fails for a socket that can't be reset.
        let _ = option::set_linger(self.raw, Some(Duration::ZERO));
    }

    /// Returns whether its core has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.closer.is_over()
    }

    pub(crate) fn set_watched(&self, index: u32) {
        self.watched.set(Some(index));
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(index) = self.closing.get() {
            self.closer.forget_closing(index);
        }
        if self.number.get() != Number::Closed {
            self.closer.close(self.raw, self.watched.get());
        }
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Socket({})", self.raw)
    }
}
