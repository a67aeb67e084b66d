//! The files with unsafe code, and the contents of their safety notes.

use crate::repo::{Findings, Repo};
use crate::source::{Source, find_word, ident_after, line_of};

/// The files that may have `allow(unsafe_code)`, which the workspace denies elsewhere; a name that ends in `/` is a
/// folder. Extending this list takes a separate change with a reason.
#[rustfmt::skip]
const MAY_ALLOW_UNSAFE: [&str; 43] = [
    "crates/annulus/src/sys/",
    "crates/annulus/src/buf/",
    "crates/annulus/src/fd.rs",
    "crates/annulus/src/op/",
    // The part of the driver that touches slots through pointers.
    "crates/annulus/src/driver/blocking.rs",
    "crates/annulus/src/driver/core/table.rs", // type-erased operations in flight
    "crates/annulus/src/driver/core/tests.rs", // test operations; `Op` is an unsafe trait
    "crates/annulus/src/driver/finish.rs",
    "crates/annulus/src/driver/group.rs",
    "crates/annulus/src/driver/handle.rs",
    "crates/annulus/src/driver/lifecycle.rs",
    "crates/annulus/src/driver/tests/loom_lists.rs", // the elements of the lists in the model checker
    "crates/annulus/src/driver/tests/loom_models.rs", // the model checker's operations and elements
    "crates/annulus/src/driver/tests/loom_threadless.rs",
    "crates/annulus/src/driver/many.rs",
    "crates/annulus/src/driver/operation.rs",
    "crates/annulus/src/driver/payload.rs", // the type-erased values in slots and in a core's table
    "crates/annulus/src/driver/queue.rs",
    "crates/annulus/src/driver/slot.rs",
    "crates/annulus/src/driver/stack.rs",
    "crates/annulus/src/driver/table.rs",
    "crates/annulus/src/driver/tests/drivers.rs", // test operations are closures; `Op` is an unsafe trait
    "crates/annulus/src/driver/turn.rs", // the value that the word guards
    "crates/annulus/src/driver/uring.rs",
    "crates/annulus/src/driver/uring/completion.rs",
    "crates/annulus/src/driver/uring/drain.rs",
    "crates/annulus/src/driver/uring/expired.rs",
    "crates/annulus/src/driver/uring/polled.rs", // system calls for files that the kernel does not poll
    "crates/annulus/src/tokio/fs/unix.rs", // `FromRawFd`, whose method is unsafe
    "crates/annulus/src/tokio/fs/windows.rs", // `FromRawHandle`, whose method is unsafe
    "crates/annulus-hyper/src/cursor.rs", // hyper's read buffer has no safe access without zeroing it
    "crates/annulus-pool/src/barrier.rs", // `membarrier(2)`
    "crates/annulus-pool/src/entry.rs", // a table of atomics in lazily provided memory
    "crates/annulus-pool/src/forked.rs", // a page that a forked child gets zeroed
    "crates/annulus-pool/src/models.rs", // the model checker's cells
    "crates/annulus-pool/src/page.rs", // guards of frames
    "crates/annulus-preload/src/", // replaces libc functions, with C's pointers
    "crates/annulus-baselines/src/", // the code we measure against is written as its users write it
    "crates/annulus/tests/", // foreign buffer types, and checks of memory behind the library's back
    "crates/annulus-testing/src/broken_buffer.rs", // implements the buffer traits
    "crates/annulus-testing/src/child_process.rs", // changes the user ID
    "crates/annulus-testing/src/panicking_buffer.rs", // implements the buffer traits
    "crates/annulus-testing/src/stress_load.rs", // implements the buffer traits
];

const INVARIANTS: &str = "docs/internals/safety.md";

pub(crate) fn files(repo: &Repo, found: &mut Findings) {
    for (path, source) in repo.sources() {
        let allows = ["allow(unsafe_code)", "expect(unsafe_code)"];
        let Some(at) = allows.iter().find_map(|allow| source.code.find(allow)) else {
            continue;
        };
        let line = line_of(&source.code, at);
        let listed =
            |entry: &&str| path == *entry || (entry.ends_with('/') && path.starts_with(entry));
        if !MAY_ALLOW_UNSAFE.iter().any(listed) {
            let says = "unsafe code has a closed list of files; use a safe function of one of them, \
                        or extend MAY_ALLOW_UNSAFE in a commit that gives the reason";
            found.add(path, line, says);
        }
        if path.starts_with("crates/annulus/src/") && !source.header().contains("# Safety") {
            let says = "allows unsafe code; write its invariants under `//! # Safety`";
            found.add(path, line, says);
        }
    }
    let files = MAY_ALLOW_UNSAFE
        .iter()
        .filter(|entry| entry.ends_with(".rs"));
    for entry in files {
        let source = repo.source(entry);
        if !source.is_some_and(|source| source.code.contains("(unsafe_code)")) {
            let says = "has no unsafe code (any more); remove it from MAY_ALLOW_UNSAFE";
            found.add(entry, 1, says);
        }
    }
}

