//! Conditional requests (RFC 9110, section 13). Pure functions, fuzzed as `http_conditional`.

use std::time::{Duration, SystemTime};

/// The validators of a representation.
#[derive(Clone, Copy, Debug)]
pub struct Validators<'a> {
    /// The entity tag as in its field: `"…"`, or `W/"…"` while the file may change without a visible change of its
    /// times.
    pub etag: &'a [u8],
    /// The modification time in whole seconds; `None` if it is too recent to identify a version.
    pub modified: Option<SystemTime>,
}

/// The conditions of a request. The lines of a list field are joined by commas.
#[derive(Clone, Debug, Default)]
pub struct Conditions<'a> {
    /// `If-Match`.
    pub if_match: Option<Vec<u8>>,
    /// `If-None-Match`.
    pub if_none_match: Option<Vec<u8>>,
    /// `If-Modified-Since`.
    pub if_modified_since: Option<&'a [u8]>,
    /// `If-Unmodified-Since`.
    pub if_unmodified_since: Option<&'a [u8]>,
    /// `If-Range`.
    pub if_range: Option<&'a [u8]>,
}

/// The result of the conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The representation is sent, and a `Range` field applies.
    Send,
    /// The representation is sent, and a `Range` field is ignored.
    SendWhole,
    /// The response is 304.
    NotModified,
    /// The response is 412.
    Failed,
}

/// Evaluates the conditions of a GET or HEAD request in the order of RFC 9110, section 13.2.2.
pub fn evaluate(conditions: &Conditions<'_>, now: &Validators<'_>) -> Outcome {
    if let Some(list) = &conditions.if_match {
        if !any_tag(list, |tag| strong_equal(tag, now.etag)) {
            return Outcome::Failed;
        }
    } else if let (Some(date), Some(modified)) =
        (conditions.if_unmodified_since.and_then(date), now.modified)
        && modified > date
    {
        return Outcome::Failed;
    }
    if let Some(list) = &conditions.if_none_match {
        if any_tag(list, |tag| opaque(tag) == opaque(now.etag)) {
            return Outcome::NotModified;
        }
    } else if let (Some(date), Some(modified)) =
        (conditions.if_modified_since.and_then(date), now.modified)
        && modified <= date
    {
        return Outcome::NotModified;
    }
    match conditions.if_range.map(trim) {
        Some(tag @ [b'"', ..]) if strong_equal(tag, now.etag) => Outcome::Send,
        // A different or weak tag, or a date. A date must be equal, not merely later.
        Some(other) if now.modified.is_none() || date(other) != now.modified => Outcome::SendWhole,
        _ => Outcome::Send,
    }
}

/// Truncates a time to whole seconds, as in header fields. `None` before 1970.
pub fn whole_seconds(time: SystemTime) -> Option<SystemTime> {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(since.as_secs()))
}

fn date(value: &[u8]) -> Option<SystemTime> {
    // This includes two-digit years and the other obsolete forms.
    httpdate::parse_http_date(str::from_utf8(trim(value)).ok()?).ok()
}

fn trim(value: &[u8]) -> &[u8] {
    value.trim_ascii()
}

/// Compares strongly: both tags are equal and not weak.
fn strong_equal(one: &[u8], other: &[u8]) -> bool {
    one == other && !one.starts_with(b"W/")
}

