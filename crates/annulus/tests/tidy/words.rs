//! Words that don't belong into what ships, each with what to write instead.

use crate::modules;
use crate::repo::{Finding, Repo};
use crate::source::{find_word, line_of};

/// Found as written in the code of `src/`, outside tests.
const CALLS: [(&str, &str); 6] = [
    (
        "dbg!",
        "take it out; what is worth seeing is worth a counter in metrics",
    ),
    (
        "todo!",
        "write it, or leave the item out until it has content",
    ),
    (
        "unimplemented!",
        "write it, or return an error that says so",
    ),
    (
        ".unwrap()",
        "return the error, or write the assertion whose message says what is broken",
    ),
    (
        ".expect(",
        "return the error, or write the assertion whose message says what is broken",
    ),
    ("static mut", "use an atomic or a OnceLock"),
];

/// Found as whole words anywhere in a Rust file or script. In halves, so that this list does not find itself.
const MARKS: [(&str, &str, &str); 3] = [
    ("FIX", "ME", "mend it, or write TODO(#issue)"),
    ("X", "XX", "mend it, or write TODO(#issue)"),
    (
        "HA",
        "CK",
        "say in a sentence what is odd and why it must be",
    ),
];

/// Names of files and modules that say nothing.
const NAMES: [(&str, &str); 6] = [
    ("common", "name it after what the users of the file share"),
    ("helpers", "name it after what it helps with"),
    ("legacy", "say which kernel or backend it is for"),
    ("misc", "give each thing its own place"),
    ("util", "name it after what it does"),
    ("utils", "name it after what it does"),
];

pub(crate) fn calls(repo: &Repo) -> Vec<Finding> {
    let tests = modules::only_for_tests(repo);
    let mut found = Vec::new();
    for (path, source) in repo
        .crate_sources()
        .filter(|(path, _)| !tests.iter().any(|test| test == path))
    {
        for (word, instead) in CALLS {
            for (at, _) in source.shipped.match_indices(word) {
                let says = format!("`{word}` in code that ships; {instead}");
                found.push(Finding::new(path, line_of(&source.shipped, at), says));
            }
        }
    }
    found
}

pub(crate) fn marks(repo: &Repo) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in written(repo) {
        for (front, back, instead) in MARKS {
            let word = format!("{front}{back}");
            for at in find_word(&text, &word) {
                found.push(Finding::new(
                    path,
                    line_of(&text, at),
                    format!("`{word}`; {instead}"),
                ));
            }
        }
        for at in find_word(&text, "TODO") {
            if !has_issue(&text[at + "TODO".len()..]) {
                let says = "a TODO without its issue; write TODO(#12), or do it now";
                found.push(Finding::new(path, line_of(&text, at), says));
            }
        }
    }
    found
}

/// A test that is left out says why.
pub(crate) fn ignored_tests(repo: &Repo) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, source) in repo.sources() {
        for (at, _) in source.code.match_indices("#[ignore]") {
            let says = "an ignored test without its reason; write #[ignore = \"why, and which script runs it\"]";
            found.push(Finding::new(path, line_of(&source.code, at), says));
        }
    }
    found
}

pub(crate) fn names(repo: &Repo) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, _) in repo.sources() {
        for (name, instead) in NAMES {
            if path
                .split('/')
                .any(|part| part.trim_end_matches(".rs") == name)
            {
                found.push(Finding::new(
                    path,
                    1,
                    format!("`{name}` says nothing; {instead}"),
                ));
            }
        }
    }
    found
}

/// The code and the comments of Rust files, without literals; scripts whole.
fn written(repo: &Repo) -> impl Iterator<Item = (&str, String)> {
    repo.texts()
        .filter_map(|(path, text)| match repo.source(path) {
            Some(source) => {
                let overlay = source.code.bytes().zip(source.comments.bytes());
                let text = overlay.map(|(code, comment)| if code == b' ' { comment } else { code });
                Some((
                    path,
                    String::from_utf8_lossy(&text.collect::<Vec<_>>()).into_owned(),
                ))
            }
            None => {
                let script =
                    path.starts_with("ci/") || path.starts_with(".ci/") || path.ends_with(".toml");
                script.then(|| (path, text.to_owned()))
            }
        })
}

fn has_issue(after: &str) -> bool {
    let number = after
        .strip_prefix("(#")
        .and_then(|rest| rest.split_once(')'))
        .map(|(number, _)| number);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shipped(code: &str) -> usize {
        calls(&Repo::planted(&[("crates/a/src/lib.rs", code)])).len()
    }

    #[test]
    fn a_panic_in_what_ships_is_found() {
        assert_eq!(
            shipped("fn f() { a.unwrap(); b.expect(\"c\"); dbg!(d); todo!() }"),
            4
        );
        assert_eq!(
            shipped("/// a.unwrap()\nfn f() { a.unwrap_or(\".expect(\") }"),
            0
        );
        assert_eq!(
            shipped("#[cfg(test)]\nmod tests { fn f() { a.unwrap() } }"),
            0
        );
    }

    #[test]
    fn a_file_of_tests_may_panic() {
        let root = ("crates/a/src/lib.rs", "#[cfg(test)]\nmod tests;\nmod b;");
        let tests = ("crates/a/src/tests.rs", "fn f() { a.unwrap() }");
        let shipped = ("crates/a/src/b.rs", "fn f() { a.unwrap() }");
        let found = calls(&Repo::planted(&[root, tests, shipped]));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].file, "crates/a/src/b.rs");
    }

    #[test]
    fn a_mark_without_an_issue_is_found() {
        let found = |text: &str| marks(&Repo::planted(&[("crates/a/src/lib.rs", text)])).len();
        assert_eq!(found(&format!("// {}{}: b", "FIX", "ME")), 1);
        assert_eq!(found(&format!("// {} b", "TODO")), 1);
        assert_eq!(found("// TODO(#12) b"), 0);
        assert_eq!(found(&format!("let a = \"{}\";", "TODO")), 0);
    }

    #[test]
    fn an_ignored_test_without_a_reason_is_found() {
        let found =
            |text: &str| ignored_tests(&Repo::planted(&[("crates/a/tests/b.rs", text)])).len();
        assert_eq!(found("#[test]\n#[ignore]\nfn f() {}"), 1);
        assert_eq!(
            found("#[test]\n#[ignore = \"an hour; ci/stress runs it\"]\nfn f() {}"),
            0
        );
    }

    #[test]
    fn a_name_that_says_nothing_is_found() {
        let found = |path: &str| names(&Repo::planted(&[(path, "")])).len();
        assert_eq!(found("crates/a/src/utils.rs"), 1);
        assert_eq!(found("crates/a/src/legacy/b.rs"), 1);
        assert_eq!(found("crates/a/src/futile.rs"), 0);
    }
}
