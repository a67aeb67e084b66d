//! The parts of a rule: operations, measure, comparison, threshold and duration.

use std::fmt;
use std::time::Duration;

use annulus::metrics::layout::OPERATION_NAMES as NAMES;

/// The operation of `annulus bench net`. No process counts it.
const REQUEST: &[&str] = &["request"];

/// Returns the operations in docs/reference/kernels.md, and `request`.
pub(super) fn operations() -> impl Iterator<Item = &'static str> {
    NAMES.iter().chain(REQUEST).copied()
}

/// Families of operations. An empty list stands for all operations.
pub(super) const FAMILIES: [(&str, &[&str]); 6] = [
    ("all", &[]),
    ("read", &["read_at", "read_vectored_at"]),
    ("write", &["write_at", "write_vectored_at"]),
    ("sync", &["fsync"]),
    (
        "send",
        &["send", "send_message", "send_vectored", "send_zero_copy"],
    ),
    ("recv", &["recv", "recv_message"]),
];

/// The operations that a rule covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct OperationSet {
    pub(super) name: &'static str,
    members: &'static [&'static str],
}

impl OperationSet {
    /// All operations; a rule without a prefix covers them.
    pub(super) const ALL: OperationSet = OperationSet {
        name: "all",
        members: &[],
    };

    /// Returns a family or an operation by its name.
    pub(super) fn named(name: &str) -> Option<OperationSet> {
        if let Some(&(name, members)) = FAMILIES.iter().find(|(family, _)| *family == name) {
            return Some(OperationSet { name, members });
        }
        let known = operations().find(|operation| *operation == name)?;
        let at = NAMES.iter().position(|operation| *operation == name);
        Some(OperationSet {
            name: known,
            members: at.map_or(REQUEST, |at| &NAMES[at..=at]),
        })
    }

    fn has(&self, operation: &str) -> bool {
        self.members.is_empty() || self.members.contains(&operation)
    }
}

/// A part of the latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Part {
    /// From submission to completion.
    Whole,
    /// Until the kernel or a blocking thread has received the operation.
    Queue,
    /// In the kernel and the device.
    Device,
}

impl Part {
    pub(super) const NAMED: [(&str, Part); 2] = [("queue", Part::Queue), ("device", Part::Device)];
}

/// The measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Measure {
    P50,
    P90,
    P99,
    P999,
    P9999,
    Mean,
    Max,
    /// The share of completions that are errors.
    Errors,
    /// Errors per second.
    ErrorRate,
    /// Completions per second.
    Rate,
    InFlight,
}

impl Measure {
    pub(super) const NAMED: [(&str, Measure); 11] = [
        ("p50", Measure::P50),
        ("p90", Measure::P90),
        ("p99", Measure::P99),
        ("p99.9", Measure::P999),
        ("p99.99", Measure::P9999),
        ("mean", Measure::Mean),
        ("max", Measure::Max),
        ("errors", Measure::Errors),
        ("error_rate", Measure::ErrorRate),
        ("rate", Measure::Rate),
        ("in_flight", Measure::InFlight),
    ];

    pub(super) fn name(self) -> &'static str {
        let entry = Measure::NAMED.iter().find(|(_, measure)| *measure == self);
        entry.map_or("", |(name, _)| name)
    }

    pub(super) fn unit(self) -> Unit {
        match self {
            Measure::Errors => Unit::Percent,
            Measure::ErrorRate | Measure::Rate => Unit::PerSecond,
            Measure::InFlight => Unit::Count,
            _ => Unit::Time,
        }
    }
}

/// The unit of a threshold and of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Stored in ns.
    Time,
    Percent,
    PerSecond,
    Count,
}

