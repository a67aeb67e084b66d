//! The timers of one driver or core, soonest first.

use std::collections::BTreeMap;

/// A timer: its time, ns of the monotonic clock, and a key that distinguishes timers of the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Timer {
    pub(super) at_ns: u64,
    pub(super) key: u64,
}

/// Timers, each with a value: the waker of a task, or none for the deadline of an operation, whose key is its token.
#[derive(Debug)]
pub(super) struct Timers<V>(BTreeMap<Timer, V>);

impl<V> Default for Timers<V> {
    fn default() -> Timers<V> {
        Timers(BTreeMap::new())
    }
}

impl<V> Timers<V> {
    /// Sets a timer. Returns the value that it had, which may be foreign code to drop.
    pub(super) fn set(&mut self, timer: Timer, value: V) -> Option<V> {
        self.0.insert(timer, value)
    }

    pub(super) fn clear(&mut self, timer: Timer) -> Option<V> {
        self.0.remove(&timer)
    }

    /// Returns the time of the soonest timer, ns.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.0.first_key_value().map(|(timer, _)| timer.at_ns)
    }

    /// Removes a timer whose time has passed at `now_ns`.
    pub(super) fn pop_passed(&mut self, now_ns: u64) -> Option<(Timer, V)> {
        let first = self.0.first_entry()?;
        (first.key().at_ns <= now_ns).then(|| first.remove_entry())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_go_off_soonest_first_and_only_when_their_time_has_come() {
        let mut timers = Timers::default();
        let timer = |at_ns, key| Timer { at_ns, key };
        for (at_ns, key) in [(30, 1), (10, 2), (10, 3)] {
            assert_eq!(timers.set(timer(at_ns, key), key), None);
        }
        assert_eq!(timers.next_ns(), Some(10));
        assert_eq!(timers.pop_passed(9), None);
        assert_eq!(timers.pop_passed(10), Some((timer(10, 2), 2)));
        assert_eq!(timers.pop_passed(10), Some((timer(10, 3), 3)));
        assert_eq!(timers.pop_passed(29), None);
        assert_eq!(timers.clear(timer(30, 1)), Some(1));
        assert_eq!(timers.clear(timer(30, 1)), None);
        assert_eq!(timers.next_ns(), None);
    }
}
