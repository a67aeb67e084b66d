//! Parsers for the values of keys: sizes, times, flags and lists. Units follow fio's manual.

use std::time::Duration;

use crate::bench::file::work::Lengths;

/// The longest time. A day may be intended, but more than a year is a typing error.
const SECONDS_MAX: u64 = 365 * 86_400;
/// The limit for a list of percentiles in fio's manual.
const PERCENTILES_MAX: usize = 20;

/// The meaning of the unit `k`: 1024 (fio's default) or 1000 (`kb_base=1000`). `ki` has the other meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Base {
    /// `k` is 1024.
    #[default]
    Binary,
    /// `k` is 1000.
    Decimal,
}

/// A length in bytes, or a share of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// A number of bytes.
    Bytes(u64),
    /// A percentage of the file's length, at most 100.
    Percent(u8),
}

/// Splits a list of names at its colons. As in fio, `\:` is a colon of a name, and empty names are left out.
pub(super) fn names(text: &str) -> Vec<String> {
    let (mut names, mut name) = (Vec::new(), String::new());
    for part in text.split(':') {
        match part.strip_suffix('\\') {
            Some(start) => name += &format!("{start}:"),
            None => names.push(std::mem::take(&mut name) + part),
        }
    }
    // Nothing follows this backslash, so it is one of the name.
    if name.pop().is_some() {
        names.push(name + "\\");
    }
    names.retain(|name| !name.is_empty());
    names
}

fn no_expression(text: &str) -> Result<&str, String> {
    match text.trim() {
        "" => Err("has no value".into()),
        text if text.starts_with('(') => {
            Err("arithmetic in parentheses is not supported; write the number it makes".into())
        }
        text if text.starts_with('$') => Err(format!(
            "the keyword `{text}` is not supported; write the number"
        )),
        text if text.starts_with('-') => Err(format!("`{text}` is negative")),
        text => Ok(text),
    }
}

/// Parses the number at the start, in decimal or after `0x` in hexadecimal. Returns it and the rest of the text.
fn number(text: &str) -> Result<(u64, &str), String> {
    let text = no_expression(text)?;
    let (digits, radix) = match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(hex) => (hex, 16),
        None => (text, 10),
    };
    let end = digits
        .find(|c: char| !c.is_digit(radix))
        .unwrap_or(digits.len());
    let value = u64::from_str_radix(&digits[..end], radix)
        .map_err(|_| format!("`{text}` does not begin with a number of at most 64 bits"))?;
    Ok((value, digits[end..].trim()))
}

/// Parses a number of bytes: `4096`, `4k`, `4KiB`, `0x1000`, `1g`.
pub(super) fn bytes(text: &str, base: Base) -> Result<u64, String> {
    let (value, unit) = number(text)?;
    let unit = unit.to_ascii_lowercase();
    let unit = unit.strip_suffix('b').unwrap_or(&unit);
    let (letter, other) = match unit.strip_suffix('i') {
        Some(letter) => (letter, true),
        None => (unit, false),
    };
    let power = match letter {
        "" if !other => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "p" => 5,
        _ => {
            let text = text.trim();
            return Err(format!(
                "`{text}` has an unknown unit; write for example 4k, 1m or 8g"
            ));
        }
    };
    // By default, `k` is 1024 and `ki` is 1000, as in fio. `kb_base=1000` swaps them.
    let thousand: u64 = match (base, other) {
        (Base::Binary, false) | (Base::Decimal, true) => 1024,
        (Base::Binary, true) | (Base::Decimal, false) => 1000,
    };
    thousand
        .checked_pow(power)
        .and_then(|unit| value.checked_mul(unit))
        .ok_or_else(|| format!("`{}` is more than 64 bits can count", text.trim()))
}

