//! Terms that this project used to have for known things, each with the term to use.

use std::sync::LazyLock;

use regex::{Regex, RegexSet};

use crate::repo::{Findings, Repo};

/// A pattern, and the term to use. A pattern with a capital letter matches a whole identifier exactly. Any other one
/// matches whole words in either case, also as a part of an identifier: `turn` matches `Turn`, `turn_of` and "a turn".
#[rustfmt::skip]
const RETIRED: &[(&str, &str)] = &[
    // Words.
    ("(own[ _])?look(s|ed|ing)?[ _-]?outs?", "busy-poll; spin"),
    ("company", "batch; batching delay"),
    ("kin", "sibling"),
    ("leftovers?", "unread buffer"),
    ("overdue", "expired"),
    ("tenants?", "client of the shared ring"),
    ("annulus-late|watchdogs?", "flush thread, annulus-flush"),
    ("attend(s|ed|ing|ance)?", "register"),
    ("hurr(y|ies|ied|ying)", "wake_for_deadline; suspend batching"),
    ("in[ _-]hand", "buffered"),
    ("inline_run", "coop budget"),
    ("envelopes?", "message header"),
    ("keep_for_ever", "leak"),
    ("meters?", "counters"),
    ("nudg(e|es|ed|ing)", "notifier; unpark"),
    ("put[ _](aside|off)", "deferred"),
    ("rous(e|es|ed|ing)", "wake, unpark"),
    ("spill(s|ed|ing)?", "copy out"),
    ("strangers?", "foreign thread"),
    ("tracts?", "registered region"),
    ("turned_by|turn_of|join_turning|LaneThread", "poll, drive"),
    // Types and modules.
    ("Alarms?|crate::alarm", "notifier"),
    ("(struct|enum|type|trait) (Attendance|Beside|Host|Known|Leftover|Meter|Orphan|Tenant|Tract|Turned|Words)", "the name of the thing; see docs/ARCHITECTURE.md"),
    ("touched_by_a_stranger|is_nobodys|knows_no_more_of", "on_foreign_thread; clear_owner; forget_reported"),
    ("annulus[_-]peers", "annulus-baselines"),
];

/// History, evidence, and this list keep the words they were written with.
const EXEMPT: &str = "CHANGELOG.md runs/ crates/annulus/tests/tidy/ Cargo.lock";

/// An entry of [`RETIRED`].
struct Term {
    exact: bool,
    pattern: Regex,
    instead: &'static str,
}

fn term(&(term, instead): &(&str, &'static str)) -> Term {
    let exact = term.contains(char::is_uppercase);
    let pattern = match exact {
        true => format!(r"\b({term})\b"),
        false => format!(r"(?i)(?:^|[^a-z0-9])({term})(?:$|[^a-z0-9])"),
    };
    let pattern = Regex::new(&pattern).unwrap();
    Term {
        exact,
        pattern,
        instead,
    }
}

pub(crate) fn terms(repo: &Repo, found: &mut Findings) {
    static TERMS: LazyLock<Vec<Term>> = LazyLock::new(|| RETIRED.iter().map(term).collect());
    // One pass over a line for all terms.
    static ANY: LazyLock<RegexSet> =
        LazyLock::new(|| RegexSet::new(TERMS.iter().map(|term| term.pattern.as_str())).unwrap());
    let checked = |path: &str| !EXEMPT.split(' ').any(|exempt| path.starts_with(exempt));
    for (path, text) in repo.texts().filter(|(path, _)| checked(path)) {
        for (index, line) in text.lines().enumerate() {
            let words = spaced(line);
            if !ANY.is_match(line) && !ANY.is_match(&words) {
                continue;
            }
            for term in &*TERMS {
                let line = if term.exact { line } else { &words };
                if let Some(word) = term.pattern.captures(line) {
                    let says = format!("`{}` is retired; write: {}", &word[1], term.instead);
                    found.add(path, index + 1, says);
                }
            }
        }
    }
}

/// A line with a space before each capital that follows a small letter, so that `RingTurn` holds the word `Turn`.
fn spaced(line: &str) -> String {
    let mut spaced = String::with_capacity(line.len() + 8);
    let mut small = false;
    for letter in line.chars() {
        if small && letter.is_ascii_uppercase() {
            spaced.push(' ');
        }
        small = letter.is_ascii_lowercase();
        spaced.push(letter);
    }
    spaced
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::planted;

    #[test]
    fn a_retired_term_is_found_in_code_and_text_but_not_in_history() {
        let found = |path: &str, text: &str| planted(terms, &[(path, text)]).len();
        let code = "struct RingOwn_look_out;\nlet own_look_out = 1;\n";
        assert_eq!(found("crates/a/src/b.rs", code), 2);
        assert_eq!(found("docs/A.md", "The own_look_outs.\n"), 1);
        assert_eq!(found("docs/A.md", "known_look_outing\n"), 0);
        assert_eq!(found("CHANGELOG.md", "own_look_out\n"), 0);
    }

    #[test]
    fn a_retired_type_is_found_by_its_exact_name() {
        let found = |text: &str| planted(terms, &[("docs/A.md", text)]).len();
        assert_eq!(found("an Alarm, a `crate::alarm`"), 1);
        assert_eq!(found("alarm(2), AlarmClock, SIGALRM"), 0);
    }
}
