//! Whether a set may hold back what is written, to send it with the next wait: as long as its rounds are short.
//!
//! A round lasts from the first write to the next wait on the set. One that lasts for long keeps an answer back, or
//! would have: what is written is then sent at once, for a number of rounds that grows as it happens again. A thread
//! that another one has taken the processor from is not slow: of such a round it takes several.

/// What a round may take until something that was written in it is late, ns; and what each write of it may have
/// taken: a server that deals with many requests in a round is not slow.
const LATE_NS: u64 = 500_000;
const LATE_WRITE_NS: u64 = 100_000;
/// So many late rounds more than others, or one that took so long, ns, and nothing is held back.
const LATE_ROUNDS_MAX: u32 = 3;
const VERY_LATE_NS: u64 = 2_000_000;
/// A set begins with so many rounds in which nothing is held back.
const FIRST_ROUNDS: u32 = 64;
/// How many they are after a late one: the least, and the most.
const IMMEDIATE_ROUNDS: u32 = 256;
const IMMEDIATE_ROUNDS_MAX: u32 = 1 << 16;
/// So often the kernel is asked how often another thread has had the processor instead, rounds.
const CHECK_EVERY_ROUNDS: u32 = 32;

#[derive(Debug)]
pub(crate) struct Batching {
    /// Rounds in which nothing is held back.
    immediate_rounds: u32,
    /// How many they are next time.
    next_immediate_rounds: u32,
    /// Late rounds, less those that were not.
    late: u32,
    /// Rounds since it was asked, and the answer.
    rounds_since_check: u32,
    preempted: i64,
}

impl Batching {
    /// Of a set whose rounds nobody has seen; `batch_from_start`: it holds back from the first on.
    pub(crate) const fn new(batch_from_start: bool) -> Batching {
        Batching {
            immediate_rounds: if batch_from_start { 0 } else { FIRST_ROUNDS },
            next_immediate_rounds: IMMEDIATE_ROUNDS,
            late: 0,
            rounds_since_check: 0,
            preempted: 0,
        }
    }

    /// Whether what is written is to be sent at once.
    #[inline]
    pub(crate) fn sends_immediately(&self) -> bool {
        self.immediate_rounds > 0
    }

    /// Nothing is held back for a while, however long rounds are.
    pub(crate) fn suspend(&mut self) {
        self.immediate_rounds = self.immediate_rounds.max(IMMEDIATE_ROUNDS);
    }

    /// A round with so many writes has lasted for so long. `preempted`: how often the thread has lost the processor.
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

    /// On a machine where others have the processor, too, one long round says little, and three in a row enough.
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

    /// Rounds until it holds back, of one write and so long.
    fn immediate_rounds_of(batching: &mut Batching) -> u32 {
        let mut rounds = 0;
        while batching.sends_immediately() {
            batching.round(1, SHORT_NS, quiet);
            rounds += 1;
        }
        rounds
    }

    #[test]
    fn nothing_is_held_back_before_rounds_have_been_seen() {
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
        // A server that is quick for long is trusted as at first.
        (0..2 * IMMEDIATE_ROUNDS_MAX).for_each(|_| batching.round(1, SHORT_NS, quiet));
        batching.round(1, SLOW_NS, quiet);
        assert_eq!(immediate_rounds_of(&mut batching), IMMEDIATE_ROUNDS);
    }

    /// Every third round is slow: the answers of all but the first are sent at once.
    #[test]
    fn a_server_that_is_slow_now_and_then_has_one_late_answer() {
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
        // Three that take a while, one after the other, are.
        (0..3).for_each(|_| batching.round(2, 900_000, quiet));
        assert!(batching.sends_immediately());
    }
}
