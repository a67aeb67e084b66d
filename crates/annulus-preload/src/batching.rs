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
const HURRY_ROUNDS: u32 = 256;
const HURRY_ROUNDS_MAX: u32 = 1 << 16;
/// So often the kernel is asked how often another thread has had the processor instead, rounds.
const ASKS_EVERY: u32 = 32;

#[derive(Debug)]
pub(crate) struct Pace {
    /// Rounds in which nothing is held back.
    hurry: u32,
    /// How many they are next time.
    next: u32,
    /// Late rounds, less those that were not.
    late: u32,
    /// Rounds since it was asked, and the answer.
    asked: u32,
    preempted: i64,
}

impl Pace {
    /// Of a set whose rounds nobody has seen; `holds`: it holds back from the first on.
    pub(crate) const fn new(holds: bool) -> Pace {
        Pace {
            hurry: if holds { 0 } else { FIRST_ROUNDS },
            next: HURRY_ROUNDS,
            late: 0,
            asked: 0,
            preempted: 0,
        }
    }

    /// Whether what is written is to be sent at once.
    #[inline]
    pub(crate) fn hurries(&self) -> bool {
        self.hurry > 0
    }

    /// Nothing is held back for a while, however long rounds are.
    pub(crate) fn hurry(&mut self) {
        self.hurry = self.hurry.max(HURRY_ROUNDS);
    }

    /// A round with so many writes has lasted for so long. `preempted`: how often the thread has lost the processor.
    pub(crate) fn round(&mut self, writes: u32, took_ns: u64, preempted: impl Fn() -> i64) {
        self.asked += 1;
        let ask = |pace: &mut Pace| {
            pace.asked = 0;
            std::mem::replace(&mut pace.preempted, preempted()) != pace.preempted
        };
        let late = took_ns > LATE_NS && took_ns / u64::from(writes.max(1)) > LATE_WRITE_NS;
        if !late {
            self.late = self.late.saturating_sub(1);
            if self.asked == ASKS_EVERY {
                ask(self);
            }
            if self.hurry > 0 {
                self.hurry -= 1;
            } else {
                self.next = (self.next - 1).max(HURRY_ROUNDS);
            }
            return;
        }
        self.late += 1;
        if self.late >= LATE_ROUNDS_MAX || (took_ns > VERY_LATE_NS && !ask(self)) {
            self.late = 0;
            self.hurry = self.hurry.max(self.next);
            self.next = (2 * self.next).min(HURRY_ROUNDS_MAX);
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
        let (mut pace, lost) = (Pace::new(true), std::cell::Cell::new(0));
        let losing = || {
            lost.set(lost.get() + 1);
            lost.get()
        };
        for _ in 0..100 {
            pace.round(1, SLOW_NS, losing);
            pace.round(1, SHORT_NS, losing);
        }
        assert!(!pace.hurries());
        (0..3).for_each(|_| pace.round(1, SLOW_NS, losing));
        assert!(pace.hurries());
    }

    /// Rounds until it holds back, of one write and so long.
    fn rounds_in_a_hurry(pace: &mut Pace) -> u32 {
        let mut rounds = 0;
        while pace.hurries() {
            pace.round(1, SHORT_NS, quiet);
            rounds += 1;
        }
        rounds
    }

    #[test]
    fn nothing_is_held_back_before_rounds_have_been_seen() {
        assert_eq!(rounds_in_a_hurry(&mut Pace::new(false)), FIRST_ROUNDS);
        assert!(!Pace::new(true).hurries());
    }

    #[test]
    fn nothing_is_held_back_after_a_slow_round_and_for_longer_each_time() {
        let mut pace = Pace::new(true);
        let mut last = 0;
        for _ in 0..12 {
            pace.round(1, SLOW_NS, quiet);
            let rounds = rounds_in_a_hurry(&mut pace);
            assert!(
                rounds > last || rounds == HURRY_ROUNDS_MAX,
                "{rounds} {last}"
            );
            last = rounds;
        }
        assert_eq!(last, HURRY_ROUNDS_MAX);
        // A server that is quick for long is trusted as at first.
        (0..2 * HURRY_ROUNDS_MAX).for_each(|_| pace.round(1, SHORT_NS, quiet));
        pace.round(1, SLOW_NS, quiet);
        assert_eq!(rounds_in_a_hurry(&mut pace), HURRY_ROUNDS);
    }

    /// Every third round is slow: the answers of all but the first are sent at once.
    #[test]
    fn a_server_that_is_slow_now_and_then_has_one_late_answer() {
        let mut pace = Pace::new(false);
        let mut held_back = 0;
        rounds_in_a_hurry(&mut pace);
        for round in 0..10_000 {
            let slow = round % 3 == 0;
            held_back += u32::from(slow && !pace.hurries());
            pace.round(1, if slow { SLOW_NS } else { SHORT_NS }, quiet);
        }
        assert_eq!(held_back, 1);
    }

    #[test]
    fn many_requests_in_a_round_are_not_slow() {
        let mut pace = Pace::new(true);
        (0..100).for_each(|_| pace.round(300, 4_000_000, quiet));
        assert!(!pace.hurries());
        // Three that take a while, one after the other, are.
        (0..3).for_each(|_| pace.round(2, 900_000, quiet));
        assert!(pace.hurries());
    }
}
