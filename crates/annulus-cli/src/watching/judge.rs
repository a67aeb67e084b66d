//! Alerts of benchmarks: the rules of a running process, applied to the numbers of the harness.
//!
//! A run is divided into intervals of a second, or of the rule's `for` if that is shorter. A shorter run is a single
//! interval.

use std::process::ExitCode;
use std::time::Duration;

use annulus::metrics::{Histogram, OperationCounts, Snapshot, Source};
use annulus_observe::alert::{Alerts, Change, Event, Rule};

use crate::fault::Fault;

/// The length of an interval, unless a rule requires a shorter one.
const INTERVAL: Duration = Duration::from_secs(1);
/// The exit code if an alert was raised.
const RAISED: u8 = 3;

/// The measurements of a command.
pub(crate) struct Measured<'a> {
    /// The command, for messages.
    pub(crate) command: &'a str,
    /// The operations, which are counted together.
    pub(crate) operations: &'a [&'static str],
    pub(crate) runtime: Duration,
}

/// An interval of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interval {
    pub(crate) length_ns: u64,
    /// The completed operations, including errors.
    pub(crate) completed: u64,
    pub(crate) errors: u64,
    pub(crate) latency: Histogram,
}

/// Checks the runs of a command against rules.
pub(crate) struct Judge {
    rules: Vec<Rule>,
    operation: &'static str,
}

/// The result of all runs.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    rules: usize,
    runs: usize,
    /// The number of runs that raised an alert.
    raised: usize,
    /// `true` if a run that affects the exit code raised an alert.
    counts: bool,
}

impl Judge {
    /// Creates a judge. Fails if a rule can never apply to the measurements.
    pub(crate) fn new(rules: &[Rule], measured: &Measured<'_>) -> Result<Judge, Fault> {
        for rule in rules {
            if let Some(why) = inapplicable(rule, measured) {
                return Err(usage!("--alert '{rule}': {why}"));
            }
        }
        Ok(Judge {
            rules: rules.to_vec(),
            operation: measured.operations.first().copied().unwrap_or("nop"),
        })
    }

    /// Checks a run, and prints the alerts that it raised. `counts`: the run affects the exit code.
    pub(crate) fn check(
        &self,
        verdict: &mut Verdict,
        run: &str,
        counts: bool,
        depth: usize,
        slices: &[Interval],
    ) {
        verdict.rules = self.rules.len();
        if self.rules.is_empty() || slices.is_empty() {
            return;
        }
        verdict.runs += 1;
        let mut any = false;
        for rule in &self.rules {
            let raised = self.raised(rule, depth, slices);
            let Some(first) = raised.first() else {
                continue;
            };
            any = true;
            let more = match raised.len() {
                1 => String::new(),
                times => format!(", and {} more times", times - 1),
            };
            let note = if counts {
                ""
            } else {
                " (not Annulus, so the exit code is unaffected)"
            };
            let (value, at) = (first.value_text(), first.at_ns as f64 / 1e9);
            note!(
                "annulus: alert raised: {rule}: {value}; {run}, {at:.2} s after its start{more}{note}"
            );
        }
        verdict.raised += usize::from(any);
        verdict.counts |= any && counts;
    }

    /// Returns each event that raised the alert of a rule.
    fn raised(&self, rule: &Rule, depth: usize, slices: &[Interval]) -> Vec<Event> {
        let lasting = Some(rule.lasting()).filter(|lasting| !lasting.is_zero());
        let target = lasting.unwrap_or(INTERVAL).min(INTERVAL);
        let mut alerts = Alerts::new([rule.clone()]);
        let mut now = Snapshot::default();
        let mut source = Source::default();
        let mut operation = OperationCounts::default();
        operation.name = self.operation;
        source.operations.push(operation);
        source.counters.in_flight = depth as u64;
        now.sources.push(source);
        alerts.look(&now);
        let mut events = Vec::new();
        for interval in joined(slices, target.as_nanos() as u64) {
            now.at_ns += interval.length_ns;
            let operation = &mut now.sources[0].operations[0];
            operation.completed += interval.completed;
            operation.failed += interval.errors;
            operation.latency.add(&interval.latency);
            events.extend(alerts.look(&now));
        }
        events.retain(|event| event.change == Change::Raised);
        events
    }
}

/// Returns the reason why a rule can never apply.
fn inapplicable(rule: &Rule, measured: &Measured<'_>) -> Option<String> {
    let Measured {
        command,
        operations,
        ..
    } = measured;
    let concerned = operations.iter().filter(|name| rule.concerns(name)).count();
    let names = operations.join(" and ");
    if concerned == 0 {
        return Some(format!(
            "{command} only measures {names} here; write a rule for it"
        ));
    }
    if concerned < operations.len() {
        return Some(format!(
            "{names} are measured together here; omit the operation"
        ));
    }
    if rule.is_about_a_part() {
        return Some(format!(
            "{command} only measures from submission to completion; omit `queue.` or `device.`"
        ));
    }
    if rule.lasting() > measured.runtime {
        return Some(format!(
            "a run of {} s is too short for it; increase --runtime",
            measured.runtime.as_secs_f64()
        ));
    }
    None
}

