//! What the documents promise: commands that exist, traps that have their test, nothing from outside.

use std::collections::BTreeSet;

use crate::repo::{Finding, Repo};
use crate::source::{find_word, ident_after, line_of};

/// Where the tool's commands and options are defined: in this file, and in those of the folder of that name.
const ARGUMENTS: &str = "crates/annulus-cli/src/args";
const SAFETY: &str = "docs/SAFETY.md";

/// How a document calls the tool.
const CALLS: [&str; 3] = ["annulus ", "-p annulus-cli -- ", "target/release/annulus "];

/// Places outside the repository that mean something on one machine only. In halves, so that this list does not
/// find itself.
const PRIVATE: [(&str, &str); 2] = [("../", "shared"), ("/wo", "rk/")];

/// Every `annulus …` command line in a document uses subcommands and options that the tool has.
pub(crate) fn commands(repo: &Repo) -> Vec<Finding> {
    let sources = repo
        .texts()
        .filter(|(path, _)| path.starts_with(ARGUMENTS))
        .map(|(_, text)| text);
    let arguments = sources.collect::<Vec<_>>().join("\n");
    if arguments.is_empty() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (path, text) in repo.documents() {
        for (line, command) in command_lines(text) {
            let mut words = command
                .split_whitespace()
                .map(|word| word.trim_matches(['`', '[', ']', '"', '\'']));
            let subcommands: Vec<&str> = words
                .clone()
                .take_while(|word| is_subcommand(word))
                .collect();
            for name in subcommands
                .iter()
                .take(2)
                .filter(|name| !has_name(&arguments, name))
            {
                let says = format!(
                    "`annulus {}` does not exist; {ARGUMENTS} knows no `{name}`",
                    subcommands.join(" ")
                );
                found.push(Finding::new(path, line, says));
            }
            let ours = words
                .by_ref()
                .take_while(|word| *word != "--" && *word != "|" && *word != "#");
            for option in ours.filter_map(|word| word.strip_prefix("--")) {
                let name = option.split('=').next().unwrap_or(option);
                if !has_name(&arguments, name) {
                    let says = format!("`annulus` has no option `--{name}`; see {ARGUMENTS}");
                    found.push(Finding::new(path, line, says));
                }
            }
        }
    }
    found
}

/// The command lines of a document: what follows the tool's name in a code block or between backticks.
fn command_lines(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut block = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            block = !block;
            continue;
        }
        let spans: Vec<&str> = if block {
            vec![line.trim()]
        } else {
            line.split('`').skip(1).step_by(2).collect()
        };
        for span in spans {
            let span = span.trim_start_matches("$ ");
            let call = CALLS.iter().find_map(|call| match *call {
                "annulus " => span.strip_prefix(call),
                call => span.split_once(call).map(|(_, rest)| rest),
            });
            found.extend(call.map(|call| (index + 1, call)));
        }
    }
    found
}

/// A word that may be a subcommand: small letters, before any option or value.
fn is_subcommand(word: &str) -> bool {
    !word.is_empty()
        && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-')
        && !word.starts_with('-')
}

/// Whether the text of the argument parser knows a name: as a literal, as an option in a help text, or as the
/// field or variant that a derived parser turns into it.
fn has_name(arguments: &str, name: &str) -> bool {
    let field = name.replace('-', "_");
    let variant: String = name.split('-').map(capitalised).collect();
    let written =
        arguments.contains(&format!("\"{name}\"")) || arguments.contains(&format!("--{name}"));
    written
        || [field, variant]
            .iter()
            .any(|word| !find_word(arguments, word).is_empty())
}

fn capitalised(word: &str) -> String {
    let mut letters = word.chars();
    letters
        .next()
        .map(|first| first.to_ascii_uppercase())
        .into_iter()
        .chain(letters)
        .collect()
}