/// Parses a number of bytes, or a percentage such as `50%`.
pub(super) fn size(text: &str, base: Base) -> Result<Size, String> {
    let Some(percent) = text.trim().strip_suffix('%') else {
        return bytes(text, base).map(Size::Bytes);
    };
    match percent.trim().parse::<u8>() {
        Ok(percent @ 0..=100) => Ok(Size::Percent(percent)),
        _ => Err(format!("`{}` is no share from 0% to 100%", text.trim())),
    }
}

/// Parses a time: `15`, `15s`, `500ms`, `10m`, `2h`. The default unit is seconds.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let (value, unit) = number(text)?;
    let micros = match unit.to_ascii_lowercase().as_str() {
        "us" | "usec" => 1,
        "ms" | "msec" => 1000,
        "" | "s" | "sec" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => {
            let text = text.trim();
            return Err(format!(
                "`{text}` has an unknown unit; write for example 15, 15s or 500ms"
            ));
        }
    };
    value
        .checked_mul(micros)
        .map(Duration::from_micros)
        .filter(|time| time.as_secs() <= SECONDS_MAX)
        .ok_or_else(|| format!("`{}` is longer than a year", text.trim()))
}

/// Parses a flag: `1`, `0`, `true`, `false`. A key without a value is true.
pub(super) fn flag(value: Option<&str>) -> Result<bool, String> {
    match value
        .map(|text| text.trim().to_ascii_lowercase())
        .as_deref()
    {
        None | Some("1" | "true") => Ok(true),
        Some("0" | "false") => Ok(false),
        Some(other) => Err(format!("`{other}` is neither 0 nor 1")),
    }
}

/// Parses an integer from `least` to `most`. Units are allowed, because fio accepts `numjobs=1k`.
pub(super) fn count(text: &str, least: u64, most: u64) -> Result<u64, String> {
    match bytes(text, Base::Binary)? {
        value if (least..=most).contains(&value) => Ok(value),
        value => Err(format!("{value}: from {least} to {most}")),
    }
}

