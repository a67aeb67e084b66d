//! hyper's timeouts, on the timers of the core.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use ::hyper::rt::{Sleep, Timer};
use annulus::time;
use send_wrapper::SendWrapper;

/// Gives hyper's builders the timers of the core that waits: `http1::Builder::new().timer(CoreTimer)`.
#[derive(Clone, Copy, Debug, Default)]
pub struct CoreTimer;

/// The future of a [`CoreTimer`]'s sleep. It belongs to the core that polled it first.
///
/// # Panics
///
/// Polled outside a runtime; polled or dropped on another thread than at first.
pub struct CoreSleep {
    deadline: Instant,
    /// From the first poll on: hyper makes one for each request, and polls it only if it has to wait.
    set: Option<SendWrapper<time::Sleep>>,
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
        let sleep = set.get_or_insert_with(|| {
            let left = deadline.saturating_duration_since(Instant::now());
            SendWrapper::new(time::sleep(left))
        });
        Pin::new(&mut **sleep).poll(context)
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

impl fmt::Debug for CoreSleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoreSleep")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}
