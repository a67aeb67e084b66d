//! The table of kernel traps in docs/internals/safety.md: each trap that the code names has a row, and each row names a
//! test.

use std::collections::BTreeSet;

use crate::repo::{Findings, Repo};
use crate::source::{find_word, ident_after, line_of};

const SAFETY: &str = "docs/internals/safety.md";

/// Checks that each kernel trap named in a comment ("trap 14") has a row in the table.
pub(crate) fn named(repo: &Repo, found: &mut Findings) {
    let rows: BTreeSet<u32> = repo.text(SAFETY).lines().filter_map(number).collect();
    for (path, source) in repo.sources() {
        for word in ["trap", "Trap", "traps", "Traps"] {
            for at in find_word(&source.comments, word) {
                let named = numbers(&source.comments[at + word.len()..]);
                for number in named.into_iter().filter(|number| !rows.contains(number)) {
                    let says = format!(
                        "trap {number} is not in the table of {SAFETY}; add its row, or describe the problem instead"
                    );
                    found.add(path, line_of(&source.comments, at), says);
                }
            }
        }
    }
}

/// Returns the number of a row of the table.
fn number(line: &str) -> Option<u32> {
    line.strip_prefix('|')?
        .split('|')
        .next()?
        .trim()
        .parse()
        .ok()
}

/// Returns the numbers of ` 14` or ` 1, 5 and 6`.
fn numbers(text: &str) -> Vec<u32> {
    let words = text.split([' ', ',', ')', '(', '.', ':', ';', '\n']);
    let words = words.filter(|word| !word.is_empty() && *word != "and");
    words.map_while(|word| word.parse().ok()).collect()
}

/// Checks that each row of the table names a test, or the reason why there is none.
pub(crate) fn rows(repo: &Repo, found: &mut Findings) {
    for (index, line) in repo.text(SAFETY).lines().enumerate() {
        let last = line.trim_end().trim_end_matches('|').rsplit('|').next();
        let last = last.unwrap_or_default();
        if number(line).is_some() && !last.contains("no test:") && sentences(last).is_empty() {
            let says = "a trap without a test; name one, or write \"no test: REASON\"";
            found.add(SAFETY, index + 1, says);
        }
    }
}

/// Checks that each test that a document names exists.
pub(crate) fn tests_named(repo: &Repo, found: &mut Findings) {
    let functions = |code| {
        let keywords = find_word(code, "fn").into_iter();
        keywords.map(move |at| ident_after(code, at + 2))
    };
    let defined: BTreeSet<&str> = (repo
        .sources()
        .flat_map(|(_, source)| functions(&source.code)))
    .collect();
    for (path, text) in repo.texts().filter(|(path, _)| path.ends_with(".md")) {
        for (index, line) in text.lines().enumerate() {
            for name in sentences(line) {
                if !defined.contains(name) {
                    let says = format!("there is no function `{name}`; name a test that exists");
                    found.add(path, index + 1, says);
                }
            }
        }
    }
}

/// Returns the words between backticks that look like test names: lower case, with at least four underscores.
fn sentences(line: &str) -> Vec<&str> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    let quoted = line.split('`').skip(1).step_by(2);
    let words = quoted.filter(|word| word.bytes().all(plain));
    (words.filter(|word| word.matches('_').count() >= 4)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::{lines, planted};

    #[test]
    fn a_trap_without_its_row_or_its_test_is_reported() {
        let files = [
            (
                "crates/a/src/lib.rs",
                "// Traps 1, 5 and 6. A trap 7x. Trap 8: it.\nlet trap = \"trap 9\";",
            ),
            (
                SAFETY,
                "| 1 | a | `a_test_that_is_a_sentence` |\n| 5 | b | no test: it waits |\n| 8 | c | soon |",
            ),
        ];
        let found = planted(named, &files);
        assert_eq!(found.len(), 1);
        assert!(found[0].says.starts_with("trap 6 "));
        assert_eq!(lines(&planted(rows, &files)), [3]);
        assert_eq!(planted(tests_named, &files).len(), 1);
    }

    #[test]
    fn a_test_named_in_a_document_exists() {
        let code = ("crates/a/src/lib.rs", "fn a_read_at_the_end_is_short() {}");
        let found = |text| planted(tests_named, &[code, ("docs/A.md", text)]).len();
        assert_eq!(found("`a_read_at_the_end_is_short` and `read_many_at`"), 0);
        assert_eq!(found("`a_read_at_the_end_is_long`"), 1);
    }
}
