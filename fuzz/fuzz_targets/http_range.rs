//! Any bytes as a `Range` field: the selected parts are within the file, limited in number, and as requested.

#![no_main]

use annulus_http::site::range::{Part, RANGES_MAX, Selected, select};
use libfuzzer_sys::fuzz_target;

/// Returns the first and last byte of each requested range, computed in another way: through text and wide numbers.
/// Only for numbers of moderate length.
fn model(value: &str) -> Option<Vec<(Option<u128>, Option<u128>)>> {
    let (unit, list) = value.split_once('=')?;
    if unit.trim_ascii().to_ascii_lowercase() != "bytes" {
        return None;
    }
    let mut ranges = Vec::new();
    for one in list
        .split(',')
        .map(|one| one.trim_matches([' ', '\t']))
        .filter(|one| !one.is_empty())
    {
        let (first, last) = one.split_once('-')?;
        let number = |digits: &str| match digits {
            "" => Some(None),
            digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().ok().map(Some)
            }
            _ => None,
        };
        let (first, last) = (number(first)?, number(last)?);
        if (first, last) == (None, None)
            || matches!((first, last), (Some(first), Some(last)) if last < first)
        {
            return None;
        }
        ranges.push((first, last));
    }
    (1..=RANGES_MAX).contains(&ranges.len()).then_some(ranges)
}

fn is_requested(ranges: &[(Option<u128>, Option<u128>)], at: u128, len: u128) -> bool {
    ranges.iter().any(|range| match *range {
        (Some(first), last) => at >= first && last.is_none_or(|last| at <= last),
        (None, Some(last)) => at >= len.saturating_sub(last),
        (None, None) => false,
    })
}

fuzz_target!(|bytes: &[u8]| {
    let Some((seed, value)) = bytes.split_first_chunk::<9>() else {
        return;
    };
    let long = u64::from_le_bytes(*seed.first_chunk().unwrap());
    let len = if seed[8] % 2 == 0 { long % 64 } else { long };
    let selected = select(value, len);
    if let Selected::Parts(parts) = &selected {
        assert!(!parts.is_empty() && parts.len() <= RANGES_MAX);
        let end = |part: &Part| part.offset.checked_add(part.bytes).unwrap();
        assert!(parts.iter().all(|part| part.bytes > 0 && end(part) <= len));
        let mut sorted = parts.clone();
        sorted.sort_by_key(|part| part.offset);
        assert!(
            sorted
                .windows(2)
                .all(|pair| end(&pair[0]) <= pair[1].offset)
        );
    }
    let digits = |value: &[u8]| {
        value
            .split(|byte| !byte.is_ascii_digit())
            .map(<[u8]>::len)
            .max()
    };
    if len >= 64 || digits(value) > Some(19) {
        return;
    }
    let requested = str::from_utf8(value).ok().and_then(model);
    let all = u128::from(len);
    for at in 0..all {
        let sent = match &selected {
            Selected::Whole => true,
            Selected::Unsatisfiable => false,
            Selected::Parts(parts) => parts.iter().any(|part| {
                (u128::from(part.offset)..u128::from(part.offset + part.bytes)).contains(&at)
            }),
        };
        assert_eq!(
            sent,
            requested
                .as_ref()
                .is_none_or(|ranges| is_requested(ranges, at, all))
        );
    }
    if requested.is_none() || len == 0 {
        assert_eq!(selected, Selected::Whole);
    }
});
