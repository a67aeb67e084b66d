//! How long a file, a function and a line may be.

use crate::repo::{Finding, Repo};
use crate::source::{Source, find_word, ident_after, item_end, line_of};

const FILE_LINES: usize = 1_000;
/// Above this a file's header says why it is one file.
const FILE_LINES_UNEXPLAINED: usize = 600;
/// What such a header contains.
const EXPLANATION: &str = "long because";
const DOCUMENT_LINES: usize = 300;
const FUNCTION_LINES: usize = 70;
const COLUMNS: usize = 120;

/// Functions that were longer when the rule came: file, name, lines. They may shrink, and then the entry goes;
/// nothing is added here.
const LONG_FUNCTIONS: [(&str, &str, usize); 0] = [];

pub(crate) fn files(repo: &Repo) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, source) in repo.sources() {
        let lines = source.text.lines().count();
        if lines > FILE_LINES {
            let says =
                format!("{lines} lines, at most {FILE_LINES}; split it where a second idea begins");
            found.push(Finding::new(path, lines, says));
        } else if lines > FILE_LINES_UNEXPLAINED && !source.header().contains(EXPLANATION) {
            let says = format!(
                "{lines} lines; split it where a second idea begins, or say in the header \
                 \"This file is {EXPLANATION} …\""
            );
            found.push(Finding::new(path, lines, says));
        }
    }
    for (path, text) in repo
        .documents()
        .filter(|(path, _)| path.starts_with("docs/"))
    {
        let lines = text.lines().count();
        if lines > DOCUMENT_LINES {
            let says =
                format!("{lines} lines, at most {DOCUMENT_LINES}; a document answers one question");
            found.push(Finding::new(path, lines, says));
        }
    }
    found
}

pub(crate) fn functions(repo: &Repo) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut known = Vec::new();
    for (path, source) in repo.sources() {
        for (name, line, lines) in functions_of(source) {
            let listed = LONG_FUNCTIONS
                .iter()
                .find(|entry| entry.0 == path && entry.1 == name);
            let allowed = listed.map_or(FUNCTION_LINES, |entry| entry.2);
            if lines > allowed {
                let says = format!(
                    "`{name}` has {lines} lines, at most {allowed}; push the loops down into helpers"
                );
                found.push(Finding::new(path, line, says));
            }
            if let Some(entry) = listed.filter(|_| lines > FUNCTION_LINES) {
                known.push(entry);
            }
        }
    }
    for entry in LONG_FUNCTIONS.iter().filter(|entry| !known.contains(entry)) {
        let says = format!(
            "`{}` is short now; take it out of LONG_FUNCTIONS in the tidy test",
            entry.1
        );
        found.push(Finding::new(entry.0, 1, says));
    }
    found
}

pub(crate) fn columns(repo: &Repo) -> Vec<Finding> {
    let mut found = Vec::new();
    let checked = |path: &str| {
        path.ends_with(".rs")
            || path.ends_with(".toml")
            || path.starts_with("ci/")
            || path.starts_with(".ci/")
    };
    for (path, text) in repo.texts().filter(|(path, _)| checked(path)) {
        for (index, line) in text.lines().enumerate() {
            let columns = line.chars().count();
            // An address can't be broken.
            if columns > COLUMNS && !line.contains("://") {
                let says = format!("{columns} columns, at most {COLUMNS}; break the line");
                found.push(Finding::new(path, index + 1, says));
            }
        }
    }
    found
}

/// The functions with a body: name, first line, number of lines.
fn functions_of(source: &Source) -> Vec<(String, usize, usize)> {
    let code = &source.code;
    let mut found = Vec::new();
    for at in find_word(code, "fn") {
        let name = ident_after(code, at + 2);
        // `fn(u8)` is a type, `fn f();` has no body.
        let end = item_end(code, at);
        if name.is_empty() || !code[..end].ends_with('}') {
            continue;
        }
        let (first, last) = (line_of(code, at), line_of(code, end - 1));
        found.push((name.to_owned(), first, last - first + 1));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function_of(lines: usize) -> String {
        format!(
            "//! H.\nfn a() {{}}\nfn long(f: fn(u8) -> [u8; 2])\nwhere\n{}{{\n}}\n",
            "\n".repeat(lines - 4)
        )
    }

    #[test]
    fn a_function_of_71_lines_is_found() {
        let repo = Repo::planted(&[("crates/a/src/lib.rs", &function_of(71))]);
        let found = functions(&repo);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 3);
        assert!(found[0].says.contains("`long` has 71 lines"));
        assert_eq!(functions(&Repo::planted(&[("a.rs", &function_of(70))])), []);
    }

    #[test]
    fn a_long_file_is_found_unless_its_header_says_why() {
        let long = |header: &str, lines: usize| format!("//! {header}\n{}", "\n".repeat(lines - 1));
        let found =
            |header: &str, lines| files(&Repo::planted(&[("a.rs", &long(header, lines))])).len();
        assert_eq!(found("A.", 600), 0);
        assert_eq!(found("A.", 601), 1);
        assert_eq!(found("A. This file is long because of B.", 1_000), 0);
        assert_eq!(found("A. This file is long because of B.", 1_001), 1);
    }

    #[test]
    fn a_line_is_measured_in_characters() {
        let found = |line: &str| columns(&Repo::planted(&[("a.rs", line)])).len();
        assert_eq!(found(&"é".repeat(120)), 0);
        assert_eq!(found(&"é".repeat(121)), 1);
        assert_eq!(found(&format!("// https://{}", "a".repeat(121))), 0);
    }
}
