//! hyper's timeouts on the timers of a core: an exact timer, and a cheaper one for request heads.
//!
//! hyper creates a sleep for each head and drops it once the head has arrived. Setting and clearing a timer of the core
//! for each request would add a thirtieth to its cost. The sleeps of a connection therefore share one timer, which is
//! set again only after it has fired (`HeadTimer`).

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use annulus::time;
use hyper::rt::{Sleep, Timer};
use send_wrapper::SendWrapper;

/// Provides hyper's builders with the timers of the core that polls: `http1::Builder::new().timer(CoreTimer)`.
#[derive(Clone, Copy, Debug, Default)]
pub struct CoreTimer;

/// A sleep of a [`CoreTimer`].
///
/// It uses a timer of the core that polls it. If another core polls it, it is set there. It may be dropped on any
/// thread.
///
/// # Panics
///
/// Panics if polled outside a runtime.
pub struct CoreSleep {
    deadline: Instant,
    /// Set by the first poll. hyper creates a sleep for each request and polls it only if it has to wait.
    set: Option<time::Sleep>,
}

impl CoreSleep {
    fn until(deadline: Instant) -> CoreSleep {
        CoreSleep {
            deadline,
            set: None,
        }
    }
}

impl Future for CoreSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let CoreSleep { deadline, set } = self.get_mut();
        let left = || deadline.saturating_duration_since(Instant::now());
        let sleep = set.get_or_insert_with(|| time::sleep(left()));
        Pin::new(sleep).poll(context)
    }
}

impl Sleep for CoreSleep {}

impl Timer for CoreTimer {
    fn sleep(&self, time: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(Instant::now() + time)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(CoreSleep::until(deadline))
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn Sleep>>, deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<CoreSleep>() {
            Some(mut sleep) => sleep.set(CoreSleep::until(deadline)),
            None => *sleep = self.sleep_until(deadline),
        }
    }
}

/// The head timer of one connection. Its sleeps follow one another and last equally long, and only the connection's
/// task polls them.
pub(crate) struct HeadTimer {
    time: Duration,
    shared: Arc<SendWrapper<RefCell<Option<Armed>>>>,
}

/// The core's timer and the waker that it wakes. The woken sleep checks its own deadline.
struct Armed {
    until: Instant,
    waker: Waker,
    _sleep: time::Sleep,
}

/// A sleep that shares the timer of its connection.
struct HeadSleep {
    begun: Instant,
    deadline: Instant,
    polled: bool,
    shared: Arc<SendWrapper<RefCell<Option<Armed>>>>,
}

impl HeadTimer {
    pub(crate) fn new(time: Duration) -> HeadTimer {
        let shared = Arc::new(SendWrapper::new(RefCell::default()));
        HeadTimer { time, shared }
    }
}

impl Timer for HeadTimer {
    fn sleep(&self, time: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(Instant::now() + time)
    }

    /// hyper computes `deadline` from the current time, so the start needs no second reading of the clock.
    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(HeadSleep {
            begun: deadline.checked_sub(self.time).unwrap_or(deadline),
            deadline,
            polled: false,
            shared: Arc::clone(&self.shared),
        })
    }
}

impl Future for HeadSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // The first poll follows the creation immediately, so no time has passed. When the timer fires, the task polls
        // again.
        let now = match std::mem::replace(&mut self.polled, true) {
            false => self.begun,
            true => Instant::now(),
        };
        if now >= self.deadline {
            return Poll::Ready(());
        }
        let mut armed = self.shared.borrow_mut();
        let goes_off = |armed: &Armed| {
            now < armed.until
                && armed.until <= self.deadline
                && armed.waker.will_wake(context.waker())
        };
        if armed.as_ref().is_some_and(goes_off) {
            return Poll::Pending;
        }
        let mut sleep = time::sleep(self.deadline.saturating_duration_since(Instant::now()));
        if Pin::new(&mut sleep).poll(context).is_ready() {
            context.waker().wake_by_ref();
        }
        let before = armed.replace(Armed {
            until: self.deadline,
            waker: context.waker().clone(),
            _sleep: sleep,
        });
        drop(armed);
        drop(before);
        Poll::Pending
    }
}

impl Sleep for HeadSleep {}

impl fmt::Debug for CoreSleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoreSleep")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}
