//! Terms that this project used to have for known things, each with the term to use.

use std::sync::LazyLock;

use regex::{Regex, RegexSet};

use crate::repo::{Findings, Repo};

/// A pattern, and the term to use. A pattern with a capital letter matches a whole identifier exactly. Any other one
/// matches whole words in either case, also as a part of an identifier: `turn` matches `Turn`, `turn_of` and "a turn".
#[rustfmt::skip]
const RETIRED: &[(&str, &str)] = &[
    ("nudg(e|es|ed|ing)|rous(e|es|ed|ing)", "notifier, unpark"),
    ("annulus-late|watchdogs?", "annulus-flush, flush thread"),
    ("annulus[_-](adapters|peers)", "annulus-hyper, annulus-observe or a feature of annulus; annulus-baselines"),
    ("attend(s|ed|ing|ant|ance)?|set_host", "register; set_ring_executor"),
    ("company|bundled", "batch; batching delay"),
    ("cure[sd]?", "hint, remedy"),
    ("envelopes?|leftovers?", "message header; unread buffer"),
    ("for[ _-]ever|keep_for_ever", "indefinitely, permanently; leak"),
    ("hand(s|ed|ing)?[ _-]overs?", "submit; hand-off between threads"),
    ("harvest(s|ed|ing)?", "reap; completion batch"),
    ("hurr(y|ies|ied|ying)|inline_run", "wake_for_deadline; suspend batching; coop budget"),
    ("in[ _-]hand", "buffered"),
    ("lanes?", "DriverHandle; Worker"),
    ("(own[ _])?look(s|ed|ing)?[ _-]?outs?", "busy-poll, spin"),
    ("of ours|whoever|likewise", "the library's; the caller, the thread that; the statement again"),
    ("orphan(s|ed)?", "abandoned operation; draining, half-closed connection"),
    ("overdue|kin", "expired; sibling"),
    ("puts?[ _](aside|off)", "defer"),
    ("rungs?|ladders?", "set-up mode, SetupMode"),
    ("so[ _]many", "N, this number of"),
    ("spill(s|ed|ing|_all)?", "copy out"),
    ("strangers?", "foreign thread; another peer"),
    ("stray(s|ed|ing)?|is_stray", "cancelled by thread exit"),
    ("meters?|tracts?", "counters; registered region"),
    ("contenders?|tenants?|trials?", "variant (of a benchmark); client of the shared ring; probe"),
    ("turn(s|ed|ing)? (a|the|its) (ring|driver)s?|turn of (the|a) (core|driver|loop|worker)|executor turns|join_turning", "poll, drive; poll cycle"),
    ("touched_by_a_stranger|is_nobodys|knows_no_more_of", "on_foreign_thread; clear_owner; forget_reported"),
    // Exact names.
    ("EngineBackend|CoreBackend|OwnDriver", "BackendInUse; ThreadlessDriver"),
    ("Receiving1|net::Receiv(e|ing)|ReceiveExact", "RecvState, Recv, RecvStream, RecvExact"),
    ("Alarms?|crate::alarm", "Notifier"),
    ("RunsOn|CallAnswer", "the types of annulus::support"),
    ("crate::(leave|rests|room|orphans|ours|pace|ended|burst|answers|turn|caller|sealed)", "the modules of annulus-preload; see docs/internals/architecture.md"),
    ("SAFETY: [Aa]s above|SAFETY:.* passed on", "the reason, with the name of the invariant"),
    ("(struct|enum|trait|type) (Alarm|Answer|Asked|Attendance|Behaviour|Beside|Ear|Envelope|Found|Given|Held|Here|Known|Lane|Leftover|Meter|Receiving|Orphan|Place|Port|Said|Seen|Shots|Tenant|Told|Tract|Trial|Tried|Turned|Wanted|Words)", "the noun for the value: Completion, Request, Slot, Report, Findings, Options, …"),
];

/// History, evidence, and this list keep the words they were written with.
const EXEMPT: &str = "CHANGELOG.md runs/ crates/annulus-testing/tests/tidy/ Cargo.lock";

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
        // A type is found by its exact name.
        assert_eq!(found("docs/A.md", "an Alarm, a `crate::alarm`"), 1);
        assert_eq!(found("docs/A.md", "alarm(2), AlarmClock, SIGALRM"), 0);
    }
}
