//! How a rule is read, and how a mistake in one is shown.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::rule::{Comparison, FAMILIES, Measure, Part, Rule, Unit, Who, operations};

/// Latencies from here on are all counted as this long, so no threshold above it can be told from it.
const LATENCY_NS_MAX: u64 = 1 << 37;
const DAY_NS: u64 = 86_400 * 1_000_000_000;
/// More digits than this make no number that anybody means.
const DIGITS_MAX: usize = 15;
/// Names less alike than this are no slips of the same hand.
const ALIKE: f64 = 0.75;

/// Units of time, in ns. A threshold may not be in the last two.
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

/// Why a text is no rule: what is wrong, and where in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    says: String,
    rule: String,
    /// Bytes of `rule`.
    at: usize,
    length: usize,
}

impl RuleError {
    /// The first character that is wrong, counted from 0.
    pub fn column(&self) -> usize {
        self.rule[..self.at].chars().count()
    }
}

/// What is wrong, and below it the rule with the place marked.
impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // One column for each character, whatever it is.
        let rule: String = (self.rule.chars())
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        let marked = &self.rule[self.at..self.at + self.length];
        let marks = "^".repeat(marked.chars().count().max(1));
        let (says, column) = (&self.says, self.column());
        write!(f, "{says}\n  {rule}\n  {:column$}{marks}", "")
    }
}

impl std::error::Error for RuleError {}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Rule, RuleError> {
        Reader { text, at: 0 }.rule()
    }
}

/// A stretch of the text.
#[derive(Clone, Copy)]
struct Word<'a> {
    at: usize,
    text: &'a str,
}

