//! Decides whether a set holds writes back until its next wait. It may do so while its rounds are short.
//!
//! A round lasts from the first write to the next wait on the set. A long round would delay a response. After one,
//! writes are sent immediately for a number of rounds, which grows with each repetition. A thread that lost the
//! processor to another thread is not slow, so it takes several such rounds to have this effect.

/// A round is late if it takes longer than this, ns, and longer than [`LATE_WRITE_NS`] for each of its writes. A server
/// that handles many requests in one round is not slow.
const LATE_NS: u64 = 500_000;
const LATE_WRITE_NS: u64 = 100_000;
/// The number of late rounds, net of the others, after which writes are no longer held back; and the length of a single
/// round that has the same effect, ns.
const LATE_ROUNDS_MAX: u32 = 3;
const VERY_LATE_NS: u64 = 2_000_000;
/// Rounds at the start of a set in which no write is held back.
const FIRST_ROUNDS: u32 = 64;
/// Rounds without batching after a late one: the minimum and the maximum.
const IMMEDIATE_ROUNDS: u32 = 256;
const IMMEDIATE_ROUNDS_MAX: u32 = 1 << 16;
/// Rounds between two calls of `getrusage` that count involuntary context switches.
const CHECK_EVERY_ROUNDS: u32 = 32;

#[derive(Debug)]
pub(crate) struct Batching {
    /// Remaining rounds in which no write is held back.
    immediate_rounds: u32,
    /// The number of such rounds after the next late one.
    next_immediate_rounds: u32,
    /// Late rounds, minus rounds that were not late.
    late: u32,
    /// Rounds since the last check, and the count of context switches at that check.
    rounds_since_check: u32,
    preempted: i64,
}

impl Default for Batching {
    fn default() -> Batching {
        Batching::new(false)
    }
}

impl Batching {
    /// Starts without any history. `batch_from_start`: holds writes back from the first round on.
    pub(crate) fn new(batch_from_start: bool) -> Batching {
        Batching {
            immediate_rounds: if batch_from_start { 0 } else { FIRST_ROUNDS },
            next_immediate_rounds: IMMEDIATE_ROUNDS,
            late: 0,
            rounds_since_check: 0,
            preempted: 0,
        }
    }

    /// Returns whether writes must be sent immediately.
    #[inline]
    pub(crate) fn sends_immediately(&self) -> bool {
        self.immediate_rounds > 0
    }

    /// Sends writes immediately for a while, however short the rounds are.
    pub(crate) fn suspend(&mut self) {
        self.immediate_rounds = self.immediate_rounds.max(IMMEDIATE_ROUNDS);
    }

    /// Ends a round with `writes` writes that took `took_ns`. `preempted` returns the involuntary context switches of
    /// the thread.
    pub(crate) fn round(&mut self, writes: u32, took_ns: u64, preempted: impl Fn() -> i64) {
        self.rounds_since_check += 1;
        let check = |batching: &mut Batching| {
            batching.rounds_since_check = 0;
            std::mem::replace(&mut batching.preempted, preempted()) != batching.preempted
        };
        let late = took_ns > LATE_NS && took_ns / u64::from(writes.max(1)) > LATE_WRITE_NS;
        if !late {
            self.late = self.late.saturating_sub(1);
            if self.rounds_since_check == CHECK_EVERY_ROUNDS {
                check(self);
            }
            if self.immediate_rounds > 0 {
                self.immediate_rounds -= 1;
            } else {
                self.next_immediate_rounds = (self.next_immediate_rounds - 1).max(IMMEDIATE_ROUNDS);
            }
            return;
        }
        self.late += 1;
        if self.late >= LATE_ROUNDS_MAX || (took_ns > VERY_LATE_NS && !check(self)) {
            self.late = 0;
            self.immediate_rounds = self.immediate_rounds.max(self.next_immediate_rounds);
            self.next_immediate_rounds = (2 * self.next_immediate_rounds).min(IMMEDIATE_ROUNDS_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT_NS: u64 = 20_000;
    const SLOW_NS: u64 = 8_000_000;

    fn quiet() -> i64 {
        0
    }

    /// On a busy machine, one long round proves little, but three in a row suffice.
    #[test]
    fn a_thread_that_lost_its_processor_is_not_slow() {
        let (mut batching, lost) = (Batching::new(true), std::cell::Cell::new(0));
        let losing = || {
            lost.set(lost.get() + 1);
            lost.get()
        };
        for _ in 0..100 {
            batching.round(1, SLOW_NS, losing);
            batching.round(1, SHORT_NS, losing);
        }
        assert!(!batching.sends_immediately());
        (0..3).for_each(|_| batching.round(1, SLOW_NS, losing));
        assert!(batching.sends_immediately());
    }

    /// Counts the short rounds of one write until writes are held back again.
    fn immediate_rounds_of(batching: &mut Batching) -> u32 {
        let mut rounds = 0;
        while batching.sends_immediately() {
            batching.round(1, SHORT_NS, quiet);
            rounds += 1;
        }
        rounds
    }

    #[test]
    fn nothing_is_held_back_in_the_first_rounds() {
        assert_eq!(immediate_rounds_of(&mut Batching::new(false)), FIRST_ROUNDS);
        assert!(!Batching::new(true).sends_immediately());
    }

    #[test]
    fn nothing_is_held_back_after_a_slow_round_and_for_longer_each_time() {
        let mut batching = Batching::new(true);
        let mut last = 0;
        for _ in 0..12 {
            batching.round(1, SLOW_NS, quiet);
            let rounds = immediate_rounds_of(&mut batching);
            assert!(
                rounds > last || rounds == IMMEDIATE_ROUNDS_MAX,
                "{rounds} {last}"
            );
            last = rounds;
        }
        assert_eq!(last, IMMEDIATE_ROUNDS_MAX);
        // A server that stays quick for long enough is trusted as it was at first.
        (0..2 * IMMEDIATE_ROUNDS_MAX).for_each(|_| batching.round(1, SHORT_NS, quiet));
        batching.round(1, SLOW_NS, quiet);
        assert_eq!(immediate_rounds_of(&mut batching), IMMEDIATE_ROUNDS);
    }

    /// Every third round is slow: all responses but the first are sent immediately.
    #[test]
    fn a_server_that_is_slow_now_and_then_has_one_late_response() {
        let mut batching = Batching::new(false);
        let mut batched = 0;
        immediate_rounds_of(&mut batching);
        for round in 0..10_000 {
            let slow = round % 3 == 0;
            batched += u32::from(slow && !batching.sends_immediately());
            batching.round(1, if slow { SLOW_NS } else { SHORT_NS }, quiet);
        }
        assert_eq!(batched, 1);
    }

    #[test]
    fn many_requests_in_a_round_are_not_slow() {
        let mut batching = Batching::new(true);
        (0..100).for_each(|_| batching.round(300, 4_000_000, quiet));
        assert!(!batching.sends_immediately());
        // Three consecutive rounds with few, slow writes are slow.
        (0..3).for_each(|_| batching.round(2, 900_000, quiet));
        assert!(batching.sends_immediately());
    }
}
