//! Connections that come one by one, faster than a sleep between any two of them is worth.
//!
//! A server that is faster than its clients sleeps after each connection of a burst, and whoever connects next pays
//! for waking it: an interrupt of another processor. So after some rounds that brought connections and nothing else
//! a wait is patient: it ends with several completions, or with any after 100 µs, as network cards hold back their
//! interrupts. One that sleeps for longer than that anyway ends as soon as ever; a byte from a client, or anything
//! else that is not a connection, ends the burst. Linux 6.12 (`IORING_FEAT_MIN_TIMEOUT`); before, nothing changes.

use annulus::preload::Wait;

/// So many rounds in a row brought nothing but connections, and the next wait is patient.
const ROUNDS: u32 = 4;
/// A patient wait ends with so many completions,
const COMPLETIONS: u32 = 8;
/// or with any, so long after it has begun. The longer, the less processor time a connection takes; with 200 eight
/// clients have a fifth less of them answered (runs/2026-11-23-preload-and-http-epyc).
const PATIENCE_US: u32 = 100;
/// A wait that is to end by then is not patient: the kernel would make it longer.
const TIMEOUT_NS_MIN: u64 = 1_000_000;

/// How many rounds in a row brought connections and nothing else.
#[derive(Debug)]
pub(crate) struct AcceptBurst {
    connections: usize,
    rounds: u32,
}

impl AcceptBurst {
    /// None.
    pub(crate) const fn new() -> AcceptBurst {
        AcceptBurst {
            connections: 0,
            rounds: 0,
        }
    }

    /// One of the answers of this round is a connection, or says that there is one.
    #[inline]
    pub(crate) fn connection(&mut self) {
        self.connections += 1;
    }

    /// A round has ended that brought so many answers.
    #[inline]
    pub(crate) fn round(&mut self, completions: usize) {
        if completions == 0 {
            return;
        }
        let nothing_else = self.connections == completions;
        self.connections = 0;
        self.rounds = if nothing_else {
            self.rounds.saturating_add(1)
        } else {
            0
        };
    }

    /// What the next wait waits for, `timeout_ns` at most.
    #[inline]
    pub(crate) fn next_wait(&self, timeout_ns: Option<u64>) -> Wait {
        if self.rounds < ROUNDS || timeout_ns.is_some_and(|ns| ns < TIMEOUT_NS_MIN) {
            return Wait::One;
        }
        Wait::Several(COMPLETIONS, PATIENCE_US)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds of so many connections and so many other answers.
    fn after(rounds: &[(usize, usize)]) -> AcceptBurst {
        let mut burst = AcceptBurst::new();
        for &(connections, others) in rounds {
            (0..connections).for_each(|_| burst.connection());
            burst.round(connections + others);
        }
        burst
    }

    #[test]
    fn only_connections_and_nothing_else_make_a_wait_patient() {
        let patient = |rounds: &[(usize, usize)]| after(rounds).next_wait(None).is_patient();
        assert!(!patient(&[]));
        assert!(!patient(&[(1, 0); 3]));
        assert!(patient(&[(1, 0); 4]));
        assert!(patient(&[(3, 0), (1, 0), (2, 0), (1, 0), (5, 0)]));
        // Rounds that brought nothing say nothing.
        assert!(patient(&[(1, 0), (0, 0), (1, 0), (1, 0), (0, 0), (1, 0)]));
        // A client asks, alone or beside a connection: that ends it.
        assert!(!patient(&[(1, 0), (1, 0), (1, 0), (1, 0), (0, 1)]));
        assert!(!patient(&[(1, 0), (1, 0), (1, 0), (1, 0), (1, 1)]));
        assert!(!patient(&[(1, 0), (1, 0), (0, 3), (1, 0), (1, 0), (1, 0)]));
    }

    #[test]
    fn a_short_wait_is_never_patient() {
        let burst = after(&[(1, 0); 9]);
        assert!(!burst.next_wait(Some(0)).is_patient());
        assert!(!burst.next_wait(Some(TIMEOUT_NS_MIN - 1)).is_patient());
        assert!(burst.next_wait(Some(TIMEOUT_NS_MIN)).is_patient());
        assert!(burst.next_wait(None).is_patient());
    }
}
