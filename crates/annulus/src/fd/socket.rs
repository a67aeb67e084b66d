//! An open socket of one core: counted by its users, closed with the last of them (Open). It stays
//! on the core's thread.

use std::cell::Cell;
use std::fmt;
use std::os::fd::{IntoRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::time::Duration;

use super::order::SendOrder;
use crate::narrow::to_ns;
use crate::sys::{net, option};

/// Who closes a core's sockets.
pub(crate) trait CloseSocket {
    /// Nothing uses the descriptor any more. `watched`: the name it is polled under.
    fn close(&self, raw: RawFd, watched: Option<u32>);

    /// Whether the core has ended: nothing that is cut off now will be gone on with.
    fn is_over(&self) -> bool {
        true
    }

    /// Nobody has `socket` any more but what is being sent: the core is to see that it comes to an end. Returns a name
    /// for `forget_closing`.
    fn watch_closing(&self, _socket: &Rc<Socket>) -> Option<usize> {
        None
    }

    /// It has come to its end.
    fn forget_closing(&self, _index: usize) {}
}

/// An open socket.
pub(crate) struct Socket {
    raw: RawFd,
    closer: Rc<dyn CloseSocket>,
    /// Where its readiness is kept, on a core without a ring.
    watched: Cell<Option<u32>>,
    /// The queue for the permit to send.
    order: SendOrder,
    zero_copy: Cell<ZeroCopy>,
    /// Whether a ring's socket has been told not to wait: see `net::file`.
    never_waits: Cell<bool>,
    /// The kernel has closed it, or has been asked to behind its last send: which of the two, it has yet to say.
    number: Cell<Number>,
    /// Something was begun to be sent that will not be sent whole: the end is a reset.
    cut: Cell<bool>,
    /// Streams and writers of it that somebody has.
    users: Cell<u32>,
    /// A writer was dropped with something to be sent.
    leaves: Cell<bool>,
    /// How long its peer may take nothing of what is being sent when nobody has it any more, ns; `None`: as long as the
    /// core says.
    close_timeout_ns: Cell<Option<u64>>,
    /// Its name among those that nobody has any more.
    closing: Cell<Option<usize>>,
}

/// What is known of a socket's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Open,
    /// A close is with the kernel, to be run if the send before it sends everything.
    Closing,
    /// It may be another file's by now.
    Closed,
}

/// How a socket's zero-copy sends are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ZeroCopy {
    /// With a report whether there was a copy after all.
    Reported,
    /// Without it: the kernel does not know that yet.
    Unreported,
    /// Not at all: the kernel has refused, or copies anyway.
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
            close_timeout_ns: Cell::new(None),
            closing: Cell::new(None),
        })
    }

    /// A stream or a writer of it is somebody's.
    #[inline]
    pub(crate) fn add_user(&self) {
        self.users.set(self.users.get() + 1);
    }

    /// It was dropped. `leaves`: something that is still to be sent.
    #[inline]
    pub(crate) fn remove_user(self: &Rc<Self>, leaves: bool) {
        self.users.set(self.users.get() - 1);
        self.leaves.set(self.leaves.get() || leaves);
        let sends = self.leaves.get() || self.order.is_busy();
        if self.users.get() == 0 && sends && self.closing.get().is_none() {
            self.closing.set(self.closer.watch_closing(self));
        }
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

    /// The errno of a send that nobody waited for, or 0. What was to follow it can't be sent either.
    #[inline]
    pub(crate) fn send_failed(&self) -> i32 {
        self.order.failed()
    }

    /// Tells the peer that nothing follows, once all that is being sent, or waits for the permit, has been.
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

    pub(crate) fn set_zero_copy(&self, way: ZeroCopy) {
        self.zero_copy.set(way);
    }

    #[inline]
    pub(crate) fn never_waits(&self) -> bool {
        self.never_waits.get()
    }

    pub(crate) fn set_never_waits(&self, never: bool) {
        self.never_waits.set(never);
    }

    /// The kernel has been asked to close it behind its last send.
    pub(crate) fn close_begins(&self) {
        self.number.set(Number::Closing);
    }

    /// What came of that.
    pub(crate) fn close_ended(&self, closed: bool) {
        if closed {
            return self.number.set(Number::Closed);
        }
        self.number.set(Number::Open);
        if self.cut.get() {
            self.reset_when_closed();
        }
    }

    /// Whether another file may have its number by now. No operation may use the number any more.
    #[inline]
    pub(crate) fn is_released(&self) -> bool {
        self.number.get() != Number::Open
    }

    /// Whether a close waits for its last send.
    pub(crate) fn is_closing(&self) -> bool {
        self.number.get() == Number::Closing
    }

    /// Ends the connection immediately, by a reset where there is such: what is being sent fails.
    pub(crate) fn abort(&self) {
        self.cut();
        net::abort(self.raw);
    }

    /// Something was begun to be sent that will not be sent whole. From here on the end of the connection is a reset,
    /// the closing task, so that the peer does not take what has come for all there was. A Unix stream has no reset.
    #[cold]
    pub(crate) fn cut(&self) {
        if !self.cut.replace(true) && !self.is_released() {
            self.reset_when_closed();
        }
    }

    pub(super) fn is_cut(&self) -> bool {
        self.cut.get()
    }

    fn reset_when_closed(&self) {
        // Refused, it is none that could be reset.
        let _ = option::set_linger(self.raw, Some(Duration::ZERO));
    }

    /// Whether its core has ended.
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
