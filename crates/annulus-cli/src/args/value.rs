//! Numbers and times, as they are typed.

use std::time::Duration;

/// `512`, `4k`, `16KiB`, `1M`, `2G`: powers of 1024, as fio reads them.
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
                "`{other}` is no unit; write for example 4k, 1M or 8G"
            ));
        }
    };
    let count: u64 = digits
        .parse()
        .map_err(|_| "not a number of bytes; write for example 4096, 4k or 1G".to_string())?;
    count
        .checked_mul(unit)
        .ok_or_else(|| "more bytes than 64 bits can count".to_string())
}

/// `1`, `0.5`, `3s`, `200ms`, `1m`: how long a run lasts.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    bounded(text, "a run lasts from 1 ms to a day")
}

/// The same for a limit in time.
pub(crate) fn parse_limit(text: &str) -> Result<Duration, String> {
    bounded(text, "a time limit is from 1 ms to a day")
}

/// The same, and 0.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    match seconds(text)? {
        0.0 => Ok(Duration::ZERO),
        _ => bounded(text, "this time is 0, or from 1 ms to a day"),
    }
}

fn bounded(text: &str, says: &str) -> Result<Duration, String> {
    const DAY_SECONDS: f64 = 86_400.0;
    let seconds = seconds(text)?;
    if !(0.001..=DAY_SECONDS).contains(&seconds) {
        return Err(says.to_owned());
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
