//! Which module may import which, which crate may depend on which, and who may name the kernel's crates.

use crate::manifest::{self, Section};
use crate::repo::{Finding, Repo};
use crate::source::{Source, find_word, ident_after, line_of, matching, split_top};

/// The library's modules from the ground up. A module imports from its own row and from the rows above it.
const LAYERS: [&[&str]; 9] = [
    &["error", "narrow", "sync"],
    &["sys"],
    &["buf", "fd"],
    &["op"],
    &["backend", "metrics", "support"],
    &["driver"],
    &["fs", "net", "time"],
    &["engine", "runtime", "tokio"],
    &["sim"],
];

/// Two ways into one driver: they never know of each other.
const STRANGERS: [(&str, &str); 2] = [("engine", "runtime"), ("runtime", "engine")];

/// What each crate may depend on within the workspace.
const CRATES: [(&str, &[&str]); 7] = [
    ("annulus", &[]),
    ("annulus-http", &["annulus"]),
    ("annulus-hyper", &["annulus"]),
    ("annulus-baselines", &["annulus"]),
    ("annulus-observe", &["annulus"]),
    ("annulus-preload", &["annulus"]),
    (
        "annulus-cli",
        &[
            "annulus",
            "annulus-observe",
            "annulus-http",
            "annulus-baselines",
        ],
    ),
];

/// Async runtimes, HTTP, argument parsers and serializers: by name or by the start of the name. Without features the
/// library depends on none of them, because it works with any executor.
const NOT_IN_THE_LIBRARY: [&str; 20] = [
    "actix",
    "argh",
    "async-executor",
    "async-global-executor",
    "async-io",
    "async-std",
    "axum",
    "bincode",
    "clap",
    "compio",
    "futures-executor",
    "glommio",
    "http",
    "hyper",
    "lexopt",
    "monoio",
    "pico-args",
    "serde",
    "smol",
    "tokio",
];

/// The exceptions, which only a feature of the library may enable.
const OPTIONAL_IN_THE_LIBRARY: [&str; 1] = ["tokio"];

/// The crates that speak to the kernel, and the only folder that may name them.
const KERNEL_CRATES: [&str; 3] = ["io_uring", "libc", "rustix"];
const KERNEL_FOLDER: &str = "sys/";

pub(crate) fn imports(repo: &Repo) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, below, source) in repo.library() {
        let Some(importer) = top_module(below) else {
            continue;
        };
        for (imported, offset) in imported_modules(below, source) {
            if let Some(says) = judge(importer, imported) {
                found.push(Finding::new(path, line_of(&source.code, offset), says));
            }
        }
    }
    found
}

pub(crate) fn crates(repo: &Repo) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in repo
        .manifests()
        .filter(|(path, _)| path.starts_with("crates/"))
    {
        let Some(name) = path.split('/').nth(1) else {
            continue;
        };
        let Some((_, allowed)) = CRATES.iter().find(|(known, _)| *known == name) else {
            let says =
                format!("crate `{name}` is not in the table; say in CRATES what it may depend on");
            found.push(Finding::new(path, 1, says));
            continue;
        };
        if name == "annulus"
            && let Some(index) = text.lines().position(|line| line.starts_with("default ="))
        {
            let says = "the library has no default features; each program names those that it uses";
            found.push(Finding::new(path, index + 1, says));
        }
        let dependencies = manifest::dependencies(text);
        for dependency in dependencies
            .iter()
            .filter(|one| one.section == Section::Shipped)
        {
            let local = dependency.name.starts_with("annulus");
            if local && !allowed.contains(&dependency.name.as_str()) {
                let says = format!(
                    "`{name}` may not depend on `{}`; it may on {allowed:?}",
                    dependency.name
                );
                found.push(Finding::new(path, dependency.line, says));
            }
            let foreign = |kind: &&str| dependency.name.split(['-', '_']).next() == Some(kind);
            let named = |kind: &&str| dependency.name == **kind;
            let by_feature =
                dependency.optional && OPTIONAL_IN_THE_LIBRARY.contains(&dependency.name.as_str());
            if name == "annulus"
                && !by_feature
                && NOT_IN_THE_LIBRARY
                    .iter()
                    .any(|kind| foreign(kind) || named(kind))
            {
                let says = format!(
                    "without features the library depends on no runtime, HTTP crate, parser or serializer, so not \
                     on `{}`; make it optional and list it in OPTIONAL_IN_THE_LIBRARY, or use another crate",
                    dependency.name
                );
                found.push(Finding::new(path, dependency.line, says));
            }
        }
    }
    found
}

