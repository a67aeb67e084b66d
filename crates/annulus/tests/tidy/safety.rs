//! Where unsafe code may be, and what its notes say.

use crate::repo::{Finding, Repo};
use crate::source::{Source, find_word, ident_after, line_of};

/// The files that may say `allow(unsafe_code)`; a name that ends in `/` stands for a folder. Extending this list is
/// a change of its own with its own reason.
const MAY_ALLOW_UNSAFE: [&str; 28] = [
    "crates/annulus/src/sys/",
    "crates/annulus/src/buf/",
    "crates/annulus/src/fd.rs",
    "crates/annulus/src/op/",
    // All of the driver that touches slots through pointers.
    "crates/annulus/src/driver/blocking.rs",
    // A core's operations in flight, their types forgotten.
    "crates/annulus/src/driver/core/table.rs",
    "crates/annulus/src/driver/finish.rs",
    "crates/annulus/src/driver/lifecycle.rs",
    // The model checker's operations and elements.
    "crates/annulus/src/driver/loom_models.rs",
    "crates/annulus/src/driver/loom_threadless.rs",
    "crates/annulus/src/driver/many.rs",
    "crates/annulus/src/driver/mod.rs",
    "crates/annulus/src/driver/operation.rs",
    // A value whose type is forgotten: what slots and a core's table store operations by.
    "crates/annulus/src/driver/payload.rs",
    "crates/annulus/src/driver/pending.rs",
    "crates/annulus/src/driver/slot.rs",
    // The answers of a driver and its end, split from its rounds.
    "crates/annulus/src/driver/uring/completion.rs",
    "crates/annulus/src/driver/uring/drain.rs",
    // Its deadlines, likewise.
    "crates/annulus/src/driver/uring/expired.rs",
    // What the kernel will not poll for is done by the slot's system call.
    "crates/annulus/src/driver/uring/polled.rs",
    "crates/annulus/src/driver/stack.rs",
    "crates/annulus/src/driver/table.rs",
    // Its operations are made of closures, and `Op` is an unsafe trait.
    "crates/annulus/src/driver/tests.rs",
    // Its operations are made up, and `SocketOp` is an unsafe trait.
    "crates/annulus/src/driver/core/tests.rs",
    "crates/annulus/src/driver/uring.rs",
    // Functions that C programs call in libc's place, with C's pointers.
    "crates/annulus-preload/src/",
    // Contenders: the code we measure against is written as its users write it.
    "crates/annulus-baselines/src/",
    // Tests that stand in for a foreign buffer type or look at memory behind the library's back.
    "crates/annulus/tests/",
];

/// Crates whose every root forbids unsafe code.
const FORBIDS_UNSAFE: [&str; 4] = [
    "annulus-observe",
    "annulus-cli",
    "annulus-http",
    "annulus-hyper",
];

const INVARIANTS: &str = "docs/SAFETY.md";

pub(crate) fn files(repo: &Repo) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, source) in repo.sources() {
        let allows = ["allow(unsafe_code)", "expect(unsafe_code)"];
        let Some(at) = allows.iter().find_map(|allow| source.code.find(allow)) else {
            continue;
        };
        let line = line_of(&source.code, at);
        let listed =
            |entry: &str| path == entry || (entry.ends_with('/') && path.starts_with(entry));
        if !MAY_ALLOW_UNSAFE.iter().any(|entry| listed(entry)) {
            let says = "unsafe code has a closed list of files; use a safe function of one of them, \
                        or extend MAY_ALLOW_UNSAFE in a commit that says why";
            found.push(Finding::new(path, line, says));
        }
        if path.starts_with("crates/annulus/src/") && !source.header().contains("# Safety") {
            let says = "allows unsafe code; say in the header, under `//! # Safety`, what all of it rests on";
            found.push(Finding::new(path, line, says));
        }
    }
    for entry in MAY_ALLOW_UNSAFE
        .iter()
        .filter(|entry| entry.ends_with(".rs"))
    {
        let used = repo
            .source(entry)
            .is_some_and(|source| source.code.contains("(unsafe_code)"));
        if !used {
            found.push(Finding::new(
                entry,
                1,
                "has no unsafe code (any more); take it out of MAY_ALLOW_UNSAFE",
            ));
        }
    }
    found
}

