//! The accepting side of a listener: a multishot accept, single accepts where the kernel has no multishot, or system
//! calls without a ring.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use super::stream::Stream;
use crate::driver::core::{
    CompletionHandler, Core, Crowd, SharedOperation, Timer, Token, WaitersCell,
};
use crate::fd::{Claim, Socket};
use crate::item_stream::item_stream;
use crate::metrics::OperationNumber;
use crate::op::{Accept, accept_multishot};
use crate::sys::engine_error::{EngineError, error_of};
use crate::sys::errno::{EAGAIN, EBADF, ECANCELED, ECONNABORTED, EINTR, EINVAL, ENOTSOCK};
use crate::sys::net;
use crate::sys::on_core::OnCore;
use crate::sys::sqe::Cqe;

/// Pause after a failed accept, most often for lack of descriptors. A descriptor may be closed in that time; an
/// immediate retry would fail again.
const WANT_PAUSE_NS: u64 = 10_000_000;

/// Number of accepted, untaken connections at which a multishot accept is stopped. Further ones wait in the
/// listener's backlog, where monitoring counts them.
const QUEUED_MAX: usize = 256;

/// Entries of a core's completion queue: a multishot accept may run ahead of its listener's task by this number of
/// connections. A program with a lower limit accepts them one by one.
const MULTISHOT_LIMIT: usize = 1024;

/// The accepting side of a listener.
pub(super) struct Acceptor {
    pub(super) core: Rc<Core>,
    pub(super) socket: Rc<Socket>,
    queue: RefCell<VecDeque<io::Result<OwnedFd>>>,
    armed: Cell<Option<Token>>,
    /// The kernel has no multishot accept (before 5.19).
    single: Cell<bool>,
    /// Number of further connections that the program can handle.
    limit: Cell<usize>,
    /// A single accept, shared by all tasks that wait for one.
    accept: RefCell<Option<SharedOperation<Accept>>>,
    /// Time of the next attempt, ns; 0 is immediately.
    not_before_ns: Cell<u64>,
    timer: Cell<Option<Timer>>,
    /// The tasks that wait for that time.
    pausing: RefCell<Option<Arc<Crowd>>>,
    waiters: WaitersCell,
    /// Set for a TCP listener that was bound here.
    bound: RefCell<Option<Bound>>,
}

/// Parts that are freed when a listener ends, even while operations on it are still in the kernel.
struct Bound {
    socket: Rc<Socket>,
    /// The claim on the address, if other cores may share it.
    _claim: Option<Claim>,
}

/// Makes the address available for another bind immediately; the kernel closes the socket itself later. No other
/// process has the socket.
impl Drop for Bound {
    fn drop(&mut self) {
        // The call fails if the socket does not listen.
        let _ = net::shutdown(self.socket.raw(), Shutdown::Both);
    }
}

impl Acceptor {
    /// Makes the acceptor of a TCP socket that this core has bound to an address.
    pub(super) fn bound(core: Rc<Core>, socket: Rc<Socket>, claim: Option<Claim>) -> Rc<Acceptor> {
        let bound = Bound {
            socket: Rc::clone(&socket),
            _claim: claim,
        };
        let acceptor = Acceptor::new(core, socket);
        acceptor.bound.replace(Some(bound));
        acceptor
    }

    pub(super) fn new(core: Rc<Core>, socket: Rc<Socket>) -> Rc<Acceptor> {
        Rc::new(Acceptor {
            core,
            socket,
            queue: RefCell::default(),
            armed: Cell::new(None),
            single: Cell::new(false),
            limit: Cell::new(usize::MAX),
            accept: RefCell::default(),
            not_before_ns: Cell::new(0),
            timer: Cell::new(None),
            pausing: RefCell::default(),
            waiters: WaitersCell::default(),
            bound: RefCell::default(),
        })
    }

    /// Returns the next connection; `None` when the runtime ends.
    pub(super) fn poll_next(
        self: &Rc<Self>,
        context: &mut Context<'_>,
        multishot: bool,
    ) -> Poll<Option<io::Result<Stream>>> {
        if !self.core.spend(context) {
            return Poll::Pending;
        }
        let queued = self.queue.borrow_mut().pop_front();
        if let Some(accepted) = queued {
            return self.give(accepted);
        }
        if self.core.is_ending() {
            return Poll::Ready(None);
        }
        if self.is_pausing(context) {
            return Poll::Pending;
        }
        // Accept one by one if there is no multishot, no ring, or a low limit. An accept whose future was dropped is
        // still in the kernel, and its connection comes first.
        let begun = self.accept.borrow().is_some();
        let multishot = multishot && self.limit.get() >= MULTISHOT_LIMIT;
        let singly = begun || !multishot || self.single.get() || !self.core.has_ring();
        if self.armed.get().is_none() && singly {
            return self.poll_single(context);
        }
        self.waiters.wait(context.waker());
        if self.armed.get().is_none() {
            let sqe = accept_multishot(&self.socket);
            self.armed.set(self.core.arm(
                OperationNumber::ACCEPT,
                sqe,
                Rc::clone(self) as Rc<dyn CompletionHandler>,
            ));
        }
        Poll::Pending
    }

