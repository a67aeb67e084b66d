//! Configuration of a kernel thread that polls submission queues (SQPOLL), and advice against it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::polling::{Poller, RingPoll};
use super::probe::{self, SQPOLL_PROCESSORS};

/// The configuration of a kernel thread that polls submission queues (SQPOLL). See
/// [`EngineBuilder::sqpoll`](crate::EngineBuilder::sqpoll) and, with feature `net`, `RuntimeBuilder::sqpoll`.
///
/// A short idle time leaves the processor to others sooner. Then the first operation of a burst costs a system call:
///
/// ```
/// use std::time::Duration;
/// use annulus::{Engine, engine::SqPoll};
///
/// let poll = SqPoll::new().idle(Duration::from_millis(2));
/// let engine = Engine::builder().sqpoll(poll).build()?;
/// println!("{}", engine.backend()); // says if the kernel has refused it
/// # Ok::<(), annulus::SetupError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SqPoll {
    idle: Duration,
    cpu: Option<u32>,
}

/// The default time of polling without work: longer than the pauses within a burst, and too short to be visible in the
/// machine's load.
const IDLE: Duration = Duration::from_millis(20);
impl Default for SqPoll {
    fn default() -> SqPoll {
        SqPoll::new()
    }
}

impl SqPoll {
    /// Returns the default: the thread polls for 20 ms after the last entry, on any processor.
    pub fn new() -> SqPoll {
        SqPoll {
            idle: IDLE,
            cpu: None,
        }
    }

    /// Sets the time that the thread polls without new entries before it sleeps. The next entry then costs a system
    /// call to wake it. The default is 20 ms. The time is rounded up to whole milliseconds, at least one, because the
    /// kernel takes 0 for a second.
    pub fn idle(mut self, idle: Duration) -> SqPoll {
        self.idle = idle;
        self
    }

    /// Pins the thread to this processor.
    pub fn cpu(mut self, cpu: u32) -> SqPoll {
        self.cpu = Some(cpu);
        self
    }

    fn idle_ms(self) -> u32 {
        let ms = self.idle.as_nanos().div_ceil(1_000_000).max(1);
        u32::try_from(ms).unwrap_or(u32::MAX)
    }

    /// Returns the configuration for rings. All rings that are created with one returned value share a thread.
    pub(crate) fn ring_poll(self) -> RingPoll {
        RingPoll::Submissions(Arc::new(Poller::new(self.idle_ms(), self.cpu)))
    }
}

impl fmt::Display for SqPoll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.idle_ms();
        write!(
            f,
            "a kernel thread polls the submission queues and sleeps after {ms} ms"
        )?;
        match self.cpu {
            Some(cpu) => write!(f, ", on processor {cpu}"),
            None => Ok(()),
        }
    }
}

/// Returns the reason against a polling thread, if there is one.
pub(crate) fn advice(processors: usize) -> Option<String> {
    (!probe::sqpoll_advised(processors)).then(|| {
        let plural = if processors == 1 { "processor" } else { "processors" };
        format!(
            "not advised with {processors} {plural}: while there is work the polling thread takes one of them from \
             the driver and the callers; use it with at least {SQPOLL_PROCESSORS} processors"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_time_is_never_zero_which_the_kernel_takes_for_a_second() {
        for (idle, ms) in [
            (Duration::ZERO, 1),
            (Duration::from_nanos(1), 1),
            (Duration::from_micros(1_001), 2),
            (Duration::from_millis(20), 20),
            (Duration::MAX, u32::MAX),
        ] {
            assert_eq!(SqPoll::new().idle(idle).idle_ms(), ms);
        }
    }

    #[test]
    fn a_polling_thread_is_advised_against_with_few_processors() {
        assert!(advice(1).unwrap().contains("1 processor:"));
        assert!(advice(3).unwrap().contains("3 processors:"));
        assert_eq!(advice(4), None);
    }
}