pub(crate) fn forbidden(repo: &Repo) -> Vec<Finding> {
    let mut found = Vec::new();
    let ours = FORBIDS_UNSAFE.map(|name| format!("crates/{name}"));
    // The other runtimes' servers stand outside the workspace and its lints.
    for folder in ours.iter().map(String::as_str).chain(["other-runtimes"]) {
        for root in ["lib.rs", "main.rs"] {
            let path = format!("{folder}/src/{root}");
            if repo
                .source(&path)
                .is_some_and(|source| !source.code.contains("#![forbid(unsafe_code)]"))
            {
                found.push(Finding::new(
                    &path,
                    1,
                    "write #![forbid(unsafe_code)] under the header",
                ));
            }
        }
    }
    found
}

/// Each unsafe block and impl of the library cites an invariant of docs/SAFETY.md by name.
pub(crate) fn notes(repo: &Repo) -> Vec<Finding> {
    let invariants = invariants(repo.text(INVARIANTS).unwrap_or_default());
    let mut found = Vec::new();
    if invariants.is_empty() {
        let says =
            "names no invariant; give each one a heading `### Name` under `## The invariants`";
        found.push(Finding::new(INVARIANTS, 1, says));
        return found;
    }
    for (path, _, source) in repo.library() {
        for at in find_word(&source.shipped, "unsafe") {
            if !is_block_or_impl(&source.shipped, at) {
                continue;
            }
            let line = line_of(&source.shipped, at);
            let note = note_above(source, line);
            if find_word(&note, "SAFETY").is_empty() {
                let says = "no `// SAFETY:` note directly above; name the invariant and say why it holds here";
                found.push(Finding::new(path, line, says));
            } else if !cites(source, at, &note, &invariants) {
                let says = format!(
                    "the SAFETY note names no invariant of {INVARIANTS}: {}",
                    invariants.join(", ")
                );
                found.push(Finding::new(path, line, says));
            }
        }
    }
    found
}

/// Whether a note names an invariant: itself, by way of the note it calls "as above", or, where it says that the
/// obligation is "passed on" or the caller's, in the `# Safety` section of the function around it.
fn cites(source: &Source, at: usize, note: &str, invariants: &[String]) -> bool {
    let names = |text: &str| {
        invariants
            .iter()
            .any(|name| !find_word(text, name).is_empty())
    };
    if names(note) {
        return true;
    }
    if note.contains("as above") {
        let earlier = &source.comments[..at];
        let notes = earlier
            .rmatch_indices("SAFETY")
            .map(|(from, _)| note_from(&source.comments, from));
        return notes
            .into_iter()
            .find(|note| !note.contains("as above"))
            .is_some_and(|note| names(&note));
    }
    if note.contains("passed on") || note.contains("caller's promise") {
        let around = source.code[..at].rfind("unsafe fn");
        let docs = around.map(|around| note_above(source, line_of(&source.code, around)));
        return docs.is_some_and(|docs| docs.contains("# Safety") && names(&docs));
    }
    false
}

/// The comment from a place on, to its last line.
fn note_from(comments: &str, from: usize) -> String {
    let lines = comments[from..].lines().map(str::trim);
    lines
        .take_while(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join("\n")
}

/// Each invariant is used: one that no note and no header cites has lost its reason to be in the document.
pub(crate) fn invariants_in_use(repo: &Repo) -> Vec<Finding> {
    let document = repo.text(INVARIANTS).unwrap_or_default();
    let mut cited = String::new();
    for (_, _, source) in repo.library() {
        cited += &source.header();
        for (at, _) in source.comments.match_indices("SAFETY") {
            cited += &note_from(&source.comments, at);
        }
    }
    let mut found = Vec::new();
    for name in invariants(document) {
        if find_word(&cited, &name).is_empty() {
            let heading = format!("### {name}");
            let line = document
                .lines()
                .position(|line| line == heading)
                .map_or(1, |at| at + 1);
            let says =
                format!("no SAFETY note and no header in the library cites `{name}`; drop it");
            found.push(Finding::new(INVARIANTS, line, says));
        }
    }
    found
}

/// The headings `### Name` of the section "The invariants".
fn invariants(document: &str) -> Vec<String> {
    let section = document
        .split("\n## ")
        .find(|section| section.starts_with("The invariants"));
    let headings = section
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.strip_prefix("### "));
    headings.map(|name| name.trim().to_owned()).collect()
}