/// A kernel trap named in a comment ("trap 14") has its row in the table of traps.
pub(crate) fn traps(repo: &Repo) -> Vec<Finding> {
    let rows = repo.text(SAFETY).unwrap_or_default();
    let mut found = Vec::new();
    for (path, source) in repo.sources() {
        let named = ["trap", "Trap", "traps", "Traps"].iter().flat_map(|word| {
            find_word(&source.comments, word)
                .into_iter()
                .map(move |at| at + word.len())
        });
        for at in named {
            for number in numbers(&source.comments[at..]) {
                if !rows
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
pub(crate) fn trap_rows(repo: &Repo) -> Vec<Finding> {
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
                let says =
                    format!("there is no function `{name}`; name the test that is there now");
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

/// Nothing that is committed leads out of the repository.
pub(crate) fn private_places(repo: &Repo) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in repo.texts() {
        for (front, back) in PRIVATE {
            let place = format!("{front}{back}");
            for (at, _) in text.match_indices(&place) {
                let says = format!(
                    "`{place}` exists on one machine only; write the fact down here, or leave it out"
                );
                found.push(Finding::new(path, line_of(text, at), says));
            }
        }
    }
    found
}

/// What a merge leaves where nobody has decided.
pub(crate) fn conflicts(repo: &Repo) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in repo.documents() {
        for (index, line) in text.lines().enumerate() {
            if line.starts_with(&"<".repeat(7)) || line.starts_with(&">".repeat(7)) {
                found.push(Finding::new(path, index + 1, "an undecided merge"));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARGS: (&str, &str) = (
        "crates/annulus-cli/src/args.rs",
        "enum Command { Bench(Bench) }\nstruct Bench { block_size: u32 }\n\
         match x { \"file\" => {} }\n/// --json FILE\n",
    );

    fn commands_in(readme: &str) -> Vec<String> {
        let found = commands(&Repo::planted(&[ARGS, ("README.md", readme)]));
        found.into_iter().map(|finding| finding.says).collect()
    }

    #[test]
    fn a_command_that_does_not_exist_is_found() {
        assert_eq!(
            commands_in("`annulus bench file --block-size 4k --json out.json`"),
            [""; 0]
        );
        assert!(
            commands_in("```\n$ annulus doctor   # can it?\n```")[0].contains("`annulus doctor`")
        );
        assert!(
            commands_in("```\ncargo run -p annulus-cli -- bench net\n```")[0]
                .contains("`annulus bench net`")
        );
        assert!(commands_in("`annulus bench file --sise=1`")[0].contains("`--sise`"));
    }

    #[test]
    fn prose_is_no_command() {
        assert_eq!(
            commands_in("annulus gone, and `cargo test --gone`, and `annulus`"),
            [""; 0]
        );
        assert_eq!(commands_in("`annulus bench -- prog --its-own`"), [""; 0]);
    }

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
        let says: Vec<_> = traps(&repo)
            .into_iter()
            .map(|finding| finding.says)
            .collect();
        assert_eq!(says.len(), 1);
        assert!(says[0].starts_with("trap 6 "));
        let lines: Vec<_> = trap_rows(&repo)
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

    #[test]
    fn a_place_outside_is_found() {
        let found = |text: &str| private_places(&Repo::planted(&[("docs/A.md", text)])).len();
        assert_eq!(found(&format!("see {}{}/x", "../", "shared")), 1);
        assert_eq!(found("see ../README.md, the work/ done"), 0);
    }

    #[test]
    fn an_undecided_merge_is_found() {
        let text = format!(
            "# A\n{} HEAD\nB\n=======\nC\n{} a\n",
            "<".repeat(7),
            ">".repeat(7)
        );
        assert_eq!(conflicts(&Repo::planted(&[("docs/A.md", &text)])).len(), 2);
        let quoted = "# A\n=======\n> > quoted\n";
        assert_eq!(conflicts(&Repo::planted(&[("docs/A.md", quoted)])), []);
    }
}
