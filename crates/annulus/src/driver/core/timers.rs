//! The timers of one core.

use std::collections::BTreeMap;
use std::task::Waker;

/// A timer: its time, ns, and a number that distinguishes timers of the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Timer {
    at_ns: u64,
    number: u64,
}

/// All timers of a core, soonest first.
#[derive(Debug, Default)]
pub(super) struct Timers {
    set: BTreeMap<Timer, Waker>,
    /// The number of timers ever set.
    numbers: u64,
}

impl Timers {
    /// Sets a timer, or replaces the waker of the given one. The caller drops the old waker.
    pub(super) fn set(
        &mut self,
        timer: Option<Timer>,
        at_ns: u64,
        waker: Waker,
    ) -> (Timer, Option<Waker>) {
        let timer = timer.unwrap_or_else(|| {
            self.numbers += 1;
            Timer {
                at_ns,
                number: self.numbers,
            }
        });
        (timer, self.set.insert(timer, waker))
    }

    pub(super) fn clear(&mut self, timer: Timer) -> Option<Waker> {
        self.set.remove(&timer)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.set.is_empty()
    }

    /// Returns the time of the soonest timer, ns.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.set.first_key_value().map(|(timer, _)| timer.at_ns)
    }

    /// Removes a timer whose time has passed.
    pub(super) fn pop_passed(&mut self, now_ns: u64) -> Option<Waker> {
        let first = self.set.first_entry()?;
        (first.key().at_ns <= now_ns).then(|| first.remove())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_go_off_soonest_first_and_only_when_their_time_has_come() {
        let mut timers = Timers::default();
        let waker = || Waker::noop().clone();
        let (late, _) = timers.set(None, 30, waker());
        let (soon, _) = timers.set(None, 10, waker());
        let (same, _) = timers.set(None, 10, waker());
        assert_ne!(soon, same, "timers of the same time are distinct");
        assert_eq!(timers.next_ns(), Some(10));
        assert!(timers.pop_passed(9).is_none());
        assert!(timers.pop_passed(10).is_some());
        assert!(timers.pop_passed(10).is_some());
        assert!(timers.pop_passed(29).is_none());
        assert!(timers.clear(late).is_some());
        assert!(timers.clear(late).is_none());
        assert!(timers.is_empty() && timers.next_ns().is_none());
    }
}