    /// Accepts one connection.
    pub(super) async fn accept(self: &Rc<Self>) -> io::Result<Stream> {
        let accepted = std::future::poll_fn(|context| self.poll_next(context, false)).await;
        accepted.unwrap_or_else(|| Err(EngineError::Ended.into()))
    }

    fn poll_single(&self, context: &mut Context<'_>) -> Poll<Option<io::Result<Stream>>> {
        let operation = self.accept.take();
        let mut operation = operation.unwrap_or_else(|| {
            let op = Accept::new(Rc::clone(&self.socket));
            SharedOperation::new(Rc::clone(&self.core), op)
        });
        match operation.poll(context) {
            Poll::Pending => {
                self.accept.replace(Some(operation));
                Poll::Pending
            }
            Poll::Ready(accepted) => self.give(accepted),
        }
    }

    fn give(&self, accepted: io::Result<OwnedFd>) -> Poll<Option<io::Result<Stream>>> {
        if let Err(error) = &accepted
            && error
                .raw_os_error()
                .is_some_and(|errno| errno != ECONNABORTED)
        {
            self.not_before_ns.set(self.core.now_ns() + WANT_PAUSE_NS);
        }
        Poll::Ready(Some(
            accepted.map(|fd| Stream::new(Rc::clone(&self.core), fd)),
        ))
    }

    /// Returns whether the pause after a failed accept is not over yet.
    fn is_pausing(&self, context: &Context<'_>) -> bool {
        let at_ns = self.not_before_ns.get();
        if at_ns == 0 {
            return false;
        }
        if self.core.now_ns() < at_ns {
            let pausing = self.pausing.borrow().clone();
            let pausing = pausing.unwrap_or_else(Crowd::new);
            pausing.join(context.waker());
            self.pausing.replace(Some(Arc::clone(&pausing)));
            if self.timer.get().is_none() {
                let timer = self.core.set_timer(None, at_ns, &Waker::from(pausing));
                self.timer.set(Some(timer));
            }
            return true;
        }
        self.end_pause();
        self.not_before_ns.set(0);
        false
    }

    fn end_pause(&self) {
        let timer = self.timer.take();
        timer
            .into_iter()
            .for_each(|timer| self.core.clear_timer(timer));
        if let Some(pausing) = self.pausing.take() {
            // Another task may have ended the pause before the timer fires.
            Waker::from(pausing).wake();
        }
    }

    fn set_limit(&self, connections: usize) {
        self.limit.set(connections);
        if connections < MULTISHOT_LIMIT
            && let Some(token) = self.armed.get()
        {
            self.core.cancel(token);
        }
    }

    pub(super) fn close(&self) {
        let token = self.armed.get();
        token.into_iter().for_each(|token| self.core.cancel(token));
        self.end_pause();
        let accept = self.accept.take();
        drop(accept);
        let queued = self.queue.take();
        drop(queued);
        let bound = self.bound.take();
        drop(bound);
        self.waiters.clear();
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.socket.fmt(f)
    }
}

impl CompletionHandler for Acceptor {
    fn on_completion(self: Rc<Self>, core: &Core, cqe: Cqe) {
        match cqe.res {
            res if res >= 0 => {
                let fd = net::accepted(res);
                self.queue.borrow_mut().push_back(Ok(fd));
            }
            res if matches!(-res, ECANCELED | EAGAIN | EINTR) => {}
            res if res == -EINVAL && !self.single.get() => self.single.set(true),
            res => {
                let error = error_of(-res);
                self.queue.borrow_mut().push_back(Err(error));
            }
        }
        if !cqe.more() {
            self.armed.set(None);
        } else if self.queue.borrow().len() == QUEUED_MAX {
            let token = self.armed.get();
            token.into_iter().for_each(|token| core.cancel(token));
        }
        self.waiters.wake();
    }
}

/// Is told each error after which the listener goes on.
type OnFailure = Box<dyn FnMut(&io::Error)>;

