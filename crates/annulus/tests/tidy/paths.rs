//! Every path of this repository that a comment, a document or a script names leads somewhere.

use crate::modules::normal;
use crate::repo::{Finding, Repo};
use crate::source::line_of;

/// A path that starts with one of these is ours, whatever it ends in.
const OUR_FOLDERS: [&str; 7] = [
    ".ci",
    "ci",
    "crates",
    "docs",
    "fuzz",
    "other-runtimes",
    "runs",
];

/// Anything that ends in one of these is meant to be a file of ours.
const OUR_ENDINGS: [&str; 3] = [".md", ".rs", ".toml"];

/// Where a short path such as `driver/slot.rs` may start.
const ROOTS: [&str; 4] = ["", "crates/", "crates/annulus/", "crates/annulus/src/"];

/// Files whose paths belong to their own time.
const HISTORY: [&str; 1] = ["CHANGELOG.md"];

pub(crate) fn paths(repo: &Repo) -> Vec<Finding> {
    let mut found = Vec::new();
    for (file, text) in repo.texts().filter(|(file, _)| !HISTORY.contains(file)) {
        let Some(prose) = prose(repo, file, text) else {
            continue;
        };
        for (at, named) in candidates(prose) {
            if !leads_somewhere(repo, file, named) {
                let says = format!("`{named}` is not in the repository; name what is there now");
                found.push(Finding::new(file, line_of(prose, at), says));
            }
        }
    }
    found
}

/// What a person reads in a file: the comments of Rust, the whole of documents, scripts and manifests.
fn prose<'a>(repo: &'a Repo, file: &str, text: &'a str) -> Option<&'a str> {
    if let Some(source) = repo.source(file) {
        return Some(&source.comments);
    }
    let script = file.starts_with("ci/") || file.starts_with(".ci/");
    (script || file.ends_with(".md") || file.ends_with(".toml")).then_some(text)
}

/// The words of a text that look like a path of ours, with their place.
fn candidates(text: &str) -> Vec<(usize, &str)> {
    let part_of_path = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(start) = text[from..].find(part_of_path).map(|at| from + at) {
        let end = text[start..]
            .find(|c| !part_of_path(c))
            .map_or(text.len(), |length| start + length);
        from = end;
        let mut word = text[start..end].trim_end_matches(['.', '-']);
        // `runs/<date>/`, `driver/*.rs`, `$HOME/x`, `https://x/y`: only the folder before a placeholder is named.
        let placeholder = text[end..].starts_with(['<', '*', '{', '$', '…', ':'])
            && !text[end..].starts_with(": ");
        let continued = text[..start].ends_with(['>', '*', '}', '$', '~', ':', '@', '…']);
        if placeholder && word.contains('/') {
            word = &word[..word.rfind('/').unwrap_or(0)];
        }
        if !continued && is_ours(word) {
            found.push((start, word));
        }
    }
    found
}

fn is_ours(word: &str) -> bool {
    if word.starts_with('/') || word.contains("//") || word.len() < 4 {
        return false;
    }
    let bare = word.trim_start_matches("../").trim_start_matches("./");
    let first = bare.split('/').next().unwrap_or_default();
    let folder = bare.contains('/') && OUR_FOLDERS.contains(&first);
    let stem = |ending: &str| {
        bare.strip_suffix(ending)
            .is_some_and(|stem| !stem.is_empty())
    };
    // The documentation service, by its domain or as a table of a manifest.
    let service = bare == "docs.rs" || bare.ends_with(".docs.rs");
    folder || (!service && OUR_ENDINGS.iter().any(|ending| stem(ending)))
}

fn leads_somewhere(repo: &Repo, file: &str, named: &str) -> bool {
    let beside = file.rsplit_once('/').map_or("", |(folder, _)| folder);
    let own_crate: String = file
        .split('/')
        .take(2)
        .map(|part| format!("{part}/"))
        .collect();
    let own = [
        format!("{beside}/"),
        own_crate.clone(),
        format!("{own_crate}src/"),
    ];
    let roots = ROOTS.iter().copied().chain(own.iter().map(String::as_str));
    let mut places = roots.map(|root| normal(&format!("{root}{named}")));
    places.any(|place| repo.exists(&place)) || (!named.contains('/') && repo.has_file_named(named))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named_in(text: &str) -> Vec<String> {
        let repo = Repo::planted(&[
            ("README.md", text),
            ("docs/SAFETY.md", ""),
            (
                "crates/annulus/src/op/nop.rs",
                "// See gone.rs; `super::here.rs`",
            ),
            ("ci/test", "# docs/SAFETY.md"),
        ]);
        paths(&repo)
            .into_iter()
            .filter(|finding| finding.file == "README.md")
            .map(|finding| finding.says)
            .collect()
    }

    #[test]
    fn a_path_that_leads_nowhere_is_found() {
        assert!(named_in("See [it](docs/GONE.md#x).")[0].starts_with("`docs/GONE.md`"));
        assert_eq!(named_in("`op/gone.rs`, `ci/gone` and gone.toml").len(), 3);
    }

    #[test]
    fn a_path_may_be_short_or_partly_a_placeholder() {
        assert_eq!(
            named_in("docs/SAFETY.md#lent, `op/nop.rs`, nop.rs, `ci/test`, crates/annulus/"),
            [""; 0]
        );
        assert_eq!(
            named_in("`op/<name>.rs`, `docs/*.md`, `crates/{a,b}`"),
            [""; 0]
        );
        assert_eq!(
            named_in("https://docs.rs/x/y.md, /proc/a.md, and/or, a/b.c, 1.5, e.g."),
            [""; 0]
        );
    }

    #[test]
    fn comments_are_read_too() {
        let repo = Repo::planted(&[(
            "crates/a/src/lib.rs",
            "// see b.rs\nconst A: &str = \"c.rs\";",
        )]);
        let found = paths(&repo);
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].to_string(),
            "crates/a/src/lib.rs:1: `b.rs` is not in the repository; name what is there now"
        );
    }
}
