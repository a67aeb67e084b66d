//! The counts of the preload library, which it writes to its log at the end of each process.

use std::collections::BTreeMap;

use serde_json::Value;

/// The sums over all processes of a run.
#[derive(Debug, Default)]
pub struct Counts {
    /// Processes that wrote a line of counts.
    pub processes: usize,
    /// The sums by kind and name: `served:read`, `passed:blocking`, `back:duplicated`, `failed:kernel`; and `enters`.
    sums: BTreeMap<String, u64>,
}

/// The names of the kinds in the log, and in the cases.
const KINDS: [(&str, &str); 4] = [
    ("served", "served"),
    ("passed", "passed"),
    ("failed", "failed"),
    ("handed_back", "back"),
];

impl Counts {
    /// Reads the counts from the text of a log.
    pub fn of_log(log: &str) -> Counts {
        let mut counts = Counts::default();
        let lines = log.lines().filter_map(|line| {
            let remaining = line.strip_prefix("annulus")?;
            Some((line, &remaining[remaining.find(": {")? + 2..]))
        });
        for (line, text) in lines {
            let value: Value = serde_json::from_str(text)
                .unwrap_or_else(|error| panic!("a line of counts is not JSON: {error}\n{line}"));
            counts.processes += 1;
            let enters = value.get("enters").and_then(Value::as_u64);
            *counts.sums.entry("enters".to_owned()).or_default() += enters.unwrap_or_default();
            for (kind, short) in KINDS {
                let by_name = value.get(kind).and_then(Value::as_object);
                for (name, count) in by_name.into_iter().flatten() {
                    *counts.sums.entry(format!("{short}:{name}")).or_default() +=
                        count.as_u64().unwrap_or_default();
                }
            }
        }
        counts
    }

    /// Returns one count, by its kind and name; 0 if it is absent.
    pub fn of(&self, what: &str) -> u64 {
        self.sums.get(what).copied().unwrap_or_default()
    }

    /// Returns the sum over all names of a kind.
    pub fn all(&self, kind: &str) -> u64 {
        let of_kind = self.sums.iter().filter(|(name, _)| {
            name.strip_prefix(kind)
                .is_some_and(|remaining| remaining.starts_with(':'))
        });
        of_kind.map(|(_, count)| count).sum()
    }

    /// Returns the expected counts that are 0, and those that exceed their bound (`enters<=40`).
    pub fn missing(&self, expected: &[String]) -> Vec<String> {
        let holds = |what: &String| match what.split_once("<=") {
            Some((what, most)) => self.of(what) <= most.parse().unwrap(),
            None => self.of(what) > 0,
        };
        expected
            .iter()
            .filter(|what| !holds(what))
            .cloned()
            .collect()
    }
}