/// Parses a value for reads and writes, or one for each: `4k`, `4k,8k`, `,8k`. A third value, for trims, is ignored.
pub(super) fn pair<T: Clone>(
    text: &str,
    both: &mut [T; 2],
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<(), String> {
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    match parts[..] {
        [one] => {
            let one = read(one)?;
            *both = [one.clone(), one];
        }
        [first, second] | [first, second, _] => {
            if !first.is_empty() {
                both[0] = read(first)?;
            }
            if !second.is_empty() {
                both[1] = read(second)?;
            }
            if let Some(third) = parts.get(2).filter(|third| !third.is_empty()) {
                read(third)?;
            }
        }
        _ => {
            return Err(format!(
                "{} values; at most three, for reads, writes and trims",
                parts.len()
            ));
        }
    }
    Ok(())
}

/// Parses a list of percentiles such as `99:99.5:99.99`. The result is sorted.
pub(super) fn percentiles(text: &str) -> Result<Vec<f64>, String> {
    let mut list = Vec::new();
    for part in text.split(':') {
        match part.trim().parse::<f64>() {
            Ok(value) if (0.0..=100.0).contains(&value) => list.push(value),
            _ => {
                return Err(format!(
                    "`{}` is not a percentile from 0 to 100",
                    part.trim()
                ));
            }
        }
    }
    if list.len() > PERCENTILES_MAX {
        return Err(format!(
            "{} percentiles; at most {PERCENTILES_MAX}",
            list.len()
        ));
    }
    list.sort_by(f64::total_cmp);
    list.dedup();
    Ok(list)
}

/// Parses one length, such as `4k`.
pub(super) fn fixed(text: &str, base: Base) -> Result<Lengths, String> {
    block(text, base).map(Lengths::Fixed)
}

fn block(text: &str, base: Base) -> Result<u64, String> {
    const MOST: u64 = 1 << 30;
    match bytes(text, base)? {
        bytes @ 1..=MOST => Ok(bytes),
        bytes => Err(format!("{bytes}: a block has from 1 byte to 1 GiB")),
    }
}

/// Parses a range of lengths, such as `1k-4k`.
pub(super) fn range(text: &str, base: Base) -> Result<Lengths, String> {
    let (least, most) = text
        .split_once(['-', ':'])
        .ok_or_else(|| format!("`{text}` is no range; write for example 1k-4k"))?;
    let (least, most) = (block(least, base)?, block(most, base)?);
    Ok(Lengths::Range(least.min(most), least.max(most)))
}

/// Parses lengths with shares, such as `4k/60:64k/40`. Lengths without a share divide the remaining percentage.
pub(super) fn split(text: &str, base: Base) -> Result<Lengths, String> {
    let mut list: Vec<(u64, Option<u8>)> = Vec::new();
    for part in text.split(':') {
        let (length, share) = match part.split_once('/') {
            Some((length, share)) => (length, share.trim()),
            None => (part, ""),
        };
        let share = match share {
            "" => None,
            share => match share.parse::<u8>() {
                Ok(share @ 0..=100) => Some(share),
                _ => return Err(format!("`{share}` is no share from 0 to 100")),
            },
        };
        list.push((block(length, base)?, share));
    }
    let total: u32 = list
        .iter()
        .filter_map(|(_, share)| *share)
        .map(u32::from)
        .sum();
    let open = list.iter().filter(|(_, share)| share.is_none()).count() as u32;
    if total > 100 || (total < 100 && open == 0) {
        return Err(format!("the shares make {total}, not 100"));
    }
    let (each, mut over) = match open {
        0 => (0, 0),
        open => ((100 - total) / open, (100 - total) % open),
    };
    let fill = |share: Option<u8>| {
        share.unwrap_or_else(|| {
            let one = over.min(1);
            over -= one;
            (each + one) as u8
        })
    };
    let mut fill = fill;
    let list = list.into_iter().map(|(bytes, share)| (bytes, fill(share)));
    Ok(Lengths::Split(list.collect()))
}

/// Parses the bytes of a verification pattern: `0xdeadbeef`, `"text"`, a number, or a sequence of these.
pub(super) fn pattern(text: &str) -> Result<Vec<u8>, String> {
    const MOST: usize = 512;
    let mut bytes = Vec::new();
    let mut rest = no_expression(text)?;
    while !rest.is_empty() {
        rest = match rest.strip_prefix('"') {
            Some(quoted) => {
                let (inside, after) = quoted.split_once('"').ok_or("a quote that does not end")?;
                bytes.extend(inside.bytes());
                after
            }
            None => hex_or_number(rest, &mut bytes)?,
        };
        rest = rest.trim_start();
    }
    match bytes.len() {
        1..=MOST => Ok(bytes),
        0 => Err("an empty pattern".into()),
        count => Err(format!("{count} bytes; a pattern has at most {MOST}")),
    }
}

fn hex_or_number<'a>(text: &'a str, bytes: &mut Vec<u8>) -> Result<&'a str, String> {
    let wrong = || format!("`{text}` is no pattern; write for example 0xdeadbeef or \"text\"");
    if let Some(hex) = text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        let end = hex
            .find(|c: char| !c.is_ascii_hexdigit())
            .unwrap_or(hex.len());
        let digits = match end % 2 {
            0 => hex[..end].to_string(),
            _ => format!("0{}", &hex[..end]),
        };
        if digits.is_empty() {
            return Err(wrong());
        }
        for at in (0..digits.len()).step_by(2) {
            bytes.push(u8::from_str_radix(&digits[at..at + 2], 16).map_err(|_| wrong())?);
        }
        return Ok(&hex[end..]);
    }
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let number: u32 = text[..end].parse().map_err(|_| wrong())?;
    // The little-endian bytes of the number, without leading zeros.
    let used = (4 - number.leading_zeros() as usize / 8).max(1);
    bytes.extend(&number.to_le_bytes()[..used]);
    Ok(&text[end..])
}
