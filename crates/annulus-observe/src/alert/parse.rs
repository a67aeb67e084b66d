//! The parser for rules, and the messages for mistakes.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::rule::{Comparison, FAMILIES, Measure, OperationSet, Part, Rule, Unit, operations};

/// Longer latencies are counted as this long, so a larger threshold would never be crossed.
const LATENCY_NS_MAX: u64 = 1 << 37;
const DAY_NS: u64 = 86_400 * 1_000_000_000;
/// A number with more digits is a mistake.
const DIGITS_MAX: usize = 15;
/// The least similarity of a name that is suggested for a misspelt one.
const ALIKE: f64 = 0.75;

/// Units of time, in ns. The last two are not allowed in a threshold.
const TIMES: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];
const THRESHOLD_TIMES: usize = 6;

/// A mistake in the text of a rule: what is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    message: String,
    rule: String,
    /// An offset in `rule`, in bytes.
    at: usize,
    length: usize,
}

impl RuleError {
    /// Returns the position of the first wrong character, counted from 0.
    pub fn column(&self) -> usize {
        self.rule[..self.at].chars().count()
    }
}

/// Writes the mistake, and below it the rule with the position marked.
impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Control characters would break the alignment of the marks.
        let rule: String = (self.rule.chars())
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        let marked = &self.rule[self.at..self.at + self.length];
        let marks = "^".repeat(marked.chars().count().max(1));
        let (message, column) = (&self.message, self.column());
        write!(f, "{message}\n  {rule}\n  {:column$}{marks}", "")
    }
}

impl std::error::Error for RuleError {}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Rule, RuleError> {
        Reader { text, at: 0 }.rule()
    }
}

/// A part of the text.
#[derive(Clone, Copy)]
struct Word<'a> {
    at: usize,
    text: &'a str,
}