/// Returns the part of a tag that weak comparison uses.
fn opaque(tag: &[u8]) -> &[u8] {
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

/// Returns whether `matches` accepts a tag of the list. `*` always matches, because a representation exists. A
/// malformed tag ends the list.
fn any_tag(list: &[u8], matches: impl Fn(&[u8]) -> bool) -> bool {
    let mut rest = trim(list);
    if rest == b"*" {
        return true;
    }
    loop {
        while let [b' ' | b'\t' | b',', after @ ..] = rest {
            rest = after;
        }
        let Some(tag) = first_tag(rest) else {
            return false;
        };
        rest = &rest[tag.len()..];
        while let [b' ' | b'\t', after @ ..] = rest {
            rest = after;
        }
        // Tags are separated by commas.
        if !matches!(rest.first(), None | Some(b',')) {
            return false;
        }
        if matches(tag) {
            return true;
        }
    }
}

/// Returns the first entity tag of a list. Its quotes may contain a comma.
fn first_tag(list: &[u8]) -> Option<&[u8]> {
    let quoted = opaque(list);
    let inside = quoted.strip_prefix(b"\"")?;
    // Neither control characters nor spaces (`etagc` of RFC 9110).
    let end = inside
        .iter()
        .position(|&byte| byte == b'"' || byte <= b' ' || byte == 0x7f)?;
    (inside[end] == b'"').then(|| &list[..list.len() - inside.len() + end + 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "Sat, 29 Oct 1994 19:43:30 GMT";
    const SAME: &str = "Sat, 29 Oct 1994 19:43:31 GMT";
    const NEWER: &str = "Sat, 29 Oct 1994 19:43:32 GMT";

    /// Returns the outcome of fields for a file of [`SAME`] with the tag `"v1"`.
    fn outcome_with(etag: &str, dated: bool, fields: &[(&str, &str)]) -> Outcome {
        let get = |name| {
            fields
                .iter()
                .find(|(named, _)| *named == name)
                .map(|(_, value)| value.as_bytes())
        };
        let conditions = Conditions {
            if_match: get("im").map(<[u8]>::to_vec),
            if_none_match: get("inm").map(<[u8]>::to_vec),
            if_modified_since: get("ims"),
            if_unmodified_since: get("ius"),
            if_range: get("ir"),
        };
        let modified = dated.then(|| httpdate::parse_http_date(SAME).unwrap());
        evaluate(
            &conditions,
            &Validators {
                etag: etag.as_bytes(),
                modified,
            },
        )
    }

    fn outcome(fields: &[(&str, &str)]) -> Outcome {
        outcome_with("\"v1\"", true, fields)
    }

    #[test]
    fn each_condition_has_the_outcome_of_the_rfc() {
        use Outcome::{Failed, NotModified, Send, SendWhole};
        for (name, value, expected) in [
            ("im", "\"v1\"", Send),
            ("im", "\"v0\", \"v1\"", Send),
            ("im", "*", Send),
            ("im", "\"v0\"", Failed),
            ("im", "W/\"v1\"", Failed),
            ("im", "v1", Failed),
            ("im", "", Failed),
            ("inm", "\"v1\"", NotModified),
            ("inm", "W/\"v1\"", NotModified),
            ("inm", " \"v0\" ,\t\"v1\"", NotModified),
            ("inm", ",,\"v1\"", NotModified),
            ("inm", "\"a,b\", \"v1\"", NotModified),
            ("inm", "*", NotModified),
            ("inm", "\"v0\"", Send),
            ("inm", "\"V1\"", Send),
            ("inm", "w/\"v1\"", Send),
            ("inm", "v1", Send),
            ("inm", "\"v1", Send),
            ("inm", "\"v0\"\"v1\"", Send),
            ("inm", "\"v0\", *", Send),
            ("ims", SAME, NotModified),
            ("ims", NEWER, NotModified),
            ("ims", OLD, Send),
            ("ims", "Saturday, 29-Oct-94 19:43:31 GMT", NotModified),
            ("ims", "Sat Oct 29 19:43:31 1994", NotModified),
            ("ims", "yesterday", Send),
            ("ius", SAME, Send),
            ("ius", NEWER, Send),
            ("ius", OLD, Failed),
            ("ius", "yesterday", Send),
            ("ir", "\"v1\"", Send),
            ("ir", SAME, Send),
            ("ir", "\"v0\"", SendWhole),
            ("ir", "W/\"v1\"", SendWhole),
            ("ir", NEWER, SendWhole),
            ("ir", OLD, SendWhole),
            ("ir", "v1", SendWhole),
        ] {
            assert_eq!(outcome(&[(name, value)]), expected, "{name}: {value}");
        }
        assert_eq!(outcome(&[]), Send);
    }

    #[test]
    fn conditions_are_evaluated_in_order() {
        use Outcome::{Failed, NotModified, Send, SendWhole};
        for (fields, expected) in [
            // If-Match overrides If-Unmodified-Since.
            (&[("im", "\"v1\""), ("ius", OLD)][..], Send),
            (&[("im", "\"v0\""), ("ius", NEWER)], Failed),
            // If-None-Match overrides If-Modified-Since.
            (&[("inm", "\"v0\""), ("ims", NEWER)], Send),
            (&[("inm", "\"v1\""), ("ims", OLD)], NotModified),
            // Preconditions come before 304.
            (&[("im", "\"v0\""), ("inm", "\"v1\"")], Failed),
            (&[("im", "\"v1\""), ("inm", "\"v1\"")], NotModified),
            (&[("ius", OLD), ("ims", NEWER)], Failed),
            (&[("ius", NEWER), ("ims", NEWER)], NotModified),
            // If-Range comes last.
            (&[("inm", "\"v1\""), ("ir", "\"v0\"")], NotModified),
            (&[("im", "\"v0\""), ("ir", "\"v1\"")], Failed),
            (&[("im", "\"v1\""), ("ir", "\"v0\"")], SendWhole),
        ] {
            assert_eq!(outcome(fields), expected, "{fields:?}");
        }
    }

    #[test]
    fn a_recently_changed_file_has_no_date_to_compare() {
        for field in [("ims", NEWER), ("ius", OLD)] {
            assert_eq!(outcome_with("W/\"v1\"", false, &[field]), Outcome::Send);
        }
        // Its tag cannot be used to combine parts, either.
        for range in ["W/\"v1\"", "\"v1\"", SAME, "yesterday"] {
            assert_eq!(
                outcome_with("W/\"v1\"", false, &[("ir", range)]),
                Outcome::SendWhole,
                "{range}"
            );
        }
        assert_eq!(
            outcome_with("W/\"v1\"", false, &[("inm", "\"v1\"")]),
            Outcome::NotModified
        );
        assert_eq!(
            outcome_with("W/\"v1\"", false, &[("im", "W/\"v1\"")]),
            Outcome::Failed
        );
    }
}
