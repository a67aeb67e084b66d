//! A kernel thread that polls submission queues (SQPOLL): how it is asked for, and what speaks against it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::polling::{Poller, RingPoll};
use super::probe::{self, SQPOLL_PROCESSORS};

/// A kernel thread that polls submission queues (SQPOLL), as it is asked for; see
/// [`EngineBuilder::sqpoll`](crate::EngineBuilder::sqpoll) and, with feature `net`, `RuntimeBuilder::sqpoll`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SqPoll {
    idle: Duration,
    cpu: Option<u32>,
}

/// How long the thread polls without work, by default: longer than the pauses within a burst, shorter
/// than what somebody who watches the machine's load would notice.
const IDLE: Duration = Duration::from_millis(20);
impl Default for SqPoll {
    fn default() -> SqPoll {
        SqPoll::new()
    }
}

impl SqPoll {
    /// Awake for 20 ms after the last entry, on any processor.
    pub fn new() -> SqPoll {
        SqPoll {
            idle: IDLE,
            cpu: None,
        }
    }

    /// How long the thread goes on polling when no entry comes; then it sleeps, and the next entry costs
    /// a system call to wake it. Rounded up to whole milliseconds, at least one: the kernel takes 0
    /// for a second.
    pub fn idle(mut self, idle: Duration) -> SqPoll {
        self.idle = idle;
        self
    }

    /// The processor it runs on, and nowhere else.
    pub fn cpu(mut self, cpu: u32) -> SqPoll {
        self.cpu = Some(cpu);
        self
    }

    fn idle_ms(self) -> u32 {
        let ms = self.idle.as_nanos().div_ceil(1_000_000).max(1);
        u32::try_from(ms).unwrap_or(u32::MAX)
    }

    /// The same for rings; those made with the same answer share a thread.
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

/// Against a polling thread, if anything is.
pub(crate) fn advice(processors: usize) -> Option<String> {
    (!probe::sqpoll_advised(processors)).then(|| {
        let plural = if processors == 1 { "processor" } else { "processors" };
        format!(
            "not advised with {processors} {plural}: while there is work the polling thread takes one of them from \
             the driver and the callers; without sqpoll, or with {SQPOLL_PROCESSORS} and more, they don't compete"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_time_is_never_the_zero_that_the_kernel_takes_for_a_second() {
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
    fn a_polling_thread_is_advised_against_where_processors_are_few() {
        assert!(advice(1).unwrap().contains("1 processor:"));
        assert!(advice(3).unwrap().contains("3 processors:"));
        assert_eq!(advice(4), None);
    }
}
