//! Terms that this project used to have for known things, each with the term to use.

use std::sync::LazyLock;

use regex::Regex;

use crate::repo::{Finding, Repo};

/// A pattern, and the term to use. Letters match in either case, and `_` is no word boundary here: `turn` matches
/// `Turn`, `turn_of` and "a turn".
const RETIRED: &[(&str, &str)] = &[("own_look_outs?", "busy_poll")];

/// History, evidence, and this list keep the words they were written with.
const EXEMPT: [&str; 4] = [
    "CHANGELOG.md",
    "runs/",
    "crates/annulus/tests/tidy/",
    "Cargo.lock",
];

pub(crate) fn terms(repo: &Repo) -> Vec<Finding> {
    static PATTERNS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
        let pattern = |&(term, instead): &(&str, &'static str)| {
            let whole = format!(r"(?i)(?:^|[^a-z0-9])({term})(?:$|[^a-z0-9])");
            (Regex::new(&whole).unwrap(), instead)
        };
        RETIRED.iter().map(pattern).collect()
    });
    let mut findings = Vec::new();
    let checked = |path: &str| !EXEMPT.iter().any(|exempt| path.starts_with(exempt));
    for (path, text) in repo.texts().filter(|(path, _)| checked(path)) {
        for (index, line) in text.lines().enumerate() {
            let line = spaced(line);
            for (pattern, instead) in PATTERNS.iter() {
                if let Some(term) = pattern.captures(&line) {
                    let says = format!("`{}` is a retired term; write: {instead}", &term[1]);
                    findings.push(Finding::new(path, index + 1, says));
                }
            }
        }
    }
    findings
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

    #[test]
    fn a_retired_term_is_found_in_code_and_text_but_not_in_history() {
        let found = |path: &str, text: &str| terms(&Repo::planted(&[(path, text)])).len();
        let code = "struct RingOwn_look_out;\nlet own_look_out = 1;\n";
        assert_eq!(found("crates/a/src/b.rs", code), 2);
        assert_eq!(found("docs/A.md", "The own_look_outs.\n"), 1);
        assert_eq!(found("docs/A.md", "known_look_out\n"), 0);
        assert_eq!(found("CHANGELOG.md", "own_look_out\n"), 0);
    }
}
