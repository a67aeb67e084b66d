//! Due times of requests at a fixed rate, which do not depend on the server.

/// The due times of one thread, in nanoseconds since the start of the run.
pub(super) struct Schedule {
    start_ns: f64,
    interval_ns: f64,
    next: u64,
}

impl Schedule {
    /// Creates the schedule of thread `thread` for `rate` requests per second over `threads` threads.
    pub(super) fn new(start_ns: u64, rate: f64, thread: usize, threads: usize) -> Schedule {
        let apart = 1e9 / rate;
        Schedule {
            start_ns: start_ns as f64 + apart * thread as f64,
            interval_ns: apart * threads as f64,
            next: 0,
        }
    }

    /// Returns the due time of the next request.
    pub(super) fn next_ns(&self) -> u64 {
        (self.start_ns + self.interval_ns * self.next as f64) as u64
    }

    pub(super) fn advance(&mut self) {
        self.next += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_take_turns_and_nothing_drifts() {
        let mut all: Vec<u64> = Vec::new();
        for thread in 0..3 {
            let mut schedule = Schedule::new(1000, 3e6, thread, 3);
            for _ in 0..1_000_000 {
                all.push(schedule.next_ns());
                schedule.advance();
            }
        }
        all.sort_unstable();
        assert_eq!((all[0], all[1], all[2]), (1000, 1333, 1666));
        let last = all[all.len() - 1];
        assert!((1_000_000_500..=1_000_000_700).contains(&last), "{last}");
    }
}