pub(crate) fn kernel_crates(repo: &Repo) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, below, source) in repo.library() {
        if below.starts_with(KERNEL_FOLDER) {
            continue;
        }
        for name in KERNEL_CRATES {
            for at in find_word(&source.shipped, name) {
                if names_a_crate(&source.shipped, at, name) {
                    let says = format!(
                        "`{name}` is named in src/sys only; give `sys` a function for it and call that"
                    );
                    found.push(Finding::new(path, line_of(&source.shipped, at), says));
                }
            }
        }
    }
    found
}

/// `name::…`, `use name`, but neither `our::name` nor a variable of that name.
fn names_a_crate(code: &str, at: usize, name: &str) -> bool {
    let before = code[..at].trim_end();
    let after = code[at + name.len()..].trim_start();
    if before.ends_with("::")
        && !before
            .trim_end_matches("::")
            .ends_with(|c: char| c.is_whitespace())
    {
        return false;
    }
    after.starts_with("::") || (before.ends_with("use") && !after.starts_with(':'))
}

/// The first part of the path; none for the crate root, which sees everything.
fn top_module(below: &str) -> Option<&str> {
    let top = below.split('/').next()?.trim_end_matches(".rs");
    (top != "lib").then_some(top)
}

/// The top-level names that a file reaches through `crate::` or by climbing to the root with `super::`.
fn imported_modules<'a>(below: &str, source: &'a Source) -> Vec<(&'a str, usize)> {
    let code = &source.shipped;
    let mut found = Vec::new();
    for at in find_word(code, "crate") {
        if code[at..].starts_with("crate::") && !code[..at].ends_with('$') {
            names_at(code, at + "crate::".len(), &mut found);
        }
    }
    let climb = "super::".repeat(depth(below));
    for at in find_word(code, "super") {
        let first = !code[..at].trim_end().ends_with("::");
        if first && code[at..].starts_with(&climb) && !code[at + climb.len()..].starts_with("super")
        {
            names_at(code, at + climb.len(), &mut found);
        }
    }
    found
}

/// How many `super` lead from a file to the crate root.
fn depth(below: &str) -> usize {
    let parts = below.split('/').count();
    if below.ends_with("/mod.rs") {
        parts - 1
    } else {
        parts
    }
}

/// The name at `at`, or the first name of each branch of a `{…}`.
fn names_at<'a>(code: &'a str, at: usize, found: &mut Vec<(&'a str, usize)>) {
    if !code[at..].starts_with('{') {
        found.push((ident_after(code, at), at));
        return;
    }
    let inside = &code[at + 1..matching(code, at)];
    for branch in split_top(inside) {
        let name = ident_after(branch, 0);
        if !name.is_empty() {
            found.push((name, name.as_ptr() as usize - code.as_ptr() as usize));
        }
    }
}

