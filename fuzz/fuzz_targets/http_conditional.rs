//! Any bytes as conditions of a request: `evaluate` agrees with a slower, literal implementation of
//! the RFC.

#![no_main]

use std::time::{Duration, SystemTime};

use annulus_http::site::conditional::{Conditions, Outcome, Validators, evaluate};
use libfuzzer_sys::fuzz_target;

/// Returns the tags of a list up to the first malformed one, or `None` for `*`.
fn tags(list: &[u8]) -> Option<Vec<(bool, &[u8])>> {
    let list = list.trim_ascii();
    if list == b"*" {
        return None;
    }
    let mut tags = Vec::new();
    let mut at = 0;
    let mut comma = true;
    let mut last_ended = 0;
    while at < list.len() {
        match list[at] {
            b' ' | b'\t' => at += 1,
            b',' => {
                comma = true;
                at += 1;
            }
            _ => {
                let weak = list[at..].starts_with(b"W/");
                let quote = at + if weak { 2 } else { 0 };
                if !comma || list.get(quote) != Some(&b'"') {
                    break;
                }
                let Some(close) = (quote + 1..list.len()).find(|at| list[*at] == b'"') else {
                    break;
                };
                let inside = &list[quote + 1..close];
                if inside.iter().any(|byte| *byte <= b' ' || *byte == 0x7f) {
                    break;
                }
                tags.push((weak, inside));
                at = close + 1;
                comma = false;
                last_ended = tags.len();
            }
        }
    }
    // A tag that is followed by anything but a comma is malformed.
    if at < list.len() && !comma {
        tags.truncate(last_ended - 1);
    }
    Some(tags)
}

fn date(value: &[u8]) -> Option<SystemTime> {
    httpdate::parse_http_date(str::from_utf8(value.trim_ascii()).ok()?).ok()
}

fn model(conditions: &Conditions<'_>, weak: bool, modified: Option<SystemTime>) -> Outcome {
    let later = |field: Option<&[u8]>| {
        field
            .and_then(date)
            .zip(modified)
            .map(|(date, modified)| modified > date)
    };
    let matched = match &conditions.if_match {
        Some(list) => tags(list).is_none_or(|tags| !weak && tags.contains(&(false, b"v1"))),
        None => later(conditions.if_unmodified_since) != Some(true),
    };
    let new = match &conditions.if_none_match {
        Some(list) => !tags(list).is_none_or(|tags| tags.iter().any(|(_, tag)| tag == b"v1")),
        None => later(conditions.if_modified_since) != Some(false),
    };
    let same = conditions.if_range.is_none_or(|value| {
        (value.trim_ascii() == b"\"v1\"" && !weak)
            || (modified.is_some() && date(value) == modified)
    });
    match (matched, new, same) {
        (false, _, _) => Outcome::Failed,
        (true, false, _) => Outcome::NotModified,
        (true, true, true) => Outcome::Send,
        (true, true, false) => Outcome::SendWhole,
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((first, fields)) = bytes.split_first() else {
        return;
    };
    // One line per field. A line that begins with a minus stands for a missing field.
    let mut lines = fields.split(|byte| *byte == b'\n').map(|line| match line {
        [b'-', ..] => None,
        line => Some(line),
    });
    let mut line = || lines.next().flatten();
    let conditions = Conditions {
        if_match: line().map(<[u8]>::to_vec),
        if_none_match: line().map(<[u8]>::to_vec),
        if_modified_since: line(),
        if_unmodified_since: line(),
        if_range: line(),
    };
    let weak = first & 1 == 1;
    // Sun, 06 Nov 1994 08:49:37 GMT, a date that the corpus contains.
    let modified =
        (first & 2 == 0).then(|| SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777));
    let etag = if weak { &b"W/\"v1\""[..] } else { b"\"v1\"" };
    let outcome = evaluate(&conditions, &Validators { etag, modified });
    assert_eq!(outcome, model(&conditions, weak, modified));
});
