//! The runs of a program: as tables of medians and ratios, and as JSON.

use std::io::{Result, Write};
use std::path::Path;

use serde::Serialize;

use crate::{Cost, quartiles};

/// A run that counts.
#[derive(Clone, Debug, Serialize)]
struct Run {
    /// The load, and the state of the page cache.
    load: String,
    /// The number of the round. Ratios are taken between runs of one round.
    round: usize,
    /// The variant: a store, a database, or the drive alone.
    variant: String,
    /// The number of operations of the run.
    operations: u64,
    #[serde(flatten)]
    cost: Cost,
}

/// All runs of a program.
#[derive(Clone, Debug, Default)]
pub struct Report {
    runs: Vec<Run>,
}

impl Report {
    /// Adds a run. Round 0 does not count: it opens files and fills caches.
    pub fn add(&mut self, load: &str, round: usize, variant: &str, operations: u64, cost: Cost) {
        if round > 0 {
            let (load, variant) = (load.to_owned(), variant.to_owned());
            self.runs.push(Run {
                load,
                round,
                variant,
                operations,
                cost,
            });
        }
    }

    fn of<'a>(&'a self, load: &'a str, variant: &'a str) -> impl Iterator<Item = &'a Run> {
        self.runs
            .iter()
            .filter(move |run| run.load == load && run.variant == variant)
    }

    /// Returns the quartiles of a ratio between two variants, taken inside each round.
    pub fn ratio(
        &self,
        load: &str,
        variant: &str,
        base: &str,
        value: fn(&Cost) -> f64,
    ) -> [f64; 3] {
        quartiles(self.of(load, variant).filter_map(|run| {
            let base = self.of(load, base).find(|base| base.round == run.round)?;
            Some(value(&run.cost) / value(&base.cost))
        }))
    }

    /// Returns the sums of some loads, round by round, as the runs of another load.
    pub fn add_sum(&mut self, loads: &[String], sum: &str) {
        let mut sums: Vec<Run> = Vec::new();
        for run in self.runs.iter().filter(|run| loads.contains(&run.load)) {
            let same = |sum: &&mut Run| sum.round == run.round && sum.variant == run.variant;
            match sums.iter_mut().find(same) {
                Some(total) => {
                    total.operations += run.operations;
                    total.cost += run.cost;
                }
                None => sums.push(Run {
                    load: sum.to_owned(),
                    ..run.clone()
                }),
            }
        }
        self.runs.extend(sums);
    }

    /// Returns a table in Markdown: each variant of each load, with ratios to `base`. The column of the drive is the
    /// ratio of the time to that of `drive`, if this variant ran.
    pub fn table(&self, loads: &[String], variants: &[&str], base: &str, drive: &str) -> String {
        let mut table = String::from(
            "| load | variant | s | µs per operation | time | quartiles | CPU µs per operation | CPU time | \
             quartiles | time / drive |\n|---|---|--:|--:|--:|---|--:|--:|---|--:|\n",
        );
        for load in loads {
            for variant in variants {
                let of = |value: fn(&Run) -> f64| quartiles(self.of(load, variant).map(value))[1];
                let seconds = of(|run| run.cost.seconds);
                if seconds.is_nan() {
                    continue;
                }
                let time = self.ratio(load, variant, base, |cost| cost.seconds);
                let cpu = self.ratio(load, variant, base, |cost| cost.cpu_seconds);
                let limit = self.ratio(load, variant, drive, |cost| cost.seconds)[1];
                let ratio = |[low, middle, high]: [f64; 3]| match middle.is_nan() {
                    true => "– | –".to_owned(),
                    false => format!("{middle:.3} | {low:.3}–{high:.3}"),
                };
                let limit = match limit.is_nan() {
                    true => "–".to_owned(),
                    false => format!("{limit:.2}"),
                };
                table += &format!(
                    "| {load} | {variant} | {seconds:.4} | {:.2} | {} | {:.2} | {} | {limit} |\n",
                    of(|run| run.cost.seconds / run.operations as f64 * 1e6),
                    ratio(time),
                    of(|run| run.cost.cpu_seconds / run.operations as f64 * 1e6),
                    ratio(cpu),
                );
            }
        }
        table
    }

    /// Writes the runs as JSON, with a run per line, if there is a path.
    ///
    /// # Errors
    ///
    /// Fails if the file exists or cannot be written.
    pub fn write_json(&self, path: Option<&Path>) -> Result<()> {
        let Some(path) = path else { return Ok(()) };
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
        let processors = std::thread::available_parallelism()?;
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let arguments = serde_json::to_string(&arguments)?;
        let mut file = std::io::BufWriter::new(std::fs::File::create_new(path)?);
        writeln!(
            file,
            "{{\"arguments\": {arguments}, \"kernel\": \"{}\", ",
            kernel.trim()
        )?;
        writeln!(file, "\"processors\": {processors}, \"runs\": [")?;
        for (index, run) in self.runs.iter().enumerate() {
            let comma = if index + 1 == self.runs.len() {
                ""
            } else {
                ","
            };
            writeln!(file, "{}{comma}", serde_json::to_string(run)?)?;
        }
        writeln!(file, "]}}")?;
        file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::{Cost, Report};

    fn cost(seconds: f64) -> Cost {
        Cost {
            seconds,
            cpu_seconds: 2.0 * seconds,
            drive_bytes: 0,
        }
    }

    #[test]
    fn ratios_are_taken_inside_a_round_and_round_0_does_not_count() {
        let mut report = Report::default();
        let rounds = [
            (0, 1.0, 9.0),
            (1, 1.0, 0.5),
            (2, 10.0, 5.0),
            (3, 100.0, 25.0),
        ];
        for (round, base, ours) in rounds {
            report.add("a", round, "base", 2, cost(base));
            report.add("a", round, "ours", 2, cost(ours));
        }
        let ratio = report.ratio("a", "ours", "base", |cost| cost.seconds);
        assert_eq!(ratio, [0.25, 0.5, 0.5]);
    }

    #[test]
    fn a_sum_adds_the_loads_of_each_round() {
        let mut report = Report::default();
        for (load, seconds) in [("a", 1.0), ("b", 2.0), ("other", 9.0)] {
            report.add(load, 1, "ours", 2, cost(seconds));
        }
        report.add_sum(&["a".to_owned(), "b".to_owned()], "sum");
        let sum: Vec<_> = report.of("sum", "ours").collect();
        assert_eq!(sum.len(), 1);
        assert_eq!((sum[0].cost.seconds, sum[0].operations), (3.0, 4));
    }
}
