//! Latencies over time, a character for each interval.

use std::collections::{BTreeMap, VecDeque};

use super::report::Report;

/// Each is four times as long as the one before it: the lowest up to 4 µs, the highest from 16 ms on. Fixed, so
/// that rows, and today and yesterday, compare.
const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const LOWEST_NS: u64 = 4_000;
const STEP: u64 = 4;
/// An interval in which nothing was recorded.
const NOTHING: char = '·';
/// Intervals that are kept: more than a terminal is wide.
const KEPT: usize = 400;

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
            // One that appears later has measured nothing before.
            let before = || std::iter::repeat_n(None, self.intervals).collect();
            self.p99_ns
                .entry(operation.name.clone())
                .or_insert_with(before);
        }
        for (name, values) in &mut self.p99_ns {
            let measured = operations.iter().find(|operation| operation.name == *name);
            let latency = measured.and_then(|operation| operation.latency);
            values.push_back(latency.map(|latency| latency.p99_ns));
            if values.len() > KEPT {
                values.pop_front();
            }
        }
        self.intervals = (self.intervals + 1).min(KEPT);
    }

    /// The latest at the end.
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
    use crate::top::corrupted;

    #[test]
    fn a_block_higher_is_four_times_as_long() {
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
    fn intervals_without_a_result_are_seen_and_the_latest_is_last() {
        let mut history = History::default();
        let busy = corrupted::report();
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
        for _ in 0..KEPT + 10 {
            history.add(&idle);
        }
        let kept = history.strip(&first.name);
        assert_eq!(kept, NOTHING.to_string().repeat(KEPT));
        assert_eq!(history.strip(&second.name), kept);
        assert_eq!(history.strip("never asked for"), "");
    }
}
