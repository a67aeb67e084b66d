//! The timeouts of one driver, soonest first.

use std::collections::BTreeSet;

/// Deadlines in ns of the monotonic clock, with the tokens of their operations.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    set: BTreeSet<(u64, u64)>,
}

impl Deadlines {
    /// Adds a deadline; 0 is none.
    pub(crate) fn insert(&mut self, deadline_ns: u64, token: u64) {
        if deadline_ns != 0 {
            self.set.insert((deadline_ns, token));
        }
    }

    pub(crate) fn remove(&mut self, deadline_ns: u64, token: u64) {
        if deadline_ns != 0 {
            self.set.remove(&(deadline_ns, token));
        }
    }

    /// Returns the soonest deadline.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.set.first().map(|&(at, _)| at)
    }

    /// Removes one that has passed at `now_ns`.
    pub(crate) fn pop_passed(&mut self, now_ns: u64) -> Option<u64> {
        let &(at, token) = self.set.first()?;
        if at > now_ns {
            return None;
        }
        self.set.pop_first();
        Some(token)
    }
}
