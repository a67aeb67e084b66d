//! Parses `Range` fields (RFC 9110, section 14). A pure function, fuzzed as `http_range`.
//!
//! This is a separate parser because the crates for it differ from the RFC: they refuse valid forms (spaces around
//! commas, leading zeros), return 416 if only one of several ranges is satisfiable, or ignore overlaps.

/// The largest number of ranges of a request. With more, the whole representation is sent. Many small ranges are an
/// attack, or more expensive than the whole (RFC 9110, section 14.2).
pub const RANGES_MAX: usize = 16;

/// A satisfiable range. `bytes` is at least 1, and `offset + bytes` at most the length of the representation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes.
    pub bytes: u64,
}

/// The meaning of a `Range` field for a representation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selected {
    /// The field is ignored, and the whole representation is sent.
    Whole,
    /// A 206 with these parts: in the requested order, or merged and ascending if any overlapped. Not empty.
    Parts(Vec<Part>),
    /// A 416.
    Unsatisfiable,
}

/// Evaluates a `Range` field for a representation of `len` bytes.
///
/// Values that are not a list of byte ranges are ignored, as RFC 9110 allows. So is a range of an empty representation,
/// because some clients send a range with every request.
pub fn select(value: &[u8], len: u64) -> Selected {
    let Some(specs) = parse(value) else {
        return Selected::Whole;
    };
    if len == 0 {
        return Selected::Whole;
    }
    let parts: Vec<Part> = specs.iter().filter_map(|spec| spec.within(len)).collect();
    if parts.is_empty() {
        return Selected::Unsatisfiable;
    }
    let parts = merge_if_overlapping(parts);
    match parts[..] {
        // Several ranges that cover everything. A single one gets a 206.
        [Part { bytes, .. }] if bytes == len && specs.len() > 1 => Selected::Whole,
        _ => Selected::Parts(parts),
    }
}

#[derive(Clone, Copy)]
enum Spec {
    /// First and last byte. The last one may be beyond the end, or missing.
    From(u64, Option<u64>),
    /// The number of bytes at the end.
    Last(u64),
}

impl Spec {
    fn within(self, len: u64) -> Option<Part> {
        let (first, end) = match self {
            Spec::From(first, last) => (
                first,
                last.map_or(len, |last| last.saturating_add(1).min(len)),
            ),
            Spec::Last(bytes) => (len - bytes.min(len), len),
        };
        (first < end).then(|| Part {
            offset: first,
            bytes: end - first,
        })
    }
}

/// Parses `bytes=…`. Returns `None` for other units, malformed lists and too many ranges.
fn parse(value: &[u8]) -> Option<Vec<Spec>> {
    let equals = value.iter().position(|&byte| byte == b'=')?;
    let (unit, list) = (&value[..equals], &value[equals + 1..]);
    if !unit.trim_ascii().eq_ignore_ascii_case(b"bytes") {
        return None;
    }
    let mut specs = Vec::new();
    // The grammar of lists allows empty elements.
    for spec in list
        .split(|&byte| byte == b',')
        .map(trim_ows)
        .filter(|spec| !spec.is_empty())
    {
        if specs.len() == RANGES_MAX {
            return None;
        }
        let dash = spec.iter().position(|&byte| byte == b'-')?;
        specs.push(match (&spec[..dash], &spec[dash + 1..]) {
            (b"", bytes) => Spec::Last(number(bytes)?),
            (first, b"") => Spec::From(number(first)?, None),
            (first, last) => {
                let (first, last) = (number(first)?, number(last)?);
                // Numbers beyond `u64::MAX` are equal here, so their order is not checked.
                if last < first {
                    return None;
                }
                Spec::From(first, Some(last))
            }
        });
    }
    (!specs.is_empty()).then_some(specs)
}

fn trim_ows(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

/// Parses a number. Larger ones become `u64::MAX`.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let add = |sum: u64, digit: &u8| {
        sum.saturating_mul(10)
            .saturating_add(u64::from(digit - b'0'))
    };
    Some(digits.iter().fold(0, add))
}