/// The connections that a listener accepts, one after another. Made by
/// [`TcpListener::accept_multishot`](super::TcpListener::accept_multishot).
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// use annulus::net::{TcpListener, TcpStream};
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let address = listener.local_addr()?;
/// let mut incoming = listener.accept_multishot();
/// incoming.on_failure(|error| eprintln!("accept failed, next attempt in 10 ms: {error}"));
/// incoming.set_limit(100); // connections beyond 100 wait in the kernel and use no descriptor
/// let _client = TcpStream::connect(address).await?;
/// let Some(stream) = incoming.next().await else { return Ok(()) }; // the runtime ends
/// let stream: TcpStream = stream?; // an error here is final
/// incoming.set_limit(99); // count down for each connection, and up when one closes
/// # drop(stream);
/// # Ok(()) })? }
/// ```
pub struct Incoming<S> {
    acceptor: OnCore<Rc<Acceptor>>,
    on_failure: Option<OnFailure>,
    streams: PhantomData<S>,
}

impl<S: From<Accepted>> Incoming<S> {
    pub(super) fn new(acceptor: Rc<Acceptor>) -> Incoming<S> {
        Incoming {
            acceptor: acceptor.into(),
            on_failure: None,
            streams: PhantomData,
        }
    }

    /// Sets how many more connections the program can handle; unlimited by default.
    ///
    /// Below 1,024, connections are accepted one by one, when [`next`](Incoming::next) is called, with at most one
    /// ahead. The others wait in the listener's backlog and use no descriptor. From 1,024 on, a multishot accept may
    /// run ahead; see [`queued`](Incoming::queued).
    ///
    /// A server of at most two connections. It accepts again when one of them has ended:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// use annulus::net::{TcpListener, TcpStream};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let address = listener.local_addr()?;
    /// let mut incoming = listener.accept_multishot();
    /// let mut served: Vec<TcpStream> = Vec::new();
    /// let _clients = [TcpStream::connect(address).await?, TcpStream::connect(address).await?];
    /// while served.len() < 2 {
    ///     incoming.set_limit(2 - served.len());
    ///     served.extend(incoming.next().await.transpose()?);
    /// }
    /// assert_eq!(incoming.queued(), 0); // none was accepted in advance
    /// # Ok(()) })? }
    /// ```
    pub fn set_limit(&mut self, connections: usize) {
        self.acceptor.set_limit(connections);
    }

    /// Returns the number of connections that were accepted but not yet returned by [`next`](Incoming::next).
    pub fn queued(&self) -> usize {
        self.acceptor.queue.borrow().len()
    }

    /// Calls `report` for each accept that fails and is tried again; see [`next`](Incoming::next). While descriptors
    /// are short, that is 100 times a second. [Metrics](crate::metrics) count these failures as well.
    pub fn on_failure(&mut self, report: impl FnMut(&io::Error) + 'static) {
        self.on_failure = Some(Box::new(report));
    }

    /// Waits for the next connection. Returns `None` when the runtime ends.
    ///
    /// If descriptors or memory have run out (`EMFILE`, `ENFILE`, `ENOMEM`, `ENOBUFS`), or for errors of the network or
    /// a firewall, the next attempt is made 10 ms later; after `ECONNABORTED`, immediately. Dropping the future loses
    /// no connection.
    ///
    /// # Errors
    ///
    /// Fails only if the listener cannot accept any more connections (`EBADF`, `EINVAL`, `ENOTSOCK`), or when the
    /// runtime ends ([`EngineError::Ended`](crate::EngineError::Ended)).
    pub async fn next(&mut self) -> Option<io::Result<S>> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// Polls for the next connection; see [`next`](Incoming::next).
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<S>>> {
        loop {
            match ready!(self.acceptor.poll_next(context, true)) {
                Some(Err(error)) if may_succeed_later(&error) => {
                    if let Some(report) = &mut self.on_failure {
                        report(&error);
                    }
                }
                next => {
                    let next = next.map(|accepted| accepted.map(|stream| Accepted(stream).into()));
                    return Poll::Ready(next);
                }
            }
        }
    }
}

/// Returns whether a listener whose accept failed may accept other connections.
fn may_succeed_later(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    errno.is_some_and(|errno| !matches!(errno, EBADF | EINVAL | ENOTSOCK))
}

/// An accepted connection that has no public type yet.
#[doc(hidden)]
pub struct Accepted(pub(super) Stream);

impl fmt::Debug for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<S> Unpin for Incoming<S> {}

item_stream!([S: From<Accepted>] Incoming<S>, io::Result<S>);

impl<S> Drop for Incoming<S> {
    fn drop(&mut self) {
        self.acceptor.close();
    }
}

impl<S> fmt::Debug for Incoming<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Incoming")
            .field(&self.acceptor.socket)
            .finish()
    }
}
