//! A page that is being read. All who wait for it share the operation: the first one that is polled continues it, so a
//! task that is never polled delays no other.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use annulus::buf::ArenaBuf;

use crate::one_at_a_time::OneAtATime;
use crate::sync::lock;

type Reading = Pin<Box<dyn Future<Output = io::Result<ArenaBuf>> + Send>>;

pub(crate) struct Load {
    /// False if the load began by waiting for a frame.
    pub(crate) has_frame: bool,
    /// The result of [`Queues::next`](crate::policy::Queues::next) when the page was last in memory.
    pub(crate) evicted: Option<u32>,
    /// The frame and the read; `None` once it is done.
    reading: OneAtATime<Option<Reading>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    outcome: Option<Result<u32, Failure>>,
    waiters: Vec<Waiter>,
    /// Unused indices of `waiters`.
    vacant: Vec<usize>,
    /// True if the load goes on without waiters.
    detached: bool,
}

pub(crate) enum Waiter {
    Waits(Option<Waker>),
    Gone,
}

/// An error that several get.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    kind: io::ErrorKind,
    what: Arc<str>,
}

impl Failure {
    pub(crate) fn new(error: &io::Error, what: String) -> Failure {
        Failure {
            kind: error.kind(),
            what: what.into(),
        }
    }

    pub(crate) fn error(&self) -> io::Error {
        io::Error::new(self.kind, &*self.what)
    }
}

/// The state of a load, for one who waits.
pub(crate) enum Completion {
    Nothing,
    Failed(Failure),
    /// The frame, which stays until `leave` returns.
    Page(u32),
}

/// The rest of the work after one who waited has left.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Left {
    Others,
    /// The last one who waited for an unfinished load.
    Unfinished,
    /// The last one to whom this frame's page was passed on.
    Page(u32),
}

impl Load {
    pub(crate) fn new(
        reading: Reading,
        evicted: Option<u32>,
        has_frame: bool,
        detached: bool,
    ) -> Load {
        Load {
            has_frame,
            evicted,
            reading: OneAtATime::new(Some(reading)),
            state: Mutex::new(State {
                detached,
                ..State::default()
            }),
        }
    }

    /// Adds one who waits. The caller holds the lock of the file's loads, so the load is not done.
    pub(crate) fn join(&self) -> usize {
        let mut state = lock(&self.state);
        let waiter = Waiter::Waits(None);
        match state.vacant.pop() {
            Some(at) => {
                state.waiters[at] = waiter;
                at
            }
            None => {
                state.waiters.push(waiter);
                state.waiters.len() - 1
            }
        }
    }

    /// Goes on with the read, and returns its result to exactly one caller. Never waits for another thread.
    pub(crate) fn poll(self: &Arc<Load>) -> Option<io::Result<ArenaBuf>> {
        let waker = Waker::from(Arc::clone(self));
        let go_on = |reading: &mut Option<Reading>| {
            let future = reading.as_mut()?;
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Pending => None,
                Poll::Ready(result) => Some((result, reading.take())),
            }
        };
        // The operation may complete while another thread cannot go on with it.
        let (result, done) = self.reading.work(go_on, || waker.wake_by_ref())?;
        drop(done);
        Some(result)
    }

    /// Ends the read of a load that no one awaits.
    pub(crate) fn abandon(&self) {
        // No one polls it: there are no waiters.
        let reading = self.reading.lock().take();
        drop(reading);
    }

    /// Registers a waker, and returns what there is.
    pub(crate) fn look(&self, at: usize, waker: &Waker) -> Completion {
        // Cloned and dropped outside of the lock, because a waker is foreign code.
        let mut waker = Some(waker.clone());
        let mut state = lock(&self.state);
        if let Waiter::Waits(old) = &mut state.waiters[at] {
            std::mem::swap(old, &mut waker);
        }
        let found = match &state.outcome {
            None => Completion::Nothing,
            Some(Ok(frame)) => Completion::Page(*frame),
            Some(Err(failure)) => Completion::Failed(failure.clone()),
        };
        drop(state);
        drop(waker);
        found
    }

    /// Returns whether someone waits.
    pub(crate) fn is_awaited(&self) -> bool {
        let state = lock(&self.state);
        state.waiters.len() > state.vacant.len()
    }

    /// Makes the load end with the last one who waits. Returns whether there is none.
    pub(crate) fn end_unless_awaited(&self) -> bool {
        let mut state = lock(&self.state);
        state.detached = false;
        state.waiters.len() == state.vacant.len()
    }

    /// Sets the outcome, and returns those to wake. `by`: one who waits, is being polled, and looks at the outcome
    /// next; a wake would only make its executor poll it once more. The caller holds the lock of the file's loads.
    pub(crate) fn finish(&self, outcome: Result<u32, Failure>, by: Option<usize>) -> Vec<Waker> {
        let mut state = lock(&self.state);
        state.outcome = Some(outcome);
        state.wakers(by)
    }

    /// Removes one who waits, whom the caller drops outside of its locks.
    pub(crate) fn leave(&self, at: usize) -> (Left, Waiter) {
        let mut state = lock(&self.state);
        let waiter = std::mem::replace(&mut state.waiters[at], Waiter::Gone);
        state.vacant.push(at);
        let is_last = state.vacant.len() == state.waiters.len();
        let left = match &state.outcome {
            _ if !is_last => Left::Others,
            None if !state.detached => Left::Unfinished,
            Some(Ok(frame)) => Left::Page(*frame),
            None | Some(Err(_)) => Left::Others,
        };
        drop(state);
        (left, waiter)
    }
}

impl State {
    /// Takes the wakers of all but one.
    fn wakers(&mut self, but: Option<usize>) -> Vec<Waker> {
        let waiters = self.waiters.iter_mut().enumerate();
        let wakers = waiters.filter_map(|(at, waiter)| match waiter {
            Waiter::Waits(waker) if Some(at) != but => waker.take(),
            _ => None,
        });
        wakers.collect()
    }
}

impl Wake for Load {
    fn wake(self: Arc<Load>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Load>) {
        let wakers = lock(&self.state).wakers(None);
        wake(wakers);
    }
}

/// Wakes all. A waker is foreign code: a panic in one ends here, and the others are woken.
pub(crate) fn wake(wakers: Vec<Waker>) {
    for waker in wakers {
        let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
    }
}