fn merge_if_overlapping(parts: Vec<Part>) -> Vec<Part> {
    let mut sorted = parts.clone();
    sorted.sort_by_key(|part| part.offset);
    let end = |part: &Part| part.offset + part.bytes;
    if sorted
        .windows(2)
        .all(|pair| end(&pair[0]) <= pair[1].offset)
    {
        return parts;
    }
    let mut merged: Vec<Part> = Vec::with_capacity(sorted.len());
    for part in sorted {
        match merged.last_mut() {
            Some(before) if part.offset <= end(before) => {
                before.bytes = end(before).max(end(&part)) - before.offset;
            }
            _ => merged.push(part),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(list: &[(u64, u64)]) -> Selected {
        let part = |&(offset, bytes): &(u64, u64)| Part { offset, bytes };
        Selected::Parts(list.iter().map(part).collect())
    }

    #[test]
    fn single_ranges_are_evaluated_as_in_the_rfc() {
        // RFC 9110, section 14.1.2, for 10,000 bytes.
        for (value, expected) in [
            ("bytes=0-499", parts(&[(0, 500)])),
            ("bytes=500-999", parts(&[(500, 500)])),
            ("bytes=-500", parts(&[(9500, 500)])),
            ("bytes=9500-", parts(&[(9500, 500)])),
            ("bytes=0-0", parts(&[(0, 1)])),
            ("bytes=0-", parts(&[(0, 10_000)])),
            ("bytes=-20000", parts(&[(0, 10_000)])),
            ("bytes=9999-10000", parts(&[(9999, 1)])),
            ("bytes=000-00499", parts(&[(0, 500)])),
            ("Bytes=0-1", parts(&[(0, 2)])),
            ("bytes= 0-1 ", parts(&[(0, 2)])),
            ("bytes=0-99999999999999999999999999", parts(&[(0, 10_000)])),
            ("bytes=-99999999999999999999999999", parts(&[(0, 10_000)])),
            ("bytes=10000-", Selected::Unsatisfiable),
            ("bytes=10000-10001", Selected::Unsatisfiable),
            ("bytes=99999999999999999999999999-", Selected::Unsatisfiable),
            ("bytes=-0", Selected::Unsatisfiable),
            (
                "bytes=18446744073709551615-18446744073709551615",
                Selected::Unsatisfiable,
            ),
        ] {
            assert_eq!(select(value.as_bytes(), 10_000), expected, "{value}");
        }
    }

    #[test]
    fn several_ranges_keep_their_order_unless_they_overlap() {
        for (value, expected) in [
            ("bytes=0-0,-1", parts(&[(0, 1), (9999, 1)])),
            ("bytes=500-600,0-99", parts(&[(500, 101), (0, 100)])),
            ("bytes= 0-0 ,\t2-3,, 5-5,", parts(&[(0, 1), (2, 2), (5, 1)])),
            // Adjacent ranges do not overlap.
            ("bytes=0-4,5-9", parts(&[(0, 5), (5, 5)])),
            ("bytes=500-700,601-999", parts(&[(500, 500)])),
            ("bytes=601-999,500-700,0-0", parts(&[(0, 1), (500, 500)])),
            ("bytes=5-6,5-6", parts(&[(5, 2)])),
            // One satisfiable range is enough.
            ("bytes=0-1,20000-", parts(&[(0, 2)])),
            ("bytes=20000-,30000-", Selected::Unsatisfiable),
            ("bytes=0-,0-,0-", Selected::Whole),
            ("bytes=0-9000,5000-", Selected::Whole),
        ] {
            assert_eq!(select(value.as_bytes(), 10_000), expected, "{value}");
        }
    }

    #[test]
    fn a_malformed_range_is_ignored() {
        for value in [
            "",
            "bytes",
            "bytes=",
            "bytes=,",
            "bytes=-",
            "bytes=a-b",
            "bytes=1",
            "bytes=5-4",
            "bytes=0-1,5-4",
            "bytes=0-1,x",
            "bytes=-1-2",
            "bytes=1--2",
            "bytes=+1-2",
            "bytes=0x1-2",
            "bytes=1 -2",
            "bytes:0-1",
            "lines=0-1",
            "=0-1",
            "bytes=0-1;2-3",
            "bytes=1.0-2",
        ] {
            assert_eq!(select(value.as_bytes(), 10_000), Selected::Whole, "{value}");
        }
        assert_eq!(select(b"bytes=\xff-", 10), Selected::Whole);
    }

    #[test]
    fn too_many_ranges_result_in_the_whole_representation() {
        let value = |count: usize| {
            let specs: Vec<String> = (0..count)
                .map(|n| format!("{}-{}", n * 10, n * 10 + 1))
                .collect();
            format!("bytes={}", specs.join(","))
        };
        let Selected::Parts(parts) = select(value(RANGES_MAX).as_bytes(), 10_000) else {
            panic!()
        };
        assert_eq!(parts.len(), RANGES_MAX);
        assert_eq!(
            select(value(RANGES_MAX + 1).as_bytes(), 10_000),
            Selected::Whole
        );
    }

    #[test]
    fn an_empty_representation_has_no_ranges() {
        for value in ["bytes=0-", "bytes=-5", "bytes=0-0,1-1"] {
            assert_eq!(select(value.as_bytes(), 0), Selected::Whole);
        }
        assert_eq!(select(b"bytes=0-", u64::MAX), parts(&[(0, u64::MAX)]));
        assert_eq!(select(b"bytes=-1", u64::MAX), parts(&[(u64::MAX - 1, 1)]));
    }
}
