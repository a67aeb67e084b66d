//! Every file says what it is, and somebody imports it.

use std::collections::BTreeMap;

use crate::repo::{Finding, Repo};
use crate::source::declared_modules;

pub(crate) fn headers(repo: &Repo) -> Vec<Finding> {
    let headed = |text: &str| {
        text.trim_start()
            .strip_prefix("//!")
            .is_some_and(|rest| !rest.trim().is_empty())
    };
    let bare = repo.sources().filter(|(_, source)| !headed(&source.text));
    let says = "no `//!` header; say what this is, how many there are and who uses it";
    bare.map(|(path, _)| Finding::new(path, 1, says)).collect()
}

pub(crate) fn orphans(repo: &Repo) -> Vec<Finding> {
    let reached = reached(repo);
    let orphans = repo
        .sources()
        .filter(|(path, _)| path.starts_with("crates/") || path.starts_with("other-runtimes/"))
        .filter(|(path, _)| !reached.contains_key(*path));
    orphans
        .map(|(path, _)| {
            Finding::new(
                path,
                1,
                "no `mod` declaration leads here; declare the module or delete the file",
            )
        })
        .collect()
}

/// The files under `src/` that only a test build compiles.
pub(crate) fn only_for_tests(repo: &Repo) -> Vec<String> {
    reached(repo)
        .into_iter()
        .filter(|(_, tests)| *tests)
        .map(|(path, _)| path)
        .collect()
}

/// Every file that the compiler reads, and whether only for tests.
fn reached(repo: &Repo) -> BTreeMap<String, bool> {
    let mut reached = BTreeMap::new();
    let mut next: Vec<(String, bool)> = repo
        .sources()
        .filter(|(path, _)| is_root(path))
        .map(|(path, _)| (path.to_owned(), false))
        .collect();
    while let Some((path, tests)) = next.pop() {
        let known = reached
            .get(&path)
            .is_some_and(|before: &bool| !before || tests);
        let Some(source) = repo.source(&path).filter(|_| !known) else {
            continue;
        };
        for (name, at_path, only_tests) in declared_modules(source) {
            let candidates = candidates(&path, &name, at_path.as_deref());
            if let Some(file) = candidates
                .into_iter()
                .find(|file| repo.source(file).is_some())
            {
                next.push((file, tests || only_tests));
            }
        }
        reached.insert(path, tests);
    }
    reached
}

/// A file that cargo compiles by itself.
fn is_root(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    matches!(
        parts.as_slice(),
        ["crates", _, "build.rs"]
            | ["crates", _, "src", "lib.rs" | "main.rs"]
            | ["other-runtimes", "src", "main.rs"]
            | ["crates", _, "src", "bin", _]
            | ["crates", _, "tests" | "examples" | "benches", _]
            | ["crates", _, "tests" | "examples" | "benches", _, "main.rs"]
    )
}

/// Where `mod name;` in `path` may lead.
fn candidates(path: &str, name: &str, at_path: Option<&str>) -> Vec<String> {
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    if let Some(at_path) = at_path {
        return vec![normal(&format!("{folder}/{at_path}"))];
    }
    let own = if file == "mod.rs" || is_root(path) {
        folder.to_owned()
    } else {
        format!("{folder}/{}", file.trim_end_matches(".rs"))
    };
    vec![format!("{own}/{name}.rs"), format!("{own}/{name}/mod.rs")]
}

/// A path without `.` and `..`.
pub(crate) fn normal(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_header_is_found() {
        let found = |text: &str| headers(&Repo::planted(&[("crates/a/src/lib.rs", text)])).len();
        assert_eq!(found("//! What it is.\n"), 0);
        assert_eq!(found("use std::io;\n"), 1);
        assert_eq!(found("//!\n"), 1);
    }

    #[test]
    fn a_file_nobody_declares_is_found() {
        let repo = Repo::planted(&[
            (
                "crates/a/src/lib.rs",
                "mod b;\n#[path = \"odd/e.rs\"]\nmod e;",
            ),
            ("crates/a/src/b.rs", "mod c;\n#[cfg(test)]\nmod tests;"),
            ("crates/a/src/b/c.rs", ""),
            ("crates/a/src/b/tests.rs", ""),
            ("crates/a/src/odd/e.rs", ""),
            ("crates/a/src/d.rs", ""),
            ("crates/a/tests/it/main.rs", "mod f;"),
            ("crates/a/tests/it/f.rs", ""),
            ("crates/a/tests/it/g.rs", ""),
            ("other-runtimes/src/main.rs", "mod h;"),
            ("other-runtimes/src/h.rs", ""),
            ("other-runtimes/src/i.rs", ""),
        ]);
        let found: Vec<_> = orphans(&repo)
            .into_iter()
            .map(|finding| finding.file)
            .collect();
        assert_eq!(
            found,
            [
                "crates/a/src/d.rs",
                "crates/a/tests/it/g.rs",
                "other-runtimes/src/i.rs"
            ]
        );
        assert_eq!(only_for_tests(&repo), ["crates/a/src/b/tests.rs"]);
    }
}
