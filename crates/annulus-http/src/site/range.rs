//! Which parts of a representation a `Range` field asks (RFC 9110, section 14). A pure function, used by
//! `service`; fuzzed as `http_range`.
//!
//! Our own parser: the crates for it refuse forms that the grammar has (spaces around commas, leading zeros),
//! answer 416 where one range of several is satisfiable, or leave out what is done about overlaps.

/// How many ranges a request may ask; for more, all is sent. RFC 9110, 14.2: many small ones are an attack, or
/// a client for whom the whole is cheaper.
pub const RANGES_MAX: usize = 16;

/// A range that is there: `bytes` is at least 1, `offset + bytes` at most the representation's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its first byte.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
}

/// What a `Range` field means for a representation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selected {
    /// The field is to be ignored: all is sent.
    Whole,
    /// 206 with these: in the order asked, or, if any of them overlapped, merged and ascending. Not empty.
    Parts(Vec<Part>),
    /// 416.
    Unsatisfiable,
}

/// Reads the value of a `Range` field for a representation of `len` bytes.
///
/// What is no list of byte ranges is ignored, as RFC 9110 allows; so is a range of an empty representation, which
/// clients ask that put a range into every request.
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
        // All of it, in a roundabout way; 206 says so all the same if it was one range.
        [Part { bytes, .. }] if bytes == len && specs.len() > 1 => Selected::Whole,
        _ => Selected::Parts(parts),
    }
}

#[derive(Clone, Copy)]
enum Spec {
    /// First and last byte; last may be beyond the end, or not given.
    From(u64, Option<u64>),
    /// N at the end.
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

/// The ranges of `bytes=…`; `None` if it is something else, malformed, or too many.
fn parse(value: &[u8]) -> Option<Vec<Spec>> {
    let equals = value.iter().position(|&byte| byte == b'=')?;
    let (unit, list) = (&value[..equals], &value[equals + 1..]);
    if !unit.trim_ascii().eq_ignore_ascii_case(b"bytes") {
        return None;
    }
    let mut specs = Vec::new();
    // Empty elements are part of the grammar of lists.
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
                // A number too large to tell from others can't be told to be the wrong way round.
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

/// A number, or the largest one that we have where it is larger.
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
    fn single_ranges_are_those_of_the_rfc() {
        // RFC 9110, 14.1.2: of 10,000 bytes.
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
            // Neighbours do not overlap.
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
    fn what_is_no_range_is_ignored() {
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
    fn many_ranges_are_served_with_all() {
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
