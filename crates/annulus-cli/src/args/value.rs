//! Parsers for numbers and times.

use std::num::ParseIntError;
use std::time::Duration;

/// Parses `512`, `4k`, `16KiB`, `1M` or `2G`. Units are powers of 1024, as in fio.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit: u64 = match &lower[digits.len()..] {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        other => {
            return Err(format!(
                "`{other}` is not a unit; write for example 4k, 1M or 8G"
            ));
        }
    };
    let count: u64 = digits
        .parse()
        .map_err(|_| "not a number of bytes; write for example 4096, 4k or 1G".to_string())?;
    count
        .checked_mul(unit)
        .ok_or_else(|| "the number of bytes does not fit in 64 bits".to_string())
}

/// The limit on repeats: a greater number is a typing error, since a run takes seconds.
pub(crate) const REPEATS_MAX: usize = 1000;

/// Parses a number from 1 to `MAX`.
pub(crate) fn parse_count<const MAX: usize>(text: &str) -> Result<usize, String> {
    let count: usize = text
        .parse()
        .map_err(|error: ParseIntError| error.to_string())?;
    match (1..=MAX).contains(&count) {
        true => Ok(count),
        false => Err(format!("from 1 to {MAX}")),
    }
}

/// Parses an exponent of Zipf's law.
pub(crate) fn parse_exponent(text: &str) -> Result<f64, String> {
    let exponent = text.trim().parse::<f64>();
    (exponent
        .ok()
        .filter(|exponent| (0.01..=0.999).contains(exponent)))
    .ok_or_else(|| "the exponent must be from 0.01 to 0.999".into())
}

/// Parses the length of a run: `1`, `0.5`, `3s`, `200ms` or `1m`.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    bounded(text, "the time must be from 1 ms to a day")
}

/// Parses a time limit, in the format of [`parse_seconds`].
pub(crate) fn parse_limit(text: &str) -> Result<Duration, String> {
    bounded(text, "the time limit must be from 1 ms to a day")
}

/// Parses a time that may also be 0, in the format of [`parse_seconds`].
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    match seconds(text)? {
        0.0 => Ok(Duration::ZERO),
        _ => bounded(text, "the time must be 0, or from 1 ms to a day"),
    }
}

fn bounded(text: &str, message: &str) -> Result<Duration, String> {
    const DAY_SECONDS: f64 = 86_400.0;
    let seconds = seconds(text)?;
    if !(0.001..=DAY_SECONDS).contains(&seconds) {
        return Err(message.to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn seconds(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let (digits, unit) = match text {
        _ if text.ends_with("ms") => (&text[..text.len() - 2], 0.001),
        _ if text.ends_with('s') => (&text[..text.len() - 1], 1.0),
        _ if text.ends_with('m') => (&text[..text.len() - 1], 60.0),
        _ => (text, 1.0),
    };
    let number = digits.parse::<f64>();
    let number = number.map_err(|_| "not a time; write for example 3, 0.5 or 200ms".to_string())?;
    Ok(number * unit)
}