impl<'a> Word<'a> {
    /// What comes after the first `bytes` of it.
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
            let says = "a rule is a measure, a comparison and a threshold, as in `read.p99 > 500us for 5s`";
            return Err(self.wrong(subject, says));
        }
        let (who, part, measure) = self.subject(subject)?;
        let comparison = self.comparison(measure)?;
        let threshold = self.threshold(measure)?;
        let lasting = self.lasting()?;
        let rest = self.word(|_| true);
        if !rest.text.trim_end().is_empty() {
            let rest = rest.up_to(rest.text.trim_end().len());
            let says = match lasting.is_zero() {
                true => "the rule ends here, or goes on with `for` and a time, as in `for 5s`",
                false => "the rule ends here; for another one, give another rule",
            };
            return Err(self.wrong(rest, says));
        }
        Ok(Rule {
            who,
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

    /// Skips white space and takes the characters that `belongs` says yes to.
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

    /// The next word, without taking it: what a message points at.
    fn ahead(&self) -> Word<'a> {
        let mut ahead = Reader { ..*self };
        ahead.word(|c| !c.is_whitespace())
    }

    fn wrong(&self, at: Word<'_>, says: impl Into<String>) -> RuleError {
        RuleError {
            says: says.into(),
            rule: self.text.to_owned(),
            at: at.at,
            length: at.text.len(),
        }
    }

    /// `[OP.][queue.|device.]MEASURE`.
    fn subject(&self, subject: Word<'a>) -> Result<(Who, Part, Measure), RuleError> {
        let (who, below) = match subject.text.split_once('.') {
            Some((name, _)) if Who::named(name).is_some() => {
                (Who::named(name), subject.after(name.len() + 1))
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
            return Err(self.unknown(below, who.is_none() && part == Part::Whole));
        };
        let prefix = Word {
            at: subject.at,
            text: &subject.text[..subject.text.len() - below.text.len()],
        };
        if measure == Measure::InFlight && !prefix.text.is_empty() {
            let says = "operations in flight are counted all together; write `in_flight` alone";
            return Err(self.wrong(prefix, says));
        }
        if part != Part::Whole && measure.unit() != Unit::Time {
            let says = format!(
                "only latencies have a part in the queue and one in the device; `{}` has none",
                measure.name()
            );
            return Err(self.wrong(prefix, says));
        }
        Ok((who.unwrap_or(Who::ALL), part, measure))
    }

    /// What to say of a word that is no measure. If nothing came before it, its first part was to be an operation.
    fn unknown(&self, word: Word<'a>, is_first: bool) -> RuleError {
        let measures = Measure::NAMED.map(|(name, _)| name);
        let is_measure = |text: &str| measures.contains(&text);
        match word.text.split_once('.') {
            Some((name, _)) if is_first && !is_measure(name) => {
                let families = FAMILIES.map(|(name, _)| name);
                let known = families.into_iter().chain(operations());
                let says = format!(
                    "no operation `{name}`{}; there are {}, and those of docs/reference/kernels.md, such as read_at and fsync",
                    did_you_mean(name, known),
                    families.join(", "),
                );
                self.wrong(word.up_to(name.len()), says)
            }
            _ => {
                let says = format!(
                    "no measure `{}`{}; there are {}",
                    word.text,
                    did_you_mean(word.text, measures.into_iter()),
                    measures.join(", ")
                );
                self.wrong(word, says)
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
                let says = format!("after `{}` comes one of >, >=, <, <=", measure.name());
                Err(self.wrong(at, says))
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
                    let says = "latencies from 137 s on are all counted as that long; write less";
                    return Err(self.wrong(number, says));
                }
                Ok(ns as f64)
            }
            Unit::Percent if unit.text != "%" => {
                Err(self.no_unit(unit, "a share is in %", example))
            }
            Unit::Percent if value > 100.0 => {
                Err(self.wrong(number, "of 100 answers, at most 100 can be errors"))
            }
            Unit::PerSecond if unit.text != "/s" => {
                Err(self.no_unit(unit, "a rate is per second", example))
            }
            Unit::Count if !unit.text.is_empty() => {
                Err(self.wrong(unit, "operations in flight are a number without a unit"))
            }
            _ => Ok(value),
        }
    }

    /// `for 5s`, or nothing.
    fn lasting(&mut self) -> Result<Duration, RuleError> {
        let ahead = self.ahead();
        if ahead.text != "for" {
            return Ok(Duration::ZERO);
        }
        self.at = ahead.at + ahead.text.len();
        let (number, unit) = self.number("5s")?;
        let ns = self.time(number, unit, &TIMES, "5s")?;
        if ns == 0 {
            let says = "to raise the alert at once, leave `for` out";
            return Err(self.wrong(number, says));
        }
        if ns > DAY_NS {
            return Err(self.wrong(number, "at most a day"));
        }
        Ok(Duration::from_nanos(ns))
    }

    /// Digits, perhaps with a point among them, and what stands behind them up to a space.
    fn number(&mut self, example: &str) -> Result<(Word<'a>, Word<'a>), RuleError> {
        let ahead = self.ahead();
        let number = self.word(|c| c.is_ascii_digit() || c == '.');
        let digits = number.text.bytes().filter(u8::is_ascii_digit).count();
        let points = number.text.len() - digits;
        if digits == 0 || points > 1 {
            let says = format!("here comes a number with its unit, as in `{example}`");
            return Err(self.wrong(ahead, says));
        }
        if digits > DIGITS_MAX {
            return Err(self.wrong(number, format!("more than {DIGITS_MAX} digits")));
        }
        let mut unit = Word {
            at: self.at,
            text: "",
        };
        let next = self.ahead();
        // `500 us` is as good as `500us`; the `for` that may come next is no unit.
        if next.at == self.at || next.text != "for" {
            unit = next;
            self.at = next.at + next.text.len();
        }
        Ok((number, unit))
    }

    fn no_unit(&self, unit: Word<'a>, what: &str, example: &str) -> RuleError {
        self.wrong(unit, format!("{what}, as in `{example}`"))
    }

    /// A time in ns, to the last one.
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
            let what = format!("a time needs its unit, one of {}", names.join(", "));
            return Err(self.no_unit(unit, &what, example));
        };
        let (whole, part) = number.text.split_once('.').unwrap_or((number.text, ""));
        // At most 15 digits, so neither overflows.
        let digits: u128 = format!("{whole}{part}").parse().unwrap_or(0);
        let divisor = 10u128.pow(u32::try_from(part.len()).unwrap_or(u32::MAX));
        let product = digits * u128::from(*per_unit);
        if !product.is_multiple_of(divisor) {
            return Err(self.wrong(number, "nothing is measured more finely than in ns"));
        }
        Ok(u64::try_from(product / divisor).unwrap_or(u64::MAX))
    }
}

fn did_you_mean<'a>(typed: &str, known: impl Iterator<Item = &'a str>) -> String {
    let alike = known.map(|name| (strsim::jaro_winkler(typed, name), name));
    match alike.max_by(|(a, _), (b, _)| a.total_cmp(b)) {
        Some((alike, name)) if alike >= ALIKE => format!("; did you mean `{name}`?"),
        _ => String::new(),
    }
}