impl Unit {
    /// Formats a threshold exactly, as it can be typed.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a threshold of time was parsed from whole nanoseconds; floats saturate"
    )]
    fn exact(self, value: f64) -> String {
        match self {
            Unit::Time => exact_time(value as u64),
            Unit::Percent => format!("{value}%"),
            Unit::PerSecond => format!("{value}/s"),
            Unit::Count => format!("{value}"),
        }
    }

    /// Formats a measured value, rounded to three digits or to the whole number.
    pub(super) fn rounded(self, value: f64) -> String {
        let digits = |value: f64| match value {
            _ if value >= 100.0 => format!("{value:.0}"),
            _ if value >= 10.0 => format!("{value:.1}"),
            _ => format!("{value:.2}"),
        };
        match self {
            Unit::Time if value < 1e3 => format!("{value:.0}ns"),
            Unit::Time if value < 1e6 => format!("{}us", digits(value / 1e3)),
            Unit::Time if value < 1e9 => format!("{}ms", digits(value / 1e6)),
            Unit::Time => format!("{}s", digits(value / 1e9)),
            Unit::Percent if value > 0.0 && value < 0.01 => format!("{value}%"),
            Unit::Percent => format!("{}%", digits(value)),
            Unit::PerSecond => format!("{}/s", digits(value)),
            Unit::Count => format!("{value}"),
        }
    }
}

/// Formats a time exactly, in the largest unit of which it has at least one: `1.5ms`.
fn exact_time(ns: u64) -> String {
    let (per_unit, digits, unit) = match ns {
        0..1_000 => (1, 0, "ns"),
        1_000..1_000_000 => (1_000, 3, "us"),
        1_000_000..1_000_000_000 => (1_000_000, 6, "ms"),
        _ => (1_000_000_000, 9, "s"),
    };
    let (whole, rest) = (ns / per_unit, ns % per_unit);
    match rest {
        0 => format!("{whole}{unit}"),
        _ => {
            let rest = format!("{rest:0digits$}");
            format!("{whole}.{}{unit}", rest.trim_end_matches('0'))
        }
    }
}

/// The comparison of a value with the threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Comparison {
    Above,
    AtLeast,
    Below,
    AtMost,
}

impl Comparison {
    /// Longer names come first, because the parser takes the first match.
    pub(super) const NAMED: [(&str, Comparison); 4] = [
        (">=", Comparison::AtLeast),
        ("<=", Comparison::AtMost),
        (">", Comparison::Above),
        ("<", Comparison::Below),
    ];

    fn name(self) -> &'static str {
        let entry = (Comparison::NAMED.iter()).find(|(_, comparison)| *comparison == self);
        entry.map_or("", |(name, _)| name)
    }
}

/// A threshold on a metric. See the [module](super) for the syntax.
///
/// ```
/// use annulus_observe::alert::Rule;
///
/// let rule: Rule = "read.p99>500us for 5s".parse()?;
/// assert_eq!(rule.to_string(), "read.p99 > 500us for 5s");
/// # Ok::<(), annulus_observe::alert::RuleError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    pub(super) operations: OperationSet,
    pub(super) part: Part,
    pub(super) measure: Measure,
    pub(super) comparison: Comparison,
    /// In the unit of the measure; a time in ns.
    pub(super) threshold: f64,
    pub(super) lasting: Duration,
}

impl Rule {
    /// Returns whether the rule covers this operation, one of docs/reference/kernels.md.
    pub fn concerns(&self, operation: &str) -> bool {
        self.operations.has(operation)
    }

    /// Returns whether the rule is about a part of the latency (`queue.` or `device.`). Only the engine can measure
    /// parts.
    pub fn is_about_a_part(&self) -> bool {
        self.part != Part::Whole
    }

    /// Returns the time that the condition must hold before the alert is raised, and must fail before it is cleared.
    pub fn lasting(&self) -> Duration {
        self.lasting
    }

    pub(super) fn holds(&self, value: f64) -> bool {
        match self.comparison {
            Comparison::Above => value > self.threshold,
            Comparison::AtLeast => value >= self.threshold,
            Comparison::Below => value < self.threshold,
            Comparison::AtMost => value <= self.threshold,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.operations != OperationSet::ALL {
            write!(f, "{}.", self.operations.name)?;
        }
        if let Some((name, _)) = Part::NAMED.iter().find(|(_, part)| *part == self.part) {
            write!(f, "{name}.")?;
        }
        let threshold = self.measure.unit().exact(self.threshold);
        let (measure, comparison) = (self.measure.name(), self.comparison.name());
        write!(f, "{measure} {comparison} {threshold}")?;
        if !self.lasting.is_zero() {
            let lasting = exact_time(to_ns(self.lasting));
            write!(f, " for {lasting}")?;
        }
        Ok(())
    }
}

/// Converts to whole nanoseconds. Saturates after 584 years.
fn to_ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
