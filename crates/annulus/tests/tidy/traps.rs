//! The table of kernel traps in docs/SAFETY.md: each trap that the code names has a row, and each row names a test.

use std::collections::BTreeSet;

use crate::repo::{Finding, Repo};
use crate::source::{find_word, ident_after, line_of};

const SAFETY: &str = "docs/SAFETY.md";

/// A kernel trap named in a comment ("trap 14") has its row in the table of traps.
pub(crate) fn named(repo: &Repo) -> Vec<Finding> {
    let table = repo.text(SAFETY).unwrap_or_default();
    let mut found = Vec::new();
    for (path, source) in repo.sources() {
        let named = ["trap", "Trap", "traps", "Traps"].iter().flat_map(|word| {
            find_word(&source.comments, word)
                .into_iter()
                .map(move |at| at + word.len())
        });
        for at in named {
            for number in numbers(&source.comments[at..]) {
                if !table
                    .lines()
                    .any(|line| line.starts_with(&format!("| {number} |")))
                {
                    let says = format!(
                        "trap {number} is not in the table of {SAFETY}; add its row, or say what happens"
                    );
                    found.push(Finding::new(path, line_of(&source.comments, at), says));
                }
            }
        }
    }
    found
}

/// The numbers of ` 14` or ` 1, 5 and 6`.
fn numbers(text: &str) -> Vec<u32> {
    let words = text
        .split([' ', ',', ')', '(', '.', ':', ';', '\n'])
        .filter(|word| !word.is_empty() && *word != "and");
    words.map_while(|word| word.parse().ok()).collect()
}

/// Each row of the table of traps names a test, or says why there is none.
pub(crate) fn rows(repo: &Repo) -> Vec<Finding> {
    let document = repo.text(SAFETY).unwrap_or_default();
    let mut found = Vec::new();
    for (index, line) in document.lines().enumerate() {
        let first = line.split('|').nth(1).unwrap_or_default().trim();
        let last = line
            .trim_end()
            .trim_end_matches('|')
            .rsplit('|')
            .next()
            .unwrap_or_default();
        if first.parse::<u32>().is_ok() && !last.contains("no test:") && sentences(last).is_empty()
        {
            let says = "a trap without a test; name one that would fail, or write \"no test: why\"";
            found.push(Finding::new(SAFETY, index + 1, says));
        }
    }
    found
}

/// A test that a document names by its sentence exists.
pub(crate) fn tests_named(repo: &Repo) -> Vec<Finding> {
    let defined: BTreeSet<&str> = repo
        .sources()
        .flat_map(|(_, source)| {
            find_word(&source.code, "fn")
                .into_iter()
                .map(|at| ident_after(&source.code, at + 2))
        })
        .collect();
    let mut found = Vec::new();
    for (path, text) in repo.documents() {
        for (index, line) in text.lines().enumerate() {
            for name in sentences(line)
                .into_iter()
                .filter(|name| !defined.contains(name))
            {
                let says = format!("there is no function `{name}`; name the test that exists now");
                found.push(Finding::new(path, index + 1, says));
            }
        }
    }
    found
}

/// The words between backticks that are sentences: small letters and at least four underscores.
fn sentences(line: &str) -> Vec<&str> {
    let plain = |word: &&str| {
        word.bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    let words = line.split('`').skip(1).step_by(2).filter(plain);
    words
        .filter(|word| word.matches('_').count() >= 4)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trap_without_its_row_or_its_test_is_found() {
        let repo = Repo::planted(&[
            (
                "crates/a/src/lib.rs",
                "// Traps 1, 5 and 6. A trap 7x. Trap 8: it.\nlet trap = \"trap 9\";",
            ),
            (
                SAFETY,
                "| 1 | a | `a_test_that_is_a_sentence` |\n| 5 | b | no test: it waits |\n| 8 | c | soon |",
            ),
        ]);
        let says: Vec<_> = named(&repo)
            .into_iter()
            .map(|finding| finding.says)
            .collect();
        assert_eq!(says.len(), 1);
        assert!(says[0].starts_with("trap 6 "));
        let lines: Vec<_> = rows(&repo)
            .into_iter()
            .map(|finding| finding.line)
            .collect();
        assert_eq!(lines, [3]);
        assert_eq!(tests_named(&repo).len(), 1);
    }

    #[test]
    fn a_test_named_in_a_document_exists() {
        let code = ("crates/a/src/lib.rs", "fn a_read_at_the_end_is_short() {}");
        let found = |text: &str| tests_named(&Repo::planted(&[code, ("docs/A.md", text)])).len();
        assert_eq!(found("`a_read_at_the_end_is_short` and `read_many_at`"), 0);
        assert_eq!(found("`a_read_at_the_end_is_long`"), 1);
    }
}
