//! The layout of the JSON that `bench` writes: one line per run and per row, so that it is compact and diffs well.

use std::io::{Result, Write};

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, Serializer};

/// Containers down to this depth have one line per element; deeper ones are written on one line.
const BROKEN_DEPTH: usize = 2;

/// The number of digits with which a measured number is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Digits {
    /// Six significant digits, more than a measurement reproduces.
    Six,
    /// All digits, so that reading the file returns the same numbers.
    All,
}

/// Writes `value` as JSON, with one line per element of its lists.
pub(crate) fn write_lines(
    out: impl Write,
    value: &impl Serialize,
    digits: Digits,
) -> serde_json::Result<()> {
    let lines = Lines {
        digits,
        depth: 0,
        has_elements: false,
    };
    value.serialize(&mut Serializer::with_formatter(out, lines))
}

struct Lines {
    digits: Digits,
    depth: usize,
    /// The container that ends next has an element.
    has_elements: bool,
}

impl Lines {
    fn begin(&mut self, out: &mut (impl Write + ?Sized), bracket: &[u8]) -> Result<()> {
        self.depth += 1;
        self.has_elements = false;
        out.write_all(bracket)
    }

    fn end(&mut self, out: &mut (impl Write + ?Sized), bracket: &[u8]) -> Result<()> {
        let broken = self.depth <= BROKEN_DEPTH && self.has_elements;
        self.depth -= 1;
        self.has_elements = true;
        if broken {
            self.new_line(out)?;
        }
        out.write_all(bracket)
    }

    /// Begins an element. Only names of objects follow a space, because a timeline has long lists of numbers.
    fn element(&self, out: &mut (impl Write + ?Sized), first: bool, named: bool) -> Result<()> {
        if !first {
            out.write_all(b",")?;
        }
        match self.depth <= BROKEN_DEPTH {
            true => self.new_line(out),
            false if first || !named => Ok(()),
            false => out.write_all(b" "),
        }
    }

    fn new_line(&self, out: &mut (impl Write + ?Sized)) -> Result<()> {
        out.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| out.write_all(b" "))
    }
}

impl Formatter for Lines {
    fn write_f64<W: ?Sized + Write>(&mut self, out: &mut W, value: f64) -> Result<()> {
        let written = match self.digits {
            Digits::Six => six_digits(value),
            Digits::All => value,
        };
        CompactFormatter.write_f64(out, written)
    }

    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> Result<()> {
        self.begin(out, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> Result<()> {
        self.end(out, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> Result<()> {
        self.element(out, first, false)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _out: &mut W) -> Result<()> {
        self.has_elements = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> Result<()> {
        self.begin(out, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> Result<()> {
        self.end(out, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> Result<()> {
        self.element(out, first, true)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> Result<()> {
        out.write_all(b": ")
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _out: &mut W) -> Result<()> {
        self.has_elements = true;
        Ok(())
    }
}

/// Rounds to six significant digits.
fn six_digits(value: f64) -> f64 {
    // A number formatted as decimal always parses.
    format!("{value:.5e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written(value: &serde_json::Value, digits: Digits) -> String {
        let mut out = Vec::new();
        write_lines(&mut out, value, digits).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_run_is_one_line_with_six_digits_or_all() {
        let report = json!({
            "notes": [],
            "runs": [{"ops": 1_234_567, "us": [30.351502143534606, 0.5]}, {"ops": 2, "us": []}],
        });
        assert_eq!(
            written(&report, Digits::Six),
            "{\n \"notes\": [],\n \"runs\": [\n  {\"ops\": 1234567, \"us\": [30.3515,0.5]},\n  \
             {\"ops\": 2, \"us\": []}\n ]\n}"
        );
        let all = written(&report, Digits::All);
        let back: serde_json::Value = serde_json::from_str(&all).unwrap();
        assert_eq!(back, report);
    }

    #[test]
    fn numbers_keep_six_digits() {
        assert_eq!(six_digits(1_054_333.333), 1_054_330.0);
        assert_eq!(six_digits(0.000_123_456_789), 0.000_123_457);
        assert_eq!(six_digits(0.0), 0.0);
    }
}