/// Joins slices to intervals of at least `target_ns`. A shorter rest belongs to the last interval.
fn joined(slices: &[Interval], target_ns: u64) -> Vec<Interval> {
    let mut joined: Vec<Interval> = Vec::new();
    let mut left: u64 = slices.iter().map(|slice| slice.length_ns).sum();
    let mut is_full = true;
    for slice in slices {
        // The rest must suffice for another interval.
        if is_full && (joined.is_empty() || left >= target_ns) {
            joined.push(Interval::default());
        }
        let Some(last) = joined.last_mut() else {
            continue;
        };
        last.length_ns += slice.length_ns;
        last.completed += slice.completed;
        last.errors += slice.errors;
        last.latency.add(&slice.latency);
        left -= slice.length_ns;
        is_full = last.length_ns >= target_ns;
    }
    joined
}

impl Verdict {
    /// Prints a line if no alert was raised, to show that the rules were checked.
    pub(crate) fn report(&self) {
        if self.rules > 0 && self.raised == 0 {
            let (rules, runs) = (self.rules, self.runs);
            note!("annulus: alerts: {rules} checked over {runs} runs, none raised");
        }
    }

    /// Returns the exit code of a command whose own exit code is `otherwise`.
    pub(crate) fn exit_code(&self, otherwise: ExitCode) -> ExitCode {
        match self.counts && otherwise == ExitCode::SUCCESS {
            true => ExitCode::from(RAISED),
            false => otherwise,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Slices of 100 ms with ten operations each, with these latencies.
    fn slices(latencies_us: &[u64]) -> Vec<Interval> {
        let slice = |us: &u64| {
            let mut latency = Histogram::new();
            latency.record_many(us * 1_000, 10);
            Interval {
                length_ns: 100 * MS,
                completed: 10,
                errors: u64::from(*us > 900),
                latency,
            }
        };
        latencies_us.iter().map(slice).collect()
    }

    fn judge(rules: &[&str], runtime_s: u64) -> Result<Judge, String> {
        let rules: Vec<Rule> = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        let measured = Measured {
            command: "bench file",
            operations: &["read_at"],
            runtime: Duration::from_secs(runtime_s),
        };
        Judge::new(&rules, &measured).map_err(|fault| fault.to_string())
    }

    fn times_raised(rule: &str, latencies_us: &[u64]) -> usize {
        let judge = judge(&[rule], 100).unwrap();
        judge
            .raised(&judge.rules[0], 8, &slices(latencies_us))
            .len()
    }

    #[test]
    fn a_run_is_checked_in_seconds_or_in_the_intervals_of_the_rule() {
        let mut latencies = [100; 30];
        latencies[12] = 1_000;
        assert_eq!(times_raised("read.max > 500us", &latencies), 1);
        assert_eq!(times_raised("read.p50 > 500us", &latencies), 0);
        assert_eq!(times_raised("p50 > 500us for 100ms", &latencies), 1);
        assert_eq!(times_raised("p50 > 500us for 200ms", &latencies), 0);
        assert_eq!(times_raised("errors > 0.9%", &latencies), 1);
        assert_eq!(times_raised("errors > 1.1%", &latencies), 0);
        assert_eq!(times_raised("rate < 99/s", &latencies), 0);
        assert_eq!(times_raised("rate <= 100/s for 3s", &latencies), 1);
        assert_eq!(times_raised("in_flight >= 8", &latencies), 1);
        assert_eq!(times_raised("in_flight > 8", &latencies), 0);
        let (slow, fast) = ([1_000; 10], [100; 10]);
        let flaps = [slow, fast, slow, fast].concat();
        assert_eq!(times_raised("p99 > 500us", &flaps), 2);
    }

    #[test]
    fn the_rest_of_a_run_belongs_to_the_last_interval() {
        let lengths = |count: usize, target_ms: u64| -> Vec<u64> {
            let joined = joined(&slices(&vec![1; count]), target_ms * MS);
            joined.iter().map(|one| one.length_ns / MS).collect()
        };
        assert_eq!(lengths(25, 1_000), [1_000, 1_500]);
        assert_eq!(lengths(20, 1_000), [1_000, 1_000]);
        assert_eq!(lengths(3, 1_000), [300]);
        assert_eq!(lengths(0, 1_000), [0; 0]);
        assert_eq!(lengths(5, 150), [200, 300]);
    }

    #[test]
    fn rules_that_can_never_apply_are_refused() {
        let refusal = |rule: &str| judge(&[rule], 1).map(drop).unwrap_err();
        assert!(refusal("write.p99 > 1ms").contains("only measures read_at here"));
        assert!(refusal("queue.p99 > 1ms").contains("omit `queue.` or `device.`"));
        assert!(refusal("p99 > 1ms for 2s").contains("a run of 1 s is too short for it"));
        assert!(judge(&["read.p99 > 1ms for 1s", "in_flight > 3"], 1).is_ok());
    }

    #[test]
    fn only_alerts_of_annulus_change_the_exit_code_and_failures_take_precedence() {
        let judge = judge(&["p99 > 500us"], 1).unwrap();
        let mut verdict = Verdict::default();
        judge.check(&mut verdict, "pread", false, 8, &slices(&[900]));
        assert_eq!(verdict.exit_code(ExitCode::SUCCESS), ExitCode::SUCCESS);
        judge.check(&mut verdict, "annulus", true, 8, &slices(&[900]));
        assert_eq!(verdict.exit_code(ExitCode::SUCCESS), ExitCode::from(3));
        assert_eq!(verdict.exit_code(ExitCode::from(1)), ExitCode::from(1));
        assert_eq!((verdict.runs, verdict.raised), (2, 2));
    }
}
