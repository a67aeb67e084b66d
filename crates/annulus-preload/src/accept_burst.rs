//! Lets a wait gather several new connections when connections arrive one by one in quick succession.
//!
//! A server that is faster than its clients sleeps after each connection of a burst, and waking it costs the next
//! client an inter-processor interrupt. After [`ROUNDS`] rounds that brought only connections, a wait becomes patient:
//! it ends after several completions, or at the first completion after 100 µs. Network cards coalesce interrupts in the
//! same way. A wait that would sleep longer than 100 µs anyway is not prolonged. Received bytes, or any other event,
//! end the burst. Needs Linux 6.12 (`IORING_FEAT_MIN_TIMEOUT`); older kernels wait as usual.

use annulus::preload::Wait;

/// The number of consecutive rounds with connections only, after which a wait is patient as described above.
const ROUNDS: u32 = 4;
/// The number of completions that ends a patient wait.
const COMPLETIONS: u32 = 8;
/// The time after which any completion ends a patient wait, µs. A longer time costs less processor time per connection,
/// but with 200 µs, eight clients open a fifth fewer connections (runs/2026-11-23-preload-and-http-epyc).
const PATIENCE_US: u32 = 100;
/// A wait with a shorter timeout, ns, is never patient: the kernel would make it longer.
const TIMEOUT_NS_MIN: u64 = 1_000_000;

/// Counts consecutive rounds that brought connections and nothing else.
#[derive(Debug, Default)]
pub(crate) struct AcceptBurst {
    connections: usize,
    rounds: u32,
}

impl AcceptBurst {
    /// Counts a completion of this round that is a connection or announces one.
    #[inline]
    pub(crate) fn connection(&mut self) {
        self.connections += 1;
    }

    /// Ends a round that reaped `completions`.
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

    /// Returns what the next wait, of at most `timeout_ns`, waits for.
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

    /// Replays rounds of (connections, other completions).
    fn after(rounds: &[(usize, usize)]) -> AcceptBurst {
        let mut burst = AcceptBurst::default();
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
        // Empty rounds do not count.
        assert!(patient(&[(1, 0), (0, 0), (1, 0), (1, 0), (0, 0), (1, 0)]));
        // A request, alone or together with a connection, ends the burst.
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
