//! What users can match on or build field by field is either free to grow (`#[non_exhaustive]`) or closed for good,
//! with a reason.

use std::collections::BTreeSet;

use crate::repo::{Finding, Repo};
use crate::source::{
    Source, attributes_above, find_word, ident_after, item_end, line_of, matching, split_top,
};

/// The crates that people write programs with.
const PUBLISHED: [&str; 3] = [
    "crates/annulus/src/",
    "crates/annulus-adapters/src/",
    "crates/annulus-http/src/",
];

/// Closed for good, or not for users: file, names, reason. Extending this list is a change of its own.
const CLOSED: [(&str, &[&str], &str); 13] = [
    (
        "crates/annulus/src/metrics/alert/mod.rs",
        &["Change"],
        "an alert is raised or cleared",
    ),
    (
        "crates/annulus/src/net/split.rs",
        &["ReuniteError"],
        "the two halves are all there can be",
    ),
    (
        "crates/annulus/src/metrics/preload.rs",
        &["Event", "Gauge"],
        "hidden: for the preload library of the same version",
    ),
    (
        "crates/annulus/src/sys/server_ring.rs",
        &["Completion", "Wait"],
        "hidden: for the preload library of the same version",
    ),
    (
        "crates/annulus/src/sys/sqe.rs",
        &["Sqe"],
        "the kernel's layout, 64 bytes; only sealed traits name it",
    ),
    (
        "crates/annulus/src/op/mod.rs",
        &["Resume", "SyncAttempt"],
        "of the sealed trait `Op`",
    ),
    (
        "crates/annulus/src/op/socket.rs",
        &["Interest"],
        "of the sealed trait `SocketOp`",
    ),
    (
        "crates/annulus/src/op/run_blocking.rs",
        &["Unanswered"],
        "of the sealed trait `Op`",
    ),
    (
        "crates/annulus-http/src/site/answer.rs",
        &["Answer", "Body", "Piece"],
        "public for tests; a connection has to send all of it",
    ),
    (
        "crates/annulus-http/src/site/conditional.rs",
        &["Validators", "Conditions", "Outcome"],
        "public for tests and fuzz targets: all that RFC 9110 has",
    ),
    (
        "crates/annulus-http/src/site/path.rs",
        &["Resolved"],
        "public for tests and fuzz targets",
    ),
    (
        "crates/annulus-http/src/site/range.rs",
        &["Part", "Selected"],
        "public for tests and fuzz targets: all that RFC 9110 has",
    ),
    (
        "crates/annulus-http/src/site/service.rs",
        &["Method", "Asked", "Prompt"],
        "public for tests; a connection fills in all of it",
    ),
];

/// Every public enum, and every public struct with public fields, may grow or says why not.
pub(crate) fn closed_types(repo: &Repo) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, source) in repo.sources() {
        if !PUBLISHED.iter().any(|folder| path.starts_with(folder)) {
            continue;
        }
        let exceptions = CLOSED.iter().filter(|(file, _, _)| *file == path);
        let mut unused: BTreeSet<&str> = exceptions
            .flat_map(|(_, names, _)| *names)
            .copied()
            .collect();
        for (at, name) in closed(source) {
            if unused.remove(name) {
                continue;
            }
            let says = format!(
                "`{name}` can never get another variant or field; make it #[non_exhaustive] (a struct that users \
                 build also needs `new` or `Default`), or give it a private field"
            );
            found.push(Finding::new(path, line_of(&source.text, at), says));
        }
        found.extend(unused.into_iter().map(|name| {
            let says = format!("`{name}` is on the list of closed types and is none; take it off");
            Finding::new(path, 1, says)
        }));
    }
    found
}

/// The types of a file that users can match on, or build, with nothing left out.
fn closed(source: &Source) -> Vec<(usize, &str)> {
    let code = &source.shipped;
    let mut found = Vec::new();
    for keyword in ["enum", "struct"] {
        for at in find_word(code, keyword) {
            let name = ident_after(code, at + keyword.len());
            let above = &code[attributes_above(code, at)];
            let is_public = find_word(above, "pub")
                .last()
                .is_some_and(|&word| !above[word + 3..].trim_start().starts_with('('));
            if name.is_empty() || !is_public || !find_word(above, "non_exhaustive").is_empty() {
                continue;
            }
            let body = &code[at..item_end(code, at)];
            if keyword == "enum" || has_only_public_fields(body) {
                found.push((at, name));
            }
        }
    }
    found
}

/// Whether a struct has fields, all of them public.
fn has_only_public_fields(item: &str) -> bool {
    let Some(open) = item.find('{').or_else(|| item.find('(')) else {
        return false;
    };
    let inside = &item[open + 1..];
    let end = inside.rfind(['}', ')']).unwrap_or(inside.len());
    let fields = split_top(&inside[..end]);
    let mut fields = fields
        .into_iter()
        .map(without_attributes)
        .filter(|field| !field.is_empty());
    let mut some = false;
    fields.all(|field| {
        some = true;
        field.starts_with("pub ")
    }) && some
}

fn without_attributes(field: &str) -> &str {
    let mut field = field.trim();
    while field.starts_with("#[") {
        let end = matching(field, 1);
        field = field[end + 1..].trim_start();
    }
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(code: &str) -> usize {
        closed_types(&Repo::planted(&[("crates/annulus/src/net/plan.rs", code)])).len()
    }

    #[test]
    fn a_public_type_that_cannot_grow_is_found() {
        assert_eq!(says("pub enum Plan { A, B(u8) }"), 1);
        assert_eq!(
            says("pub struct Plan { pub a: u8, #[doc(hidden)] pub b: Vec<(u8, u8)> }"),
            1
        );
        assert_eq!(says("pub struct Plan(pub u8);"), 1);
        assert_eq!(
            says("#[derive(Debug)]\npub struct Plan<T> where T: Copy { pub a: T }"),
            1
        );
    }

    #[test]
    fn one_that_may_grow_or_that_users_do_not_see_is_not() {
        for fine in [
            "#[non_exhaustive]\npub enum Plan { A }",
            "#[derive(Debug)]\n#[non_exhaustive]\npub struct Plan { pub a: u8 }",
            "pub struct Plan { pub a: u8, b: u8 }",
            "pub struct Plan(u8);",
            "pub struct Plan;",
            "pub(crate) enum Plan { A }",
            "enum Plan { A }",
            "#[cfg(test)]\nmod tests { pub enum Plan { A } }",
        ] {
            assert_eq!(says(fine), 0, "{fine}");
        }
    }
}
