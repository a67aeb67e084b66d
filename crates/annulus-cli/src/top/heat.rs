//! Latencies over time, with a character for each interval.

use std::collections::{BTreeMap, VecDeque};

use super::report::Report;

/// The block of a latency: each block covers four times the latency of the previous one, from up to 4 µs to more than
/// 16 ms. The scale is fixed, so that rows and runs are comparable.
const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const LOWEST_NS: u64 = 4_000;
const STEP: u64 = 4;
/// The character of an interval without records.
const NOTHING: char = '·';
/// The number of stored intervals, which exceeds the width of a terminal.
const CAPACITY: usize = 400;

/// The p99 of each operation in each interval.
#[derive(Default)]
pub(super) struct History {
    intervals: usize,
    p99_ns: BTreeMap<String, VecDeque<Option<u64>>>,
}

impl History {
    pub(super) fn add(&mut self, report: &Report) {
        let operations = &report.total.operations;
        for operation in operations {
            // A new operation has no records for earlier intervals.
            let before = || std::iter::repeat_n(None, self.intervals).collect();
            self.p99_ns
                .entry(operation.name.clone())
                .or_insert_with(before);
        }
        for (name, values) in &mut self.p99_ns {
            let measured = operations.iter().find(|operation| operation.name == *name);
            let latency = measured.and_then(|operation| operation.latency);
            values.push_back(latency.map(|latency| latency.p99_ns));
            if values.len() > CAPACITY {
                values.pop_front();
            }
        }
        self.intervals = (self.intervals + 1).min(CAPACITY);
    }

    /// Returns a character for each interval, the latest one last.
    pub(super) fn strip(&self, operation: &str) -> String {
        let values = self.p99_ns.get(operation).into_iter().flatten();
        values.map(|value| value.map_or(NOTHING, block)).collect()
    }
}

fn block(ns: u64) -> char {
    let mut limit = LOWEST_NS;
    for block in &BLOCKS[..BLOCKS.len() - 1] {
        if ns <= limit {
            return *block;
        }
        limit *= STEP;
    }
    BLOCKS[BLOCKS.len() - 1]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::snapshots_for_tests;

    #[test]
    fn each_block_covers_four_times_the_latency_of_the_previous_one() {
        let cases = [
            (0, '▁'),
            (4_000, '▁'),
            (4_001, '▂'),
            (16_000, '▂'),
            (1_024_000, '▅'),
            (16_384_000, '▇'),
            (16_384_001, '█'),
            (u64::MAX, '█'),
        ];
        for (ns, shown) in cases {
            assert_eq!(block(ns), shown, "{ns}");
        }
    }

    #[test]
    fn intervals_without_records_are_shown_and_the_latest_is_last() {
        let mut history = History::default();
        let busy = snapshots_for_tests::report();
        let mut idle = busy.clone();
        idle.total.operations.truncate(1);
        idle.total.operations[0].latency = None;
        history.add(&idle);
        history.add(&busy);
        let (first, second) = (&busy.total.operations[0], &busy.total.operations[1]);
        assert_eq!(history.strip(&first.name).chars().count(), 2);
        assert!(history.strip(&first.name).starts_with(NOTHING));
        assert!(!history.strip(&first.name).ends_with(NOTHING));
        assert!(history.strip(&second.name).starts_with(NOTHING));
        for _ in 0..CAPACITY + 10 {
            history.add(&idle);
        }
        let strip = history.strip(&first.name);
        assert_eq!(strip, NOTHING.to_string().repeat(CAPACITY));
        assert_eq!(history.strip(&second.name), strip);
        assert_eq!(history.strip("unknown"), "");
    }
}