fn judge(importer: &str, imported: &str) -> Option<String> {
    let layer = |name: &str| LAYERS.iter().position(|row| row.contains(&name));
    let Some(own) = layer(importer) else {
        return Some(format!(
            "module `{importer}` is in no layer; give it its row in LAYERS"
        ));
    };
    let Some(other) = layer(imported) else {
        let says = "is no module of the table; import a name from the module that defines it, not from the root";
        return Some(format!("`crate::{imported}` {says}"));
    };
    if other > own {
        let says = "move what is shared down, or pass it in";
        return Some(format!(
            "`{importer}` may not import `{imported}`, which stands above it; {says}"
        ));
    }
    let strangers = STRANGERS.contains(&(importer, imported));
    strangers.then(|| {
        format!("`{importer}` and `{imported}` never import each other; share through `driver`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imports_in(path: &str, code: &str) -> Vec<String> {
        let repo = Repo::planted(&[(&format!("crates/annulus/src/{path}"), code)]);
        imports(&repo)
            .into_iter()
            .map(|finding| finding.says)
            .collect()
    }

    #[test]
    fn an_import_from_above_is_found() {
        assert_eq!(imports_in("op/read_at.rs", "use crate::sys::Sqe;"), [""; 0]);
        assert!(
            imports_in("op/read_at.rs", "use crate::driver::Handle;")[0]
                .contains("may not import `driver`")
        );
        assert!(imports_in("sys/mod.rs", "use super::{error::E, fd::Fd};")[0].contains("`fd`"));
        assert!(
            imports_in("fd.rs", "use crate::{\n  sys::x,\n  fs::{File},\n};")[0].contains("`fs`")
        );
        assert!(
            imports_in("driver/uring.rs", "fn f() { super::super::fs::x() }")[0].contains("`fs`")
        );
        assert_eq!(
            imports_in("driver/uring.rs", "use super::slot::Slot;"),
            [""; 0]
        );
        assert!(
            imports_in("engine.rs", "use crate::runtime::X;")[0]
                .contains("never import each other")
        );
        assert!(
            imports_in("fs/file.rs", "use crate::Engine;")[0].contains("no module of the table")
        );
        assert!(imports_in("extra.rs", "use crate::sys::X;")[0].contains("in no layer"));
    }

    #[test]
    fn tests_and_the_crate_root_import_what_they_like() {
        assert_eq!(
            imports_in(
                "sys/mod.rs",
                "#[cfg(test)]\nmod tests { use crate::engine::E; }"
            ),
            [""; 0]
        );
        assert_eq!(imports_in("lib.rs", "pub use crate::engine::E;"), [""; 0]);
    }

    #[test]
    fn a_runtime_in_the_library_is_found() {
        let manifest = "[dependencies]\ntokio-util = \"1\"\n[dev-dependencies]\ntokio = \"1\"\n";
        let found = crates(&Repo::planted(&[("crates/annulus/Cargo.toml", manifest)]));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 2);
        let count = |manifest: &str| {
            crates(&Repo::planted(&[("crates/annulus/Cargo.toml", manifest)])).len()
        };
        let optional = "tokio = { version = \"1\", optional = true }\n";
        assert_eq!(count(&format!("[dependencies]\n{optional}")), 0);
        assert_eq!(count("[dependencies]\ntokio = \"1\"\n"), 1);
        let default = format!("[features]\ndefault = [\"tokio\"]\n[dependencies]\n{optional}");
        assert_eq!(count(&default), 1);
    }

    #[test]
    fn a_dependency_against_the_direction_is_found() {
        let manifest = "[dependencies]\nannulus-cli = { workspace = true }\n";
        let found = crates(&Repo::planted(&[(
            "crates/annulus-baselines/Cargo.toml",
            manifest,
        )]));
        assert!(found[0].says.contains("may not depend on `annulus-cli`"));
        assert_eq!(
            crates(&Repo::planted(&[("crates/other/Cargo.toml", "")])).len(),
            1
        );
    }

    #[test]
    fn the_kernels_crates_outside_sys_are_found() {
        let count = |path: &str, code: &str| {
            let path = format!("crates/annulus/src/{path}");
            kernel_crates(&Repo::planted(&[(&path, code)])).len()
        };
        assert_eq!(
            count(
                "driver/uring.rs",
                "use rustix::fd::OwnedFd; fn f() { ::libc::abort() }"
            ),
            2
        );
        assert_eq!(count("driver/uring.rs", "use io_uring as x;"), 1);
        assert_eq!(
            count(
                "driver/uring.rs",
                "let io_uring = backend::io_uring::X; // rustix::x"
            ),
            0
        );
        assert_eq!(count("sys/ring.rs", "use rustix::fd::OwnedFd;"), 0);
    }
}