/// Checks that each unsafe block and impl of the two libraries cites an invariant of docs/internals/safety.md by name.
pub(crate) fn notes(repo: &Repo, found: &mut Findings) {
    let invariants = invariants(repo.text(INVARIANTS));
    if invariants.is_empty() {
        let says = "names no invariant; write `### Name` under `## The invariants`";
        return found.add(INVARIANTS, 1, says);
    }
    let preload = repo.sources_of("annulus-preload");
    for (path, _, source) in repo.library().chain(preload) {
        for at in find_word(&source.shipped, "unsafe") {
            if !is_block_or_impl(&source.shipped, at) {
                continue;
            }
            let line = line_of(&source.shipped, at);
            let note = note_above(source, line);
            if find_word(&note, "SAFETY").is_empty() {
                let says = "no `// SAFETY:` note above; name the invariant and the reason";
                found.add(path, line, says);
            } else if !invariants
                .iter()
                .any(|name| !find_word(&note, name).is_empty())
            {
                let names = invariants.join(", ");
                let says = format!("the SAFETY note names no invariant of {INVARIANTS}: {names}");
                found.add(path, line, says);
            }
        }
    }
}

/// Returns the headings `### Name` of the section "The invariants".
fn invariants(document: &str) -> Vec<&str> {
    let section = document
        .split("\n## ")
        .find(|section| section.starts_with("The invariants"));
    let lines = section.unwrap_or_default().lines();
    lines
        .filter_map(|line| line.strip_prefix("### "))
        .map(str::trim)
        .collect()
}

/// Returns whether this is `unsafe {` or `unsafe impl`. Clippy checks the contract of an `unsafe fn` or `unsafe trait`.
fn is_block_or_impl(code: &str, at: usize) -> bool {
    let after = at + "unsafe".len();
    code[after..].trim_start().starts_with('{') || ident_after(code, after) == "impl"
}

/// Returns the comment of the statement on `line`: beside it, or above it with only attributes and the beginning of the
/// statement in between.
fn note_above(source: &Source, line: usize) -> String {
    let lines: Vec<(&str, &str)> = (source.code.lines().map(str::trim))
        .zip(source.comments.lines().map(str::trim))
        .collect();
    let mut note = vec![lines[line - 1].1];
    for &(code, comment) in lines[..line - 1].iter().rev() {
        if code.is_empty() && !comment.is_empty() {
            note.push(comment);
        } else if note.len() > 1 || code.is_empty() || code.ends_with([';', '}', '{']) {
            break;
        }
    }
    note.reverse();
    note.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::{lines, planted};

    const DOCUMENT: (&str, &str) = (
        "docs/internals/safety.md",
        "# S\n\n## The invariants\n\n### Lent\n\n### One side\n\ntext\n\n## Other\n\n### No\n",
    );

    #[test]
    fn a_note_must_name_an_invariant() {
        #[rustfmt::skip]
        let cases = [
            ("// SAFETY: Lent. It is.\nunsafe { f() }", None),
            ("// SAFETY: One side\n// holds.\n#[inline]\nlet a =\n    unsafe { f() };", None),
            ("// SAFETY: it is fine.\nunsafe { f() }", Some(2)),
            ("// SAFETY: Lent.\nunsafe { f() }\n// SAFETY: as above.\nunsafe { f() }", Some(4)),
            ("/// # Safety\n///\n/// Lent.\nunsafe fn f() {\n// SAFETY: passed on.\nunsafe { g() }", Some(6)),
            ("// SAFETY: No.\nunsafe impl Op for X {}", Some(2)),
            ("// SAFETY: Lent.\nlet a = 1;\nunsafe { f() }", Some(3)),
            ("// Lent.\nunsafe { f() }", Some(2)),
            ("unsafe fn f() {}\nunsafe trait T {}", None),
        ];
        for (code, expected) in cases {
            let found = planted(notes, &[DOCUMENT, ("crates/annulus/src/a.rs", code)]);
            assert_eq!(lines(&found), Vec::from_iter(expected), "{code}");
        }
        // A document without invariants is reported as well.
        assert_eq!(planted(notes, &[]).len(), 1);
    }

    #[test]
    fn unsafe_code_outside_the_list_is_reported() {
        for (path, code, count) in [
            ("engine.rs", "//! # Safety\n#![allow(unsafe_code)]", 1),
            ("sys/ring.rs", "//! # Safety\n#![allow(unsafe_code)]", 0),
            ("sys/ring.rs", "//! A ring.\n#![allow(unsafe_code)]", 1),
            ("fd.rs", "//! Safe now.", 1),
        ] {
            let path = format!("crates/annulus/src/{path}");
            let found = planted(files, &[(&path, code)]);
            assert_eq!(found.iter().filter(|one| one.file == path).count(), count);
        }
    }
}