impl<'a> Word<'a> {
    /// Returns the rest of the word after its first `bytes`.
    fn after(self, bytes: usize) -> Word<'a> {
        Word {
            at: self.at + bytes,
            text: &self.text[bytes..],
        }
    }

    fn up_to(self, bytes: usize) -> Word<'a> {
        Word {
            text: &self.text[..bytes],
            ..self
        }
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn rule(mut self) -> Result<Rule, RuleError> {
        let subject = self.word(|c| !c.is_whitespace() && !"<>=!".contains(c));
        if subject.text.is_empty() {
            let message = "a rule needs a measure, a comparison and a threshold, for example `read.p99 > 500us for 5s`";
            return Err(self.wrong(subject, message));
        }
        let (operations, part, measure) = self.subject(subject)?;
        let comparison = self.comparison(measure)?;
        let threshold = self.threshold(measure)?;
        let lasting = self.lasting()?;
        let rest = self.word(|_| true);
        if !rest.text.trim_end().is_empty() {
            let rest = rest.up_to(rest.text.trim_end().len());
            let message = match lasting.is_zero() {
                true => {
                    "unexpected text after the threshold; only `for` and a time may follow, for example `for 5s`"
                }
                false => "unexpected text after the rule; give each rule separately",
            };
            return Err(self.wrong(rest, message));
        }
        Ok(Rule {
            operations,
            part,
            measure,
            comparison,
            threshold,
            lasting,
        })
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Skips white space and takes the characters for which `belongs` returns true.
    fn word(&mut self, belongs: impl Fn(char) -> bool) -> Word<'a> {
        self.at += self.rest().len() - self.rest().trim_start().len();
        let rest = self.rest();
        let length = rest.find(|c| !belongs(c)).unwrap_or(rest.len());
        let word = Word {
            at: self.at,
            text: &rest[..length],
        };
        self.at += length;
        word
    }

    /// Returns the next word without taking it, for a message to point at.
    fn ahead(&self) -> Word<'a> {
        let mut ahead = Reader { ..*self };
        ahead.word(|c| !c.is_whitespace())
    }

    fn wrong(&self, at: Word<'_>, message: impl Into<String>) -> RuleError {
        RuleError {
            message: message.into(),
            rule: self.text.to_owned(),
            at: at.at,
            length: at.text.len(),
        }
    }

    /// `[OP.][queue.|device.]MEASURE`.
    fn subject(&self, subject: Word<'a>) -> Result<(OperationSet, Part, Measure), RuleError> {
        let (operations, below) = match subject.text.split_once('.') {
            Some((name, _)) if OperationSet::named(name).is_some() => {
                (OperationSet::named(name), subject.after(name.len() + 1))
            }
            _ => (None, subject),
        };
        let of_part = |(name, _): &&(&str, Part)| {
            let rest = below.text.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with('.'))
        };
        let (part, below) = match Part::NAMED.iter().find(of_part) {
            Some(&(name, part)) => (part, below.after(name.len() + 1)),
            None => (Part::Whole, below),
        };
        let named = |text: &str| Measure::NAMED.iter().find(|(name, _)| *name == text);
        let Some(&(_, measure)) = named(below.text) else {
            return Err(self.unknown(below, operations.is_none() && part == Part::Whole));
        };
        let prefix = Word {
            at: subject.at,
            text: &subject.text[..subject.text.len() - below.text.len()],
        };
        if measure == Measure::InFlight && !prefix.text.is_empty() {
            let message = "operations in flight are not counted by operation; write `in_flight` without a prefix";
            return Err(self.wrong(prefix, message));
        }
        if part != Part::Whole && measure.unit() != Unit::Time {
            let message = format!(
                "`queue` and `device` apply to latencies only, not to `{}`",
                measure.name()
            );
            return Err(self.wrong(prefix, message));
        }
        Ok((operations.unwrap_or(OperationSet::ALL), part, measure))
    }

    /// Returns the error for a word that is not a measure. If it is the first word, its first part should be an
    /// operation.
    fn unknown(&self, word: Word<'a>, is_first: bool) -> RuleError {
        let measures = Measure::NAMED.map(|(name, _)| name);
        let is_measure = |text: &str| measures.contains(&text);
        match word.text.split_once('.') {
            Some((name, _)) if is_first && !is_measure(name) => {
                let families = FAMILIES.map(|(name, _)| name);
                let known = families.into_iter().chain(operations());
                let message = format!(
                    "unknown operation `{name}`{}; use one of {}, or an operation of docs/reference/kernels.md such as \
                     read_at or fsync",
                    suggestion(name, known),
                    families.join(", "),
                );
                self.wrong(word.up_to(name.len()), message)
            }
            _ => {
                let message = format!(
                    "unknown measure `{}`{}; use one of {}",
                    word.text,
                    suggestion(word.text, measures.into_iter()),
                    measures.join(", ")
                );
                self.wrong(word, message)
            }
        }
    }

    fn comparison(&mut self, measure: Measure) -> Result<Comparison, RuleError> {
        let typed = self.word(|c| "<>=!".contains(c));
        let named = Comparison::NAMED
            .iter()
            .find(|(name, _)| *name == typed.text);
        match named {
            Some(&(_, comparison)) => Ok(comparison),
            None => {
                let at = if typed.text.is_empty() {
                    self.ahead()
                } else {
                    typed
                };
                let message = format!("expected one of >, >=, <, <= after `{}`", measure.name());
                Err(self.wrong(at, message))
            }
        }
    }

    fn threshold(&mut self, measure: Measure) -> Result<f64, RuleError> {
        let example = match measure.unit() {
            Unit::Time => "500us",
            Unit::Percent => "0.1%",
            Unit::PerSecond => "1000/s",
            Unit::Count => "100",
        };
        let (number, unit) = self.number(example)?;
        let value = number.text.parse::<f64>().unwrap_or(f64::NAN);
        match measure.unit() {
            Unit::Time => {
                let ns = self.time(number, unit, &TIMES[..THRESHOLD_TIMES], example)?;
                if ns >= LATENCY_NS_MAX {
                    let message = "latencies of 137 s and more are all counted as 137 s; use a lower threshold";
                    return Err(self.wrong(number, message));
                }
                Ok(ns as f64)
            }
            Unit::Percent if unit.text != "%" => {
                Err(self.no_unit(unit, "a share of errors needs the unit %", example))
            }
            Unit::Percent if value > 100.0 => {
                Err(self.wrong(number, "a share of errors cannot exceed 100%"))
            }
            Unit::PerSecond if unit.text != "/s" => {
                Err(self.no_unit(unit, "a rate needs the unit /s", example))
            }
            Unit::Count if !unit.text.is_empty() => {
                Err(self.wrong(unit, "the number of operations in flight has no unit"))
            }
            _ => Ok(value),
        }
    }

    /// Parses `for 5s`, or nothing.
    fn lasting(&mut self) -> Result<Duration, RuleError> {
        let ahead = self.ahead();
        if ahead.text != "for" {
            return Ok(Duration::ZERO);
        }
        self.at = ahead.at + ahead.text.len();
        let (number, unit) = self.number("5s")?;
        let ns = self.time(number, unit, &TIMES, "5s")?;
        if ns == 0 {
            let message = "a time of 0 has no effect; omit `for` to raise the alert immediately";
            return Err(self.wrong(number, message));
        }
        if ns > DAY_NS {
            return Err(self.wrong(number, "the time after `for` must not exceed one day"));
        }
        Ok(Duration::from_nanos(ns))
    }

    /// Parses a number and its unit, which ends at a space.
    fn number(&mut self, example: &str) -> Result<(Word<'a>, Word<'a>), RuleError> {
        let ahead = self.ahead();
        let number = self.word(|c| c.is_ascii_digit() || c == '.');
        let digits = number.text.bytes().filter(u8::is_ascii_digit).count();
        let points = number.text.len() - digits;
        if digits == 0 || points > 1 {
            let message = format!("expected a number, for example `{example}`");
            return Err(self.wrong(ahead, message));
        }
        if digits > DIGITS_MAX {
            return Err(self.wrong(
                number,
                format!("a number may have at most {DIGITS_MAX} digits"),
            ));
        }
        let mut unit = Word {
            at: self.at,
            text: "",
        };
        let next = self.ahead();
        // `500 us` is accepted like `500us`. A `for` that follows the number is not its unit.
        if next.at == self.at || next.text != "for" {
            unit = next;
            self.at = next.at + next.text.len();
        }
        Ok((number, unit))
    }

    fn no_unit(&self, unit: Word<'a>, problem: &str, example: &str) -> RuleError {
        self.wrong(unit, format!("{problem}, for example `{example}`"))
    }

    /// Converts a time to ns without rounding.
    fn time(
        &self,
        number: Word<'a>,
        unit: Word<'a>,
        units: &[(&str, u64)],
        example: &str,
    ) -> Result<u64, RuleError> {
        let Some((_, per_unit)) = units.iter().find(|(name, _)| *name == unit.text) else {
            let names = units.iter().filter(|(name, _)| name.is_ascii());
            let names: Vec<&str> = names.map(|(name, _)| *name).collect();
            let problem = format!("a time needs a unit, one of {}", names.join(", "));
            return Err(self.no_unit(unit, &problem, example));
        };
        let (whole, part) = number.text.split_once('.').unwrap_or((number.text, ""));
        // There are at most 15 digits, so neither overflows.
        let digits: u128 = format!("{whole}{part}").parse().unwrap_or(0);
        let divisor = 10u128.pow(u32::try_from(part.len()).unwrap_or(u32::MAX));
        let product = digits * u128::from(*per_unit);
        if !product.is_multiple_of(divisor) {
            return Err(self.wrong(
                number,
                "times have a resolution of 1 ns; use fewer decimal places",
            ));
        }
        Ok(u64::try_from(product / divisor).unwrap_or(u64::MAX))
    }
}

fn suggestion<'a>(typed: &str, known: impl Iterator<Item = &'a str>) -> String {
    let alike = known.map(|name| (strsim::jaro_winkler(typed, name), name));
    match alike.max_by(|(a, _), (b, _)| a.total_cmp(b)) {
        Some((alike, name)) if alike >= ALIKE => format!(" (did you mean `{name}`?)"),
        _ => String::new(),
    }
}