/// `unsafe {` and `unsafe impl`; the contract of an `unsafe fn` or `unsafe trait` is clippy's to ask for.
fn is_block_or_impl(code: &str, at: usize) -> bool {
    let after = at + "unsafe".len();
    code[after..].trim_start().starts_with('{') || ident_after(code, after) == "impl"
}

/// The comment that belongs to the statement on `line`: beside it, or above it with only attributes and the
/// beginning of the statement between.
fn note_above(source: &Source, line: usize) -> String {
    let code: Vec<&str> = source.code.lines().collect();
    let comments: Vec<&str> = source.comments.lines().collect();
    let mut note = vec![comments[line - 1].trim()];
    let mut at = line - 1;
    while at > 0 {
        at -= 1;
        let (code, comment) = (code[at].trim(), comments[at].trim());
        let ends_statement =
            code.ends_with([';', '}', '{']) || (code.is_empty() && comment.is_empty());
        if code.is_empty() && !comment.is_empty() {
            note.push(comment);
        } else if note.len() > 1 || ends_statement {
            break;
        }
    }
    note.reverse();
    note.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: (&str, &str) = (
        "docs/SAFETY.md",
        "# S\n\n## The invariants\n\n### Lent\n\n### One side\n\ntext\n\n## Other\n\n### No\n",
    );

    fn notes_in(code: &str) -> Vec<usize> {
        let repo = Repo::planted(&[DOCUMENT, ("crates/annulus/src/a.rs", code)]);
        notes(&repo)
            .into_iter()
            .map(|finding| finding.line)
            .collect()
    }

    #[test]
    fn a_note_must_name_an_invariant() {
        assert_eq!(notes_in("// SAFETY: Lent. It is.\nunsafe { f() }"), [0; 0]);
        assert_eq!(
            notes_in("// SAFETY: One side\n// holds.\n#[inline]\nlet a =\n    unsafe { f() };"),
            [0; 0]
        );
        assert_eq!(notes_in("// SAFETY: it is fine.\nunsafe { f() }"), [2]);
        assert_eq!(notes_in("// SAFETY: No.\nunsafe impl Op for X {}"), [2]);
        assert_eq!(
            notes_in("// SAFETY: Lent.\nlet a = 1;\nunsafe { f() }"),
            [3]
        );
        assert_eq!(notes_in("// Lent.\nunsafe { f() }"), [2]);
        assert_eq!(notes_in("unsafe fn f() {}\nunsafe trait T {}"), [0; 0]);
    }

    #[test]
    fn a_document_without_invariants_is_found() {
        assert_eq!(notes(&Repo::planted(&[])).len(), 1);
    }

    #[test]
    fn an_invariant_nobody_cites_is_found() {
        let repo = Repo::planted(&[
            DOCUMENT,
            (
                "crates/annulus/src/a.rs",
                "// SAFETY: Lent.\n\n/// One side",
            ),
        ]);
        let found = invariants_in_use(&repo);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].line, found[0].says.contains("`One side`")),
            (7, true)
        );
    }

    #[test]
    fn unsafe_code_outside_the_list_is_found() {
        let about = |path: &str, code: &str| {
            let repo = Repo::planted(&[(path, code)]);
            files(&repo)
                .into_iter()
                .filter(|finding| finding.file == path)
                .count()
        };
        assert_eq!(
            about(
                "crates/annulus/src/engine.rs",
                "//! # Safety\n#![allow(unsafe_code)]"
            ),
            1
        );
        assert_eq!(
            about(
                "crates/annulus/src/sys/ring.rs",
                "//! # Safety\n#![allow(unsafe_code)]"
            ),
            0
        );
        assert_eq!(
            about(
                "crates/annulus/src/sys/ring.rs",
                "//! A ring.\n#![allow(unsafe_code)]"
            ),
            1
        );
        assert_eq!(about("crates/annulus/src/fd.rs", "//! Safe now."), 1);
    }

    #[test]
    fn a_tool_that_does_not_forbid_unsafe_code_is_found() {
        for path in [
            "crates/annulus-cli/src/main.rs",
            "other-runtimes/src/main.rs",
        ] {
            assert_eq!(
                forbidden(&Repo::planted(&[(path, "//! T.\nfn main() {}")])).len(),
                1
            );
            assert_eq!(
                forbidden(&Repo::planted(&[(path, "//! T.\n#![forbid(unsafe_code)]")])).len(),
                0
            );
        }
    }
}
