//! Transcripts of the driver: splits them by seed, compares them line by line, and shows the history of a socket.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The first line in which a sequence differs.
pub(crate) struct Difference {
    pub(crate) seed: u64,
    pub(crate) text: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "-- seed {}\n{}", self.seed, self.text)
    }
}

/// Returns the lines of one sequence.
pub(crate) fn of_seed(transcript: &str, seed: u64) -> Vec<&str> {
    let title = format!("seed {seed}");
    let lines = transcript.lines().skip_while(|line| *line != title).skip(1);
    lines
        .take_while(|line| !line.starts_with("seed ") && *line != "done")
        .collect()
}

pub(crate) fn first_difference(
    seed: u64,
    expected: &[&str],
    actual: &[&str],
) -> Option<Difference> {
    let at = (0..expected.len().max(actual.len())).find(|&at| {
        let both = expected.get(at).zip(actual.get(at));
        !both.is_some_and(|(line, other)| {
            allowed(line, other) || ends_without_reset(&expected[..at], line, other)
        })
    })?;
    let line = |lines: &[&str]| {
        lines
            .get(at)
            .map_or("nothing more", |line| *line)
            .to_owned()
    };
    let (expected_line, actual_line) = (line(expected), line(actual));
    let slot = slot_of(&expected_line, &actual_line);
    let history = history(&expected[..at.min(expected.len())], &slot);
    Some(Difference {
        seed,
        text: format!(
            "{history}without the library: {expected_line}\nwith it:             {actual_line}"
        ),
    })
}

/// The report of each slot: whether it may be larger under the library, and the names in its mask.
type Masks<'a> = BTreeMap<&'a str, (bool, BTreeSet<&'a str>)>;

/// Parses a line such as `looks: 1=IN|OUT 3~OUT`.
fn masks(line: &str) -> Option<Masks<'_>> {
    let words = line.strip_prefix("looks:")?.split_whitespace();
    Some(
        words
            .filter_map(|word| {
                let at = word.find(['=', '~'])?;
                let names = word[at + 1..].split('|').filter(|name| !name.is_empty());
                Some((&word[..at], (word[at..].starts_with('~'), names.collect())))
            })
            .collect(),
    )
}

/// Returns whether a line is an allowed variant of the other. A member that was handed back may report an edge again:
/// the kernel's set, to which it is then added, cannot know that the program has handled it.
fn allowed(expected: &str, actual: &str) -> bool {
    if expected == actual {
        return true;
    }
    let (Some(expected), Some(actual)) = (masks(expected), masks(actual)) else {
        return false;
    };
    let none = (false, BTreeSet::new());
    let slots: BTreeSet<&str> = expected.keys().chain(actual.keys()).copied().collect();
    slots.iter().all(|slot| {
        let (expected, actual) = (
            expected.get(slot).unwrap_or(&none),
            actual.get(slot).unwrap_or(&none),
        );
        expected == actual || expected.0 && actual.0 && expected.1.is_subset(&actual.1)
    })
}

/// Returns whether the lines differ only in the end of a connection that was duplicated and then closed with unread
/// bytes. The kernel then resets it. The library has taken the bytes from the kernel, which ends it in order
/// (docs/reference/preload.md, "Differences from a plain run").
fn ends_without_reset(before: &[&str], expected: &str, actual: &str) -> bool {
    let Some(slot) = expected.strip_suffix(" its peer got -, then ECONNRESET, wrong at -1") else {
        return false;
    };
    let opened = format!("{slot} opened");
    let from = before.iter().rposition(|line| *line == opened).unwrap_or(0);
    let happened = |what: &str| before[from..].contains(&&*format!("{slot} {what}"));
    actual == format!("{slot} its peer got all, then the end, wrong at -1")
        && happened("duplicated")
        && happened("closed")
}

/// Returns the slot that two lines are about, or the first slot whose masks differ.
fn slot_of(expected: &str, actual: &str) -> String {
    if let (Some(expected), Some(actual)) = (masks(expected), masks(actual)) {
        let mut slots = expected.keys().chain(actual.keys());
        let differs = slots.find(|slot| expected.get(*slot) != actual.get(*slot));
        return differs.map_or_else(String::new, |slot| (*slot).to_owned());
    }
    let line = if expected.starts_with(|c: char| c.is_ascii_digit()) {
        expected
    } else {
        actual
    };
    line.chars().take_while(char::is_ascii_digit).collect()
}

/// Returns the calls on a slot and the events that it reported, since it was last opened.
fn history(lines: &[&str], slot: &str) -> String {
    let opened = format!("{slot} opened");
    let from = lines.iter().rposition(|line| *line == opened).unwrap_or(0);
    let mut text = String::new();
    for line in &lines[from..] {
        if let Some(masks) = masks(line) {
            let reported = masks.get(slot).map_or_else(
                || "-".to_owned(),
                |(_, names)| names.iter().copied().collect::<Vec<_>>().join("|"),
            );
            text += &format!("        reported: {reported}\n");
        } else if line.starts_with(&format!("{slot} ")) {
            text += &format!("  {line}\n");
        }
    }
    text
}

#[test]
fn a_mask_that_differs_is_a_difference() {
    assert!(allowed("looks: 1=IN 2=OUT", "looks: 1=IN 2=OUT"));
    assert!(!allowed("looks: 1=IN", "looks: 1=IN|OUT"));
    assert!(!allowed("looks: 1=IN", "looks:"));
    assert!(!allowed("looks:", "looks: 3=HUP"));
    assert!(!allowed("1 read 5 of 5", "1 read 4 of 5"));
}

#[test]
fn a_member_just_handed_back_may_report_more_and_not_less() {
    assert!(allowed("looks: 1~", "looks: 1~OUT"));
    assert!(allowed("looks: 1~IN", "looks: 1~IN|OUT"));
    assert!(!allowed("looks: 1~IN", "looks: 1~OUT"));
    assert!(!allowed("looks: 1~IN 2=IN", "looks: 1~IN|OUT"));
}

#[test]
fn a_sequence_that_ends_early_is_a_difference() {
    let transcript = "seed 7\n0 opened\nlooks: 0=OUT\nseed 8\n1 opened\ndone\n";
    let seven = of_seed(transcript, 7);
    assert_eq!(seven, ["0 opened", "looks: 0=OUT"]);
    assert_eq!(of_seed(transcript, 8), ["1 opened"]);
    assert!(first_difference(7, &seven, &seven).is_none());
    let difference = first_difference(7, &seven, &seven[..1]).unwrap();
    assert!(
        difference.text.ends_with("nothing more"),
        "{}",
        difference.text
    );
}
