//! The permitted imports between modules, dependencies between crates, and users of the kernel's crates.

use crate::manifest::{self, Section};
use crate::repo::{Findings, Repo};
use crate::source::{Source, find_word, ident_after, line_of, split_top};

/// The library's modules from the bottom up. A module imports from its own row and from the rows above it.
const LAYERS: [&str; 10] = [
    "byte_stream error idle_threads item_stream narrow sync",
    "sys",
    "buf fd",
    "op",
    "backend metrics support",
    "driver",
    "fs net ring_options signal time",
    "engine portable tokio",
    "runtime",
    "sim",
];

/// The modules of the preload library, in the same order.
const PRELOAD_LAYERS: [&str; 10] = [
    "accept_burst arch batching buffers build_id byte_queue config errno executed mapping raw_libc send_errors sockopt_effects switch_position \
     events inbound member outbound token vectors young_set",
    "connection counters identity lock real signals",
    "ctl_request member_list placeholders ring_policy ring_teardown set_members sys",
    "epoll_set epoll_set_list fd_table reserved_fds",
    "classify fd_budget flush_request inherited_set log program_rings publish ready_list sockopts stops unread writability",
    "draining duplicates listeners output poll_cycle reports",
    "closing completions deferred_output gate hand_back receive removal send set_end shut_down",
    "descriptor early_members epoll_ctl epoll_wait fd_limit flush_thread switch",
    "process",
    "hooks",
];

/// The crates of this repository that each crate may depend on.
#[rustfmt::skip]
const CRATES: [(&str, &str); 11] = [
    ("annulus", ""),
    ("annulus-http", "annulus"),
    ("annulus-hyper", "annulus"),
    ("annulus-baselines", "annulus"),
    ("annulus-object-store", "annulus"),
    ("annulus-observe", "annulus"),
    ("annulus-opendal", "annulus"),
    ("annulus-pool", "annulus"),
    ("annulus-preload", "annulus"),
    ("annulus-testing", "annulus"),
    ("annulus-cli", "annulus annulus-observe annulus-http annulus-baselines annulus-pool annulus-preload"),
];

/// Async runtimes, HTTP crates, argument parsers and serializers, by the name or its start. Without features the
/// library depends on none of them, because it works with any executor.
const NOT_IN_THE_LIBRARY: &str = "actix argh async-executor async-global-executor async-io async-std axum bincode clap \
                                  compio futures-executor glommio http hyper lexopt monoio pico-args serde smol tokio";

/// The exceptions, which only a feature of the library may enable.
const OPTIONAL_IN_THE_LIBRARY: [&str; 1] = ["tokio"];

/// The crates with the kernel's interface; only `src/sys` may name them.
const KERNEL_CRATES: [&str; 3] = ["io_uring", "libc", "rustix"];

fn listed(list: &str, name: &str) -> bool {
    list.split(' ').any(|entry| entry == name)
}

pub(crate) fn imports(repo: &Repo, found: &mut Findings) {
    let tables: [(_, &[&str]); 2] = [("annulus", &LAYERS), ("annulus-preload", &PRELOAD_LAYERS)];
    for (name, layers) in tables {
        for (path, below, source) in repo.sources_of(name) {
            // The crate root may import everything.
            let importer = below.split('/').next().unwrap().trim_end_matches(".rs");
            if importer == "lib" {
                continue;
            }
            for (imported, offset) in imported_modules(below, source) {
                if let Some(says) = judge(layers, importer, imported) {
                    found.add(path, line_of(&source.code, offset), says);
                }
            }
        }
    }
}

pub(crate) fn crates(repo: &Repo, found: &mut Findings) {
    for (path, text) in repo.texts() {
        let below = path.strip_prefix("crates/");
        let Some(name) = below.and_then(|below| below.strip_suffix("/Cargo.toml")) else {
            continue;
        };
        let mut add = |line, says: String| found.add(path, line, says);
        let Some((_, allowed)) = CRATES.iter().find(|(known, _)| *known == name) else {
            add(1, format!("`{name}` is not in the table CRATES; add it"));
            continue;
        };
        let library = name == "annulus";
        let default = text.lines().position(|line| line.starts_with("default ="));
        if let Some(index) = default.filter(|_| library) {
            let says = "the library has no default features; each program names those that it uses";
            add(index + 1, says.to_owned());
        }
        for dependency in manifest::dependencies(text) {
            if dependency.section != Section::Shipped {
                continue;
            }
            let (line, on) = (dependency.line, dependency.name.as_str());
            if on.starts_with("annulus") && !listed(allowed, on) {
                let says = format!("`{name}` may not depend on `{on}`; it may on: {allowed}");
                add(line, says);
            }
            let kind = on.split(['-', '_']).next().unwrap_or(on);
            let by_feature = dependency.optional && OPTIONAL_IN_THE_LIBRARY.contains(&on);
            let excluded = listed(NOT_IN_THE_LIBRARY, kind) || listed(NOT_IN_THE_LIBRARY, on);
            if library && !by_feature && excluded {
                let says = "the library depends on no runtime, HTTP crate, parser or serializer; \
                            make it optional and list it in OPTIONAL_IN_THE_LIBRARY";
                add(line, format!("`{on}`: {says}"));
            }
        }
    }
}

pub(crate) fn kernel_crates(repo: &Repo, found: &mut Findings) {
    for (path, below, source) in repo.library() {
        for name in KERNEL_CRATES {
            for at in find_word(&source.shipped, name) {
                if !below.starts_with("sys/") && names_a_crate(&source.shipped, at, name) {
                    let says =
                        "may be named in src/sys only; add a function to `sys` and call that";
                    let line = line_of(&source.shipped, at);
                    found.add(path, line, format!("`{name}` {says}"));
                }
            }
        }
    }
}

/// Returns whether `name` is a crate here: `name::…` or `use name`, but not `our::name` nor a variable of that name.
fn names_a_crate(code: &str, at: usize, name: &str) -> bool {
    let before = code[..at].trim_end();
    let after = code[at + name.len()..].trim_start();
    if let Some(outer) = before.strip_suffix("::")
        && !outer.ends_with(char::is_whitespace)
    {
        return false;
    }
    after.starts_with("::") || (before.ends_with("use") && !after.starts_with(':'))
}

/// Returns the top-level names that a file imports through `crate::`, or through `super::` up to the root.
fn imported_modules<'a>(below: &str, source: &'a Source) -> Vec<(&'a str, usize)> {
    let code = &source.shipped;
    let mut found = Vec::new();
    for at in find_word(code, "crate") {
        if code[at..].starts_with("crate::") && !code[..at].ends_with('$') {
            names_at(code, at + "crate::".len(), &mut found);
        }
    }
    // One `super` for each folder, and one for the file itself unless it is the folder's root.
    let folders = below.split('/').count() - usize::from(below.ends_with("/mod.rs"));
    let climb = "super::".repeat(folders);
    for at in find_word(code, "super") {
        let first = !code[..at].trim_end().ends_with("::");
        let climbs = code[at..].strip_prefix(&climb);
        if first && climbs.is_some_and(|rest| !rest.starts_with("super")) {
            names_at(code, at + climb.len(), &mut found);
        }
    }
    found
}

/// Adds the name at `at`, or the first name of each branch of a `{…}`.
fn names_at<'a>(code: &'a str, at: usize, found: &mut Vec<(&'a str, usize)>) {
    let branches = match code[at..].strip_prefix('{') {
        Some(inside) => split_top(inside),
        None => vec![&code[at..]],
    };
    for branch in branches {
        let name = ident_after(branch, 0);
        if !name.is_empty() {
            found.push((name, name.as_ptr() as usize - code.as_ptr() as usize));
        }
    }
}

fn judge(layers: &[&str], importer: &str, imported: &str) -> Option<String> {
    let layer = |name: &str| layers.iter().position(|row| listed(row, name));
    let says = match (layer(importer), layer(imported)) {
        (None, _) => "is in no layer; add it to a row of the table",
        (_, None) => "imports a module that is not in the table; import from the defining module",
        (Some(own), Some(other)) if other > own => {
            "imports a module above it; move the shared part down, or pass it in"
        }
        _ => return None,
    };
    Some(format!("`{importer}` (import of `{imported}`) {says}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::{lines, planted};

    #[test]
    fn an_import_from_above_is_reported() {
        #[rustfmt::skip]
        let cases = [
            ("annulus/src/op/read_at.rs", "use crate::sys::Sqe;", ""),
            ("annulus/src/op/read_at.rs", "use crate::driver::Handle;", "import of `driver`"),
            ("annulus/src/sys/mod.rs", "use super::{error::E, fd::Fd};", "import of `fd`"),
            ("annulus/src/fd.rs", "use crate::{\n  sys::x,\n  fs::{File},\n};", "import of `fs`"),
            ("annulus/src/driver/uring.rs", "fn f() { super::super::fs::x() }", "import of `fs`"),
            ("annulus/src/driver/uring.rs", "use super::slot::Slot;", ""),
            ("annulus/src/engine.rs", "use crate::runtime::X;", "import of `runtime`"),
            ("annulus/src/fs/file.rs", "use crate::Engine;", "not in the table"),
            ("annulus-preload/src/sys.rs", "use crate::errno;", ""),
            ("annulus-preload/src/send.rs", "use crate::process;", "import of `process`"),
            ("annulus-preload/src/hooks/io.rs", "use super::poll; use crate::process;", ""),
            ("annulus/src/extra.rs", "use crate::sys::X;", "in no layer"),
            ("annulus/src/lib.rs", "pub use crate::engine::E;", ""),
            ("annulus/src/sys/mod.rs", "#[cfg(test)]\nmod tests { use crate::engine::E; }", ""),
        ];
        for (path, code, says) in cases {
            let found = planted(imports, &[(&format!("crates/{path}"), code)]);
            let found: String = found.into_iter().map(|finding| finding.says).collect();
            assert_eq!(found.is_empty(), says.is_empty(), "{found}");
            assert!(found.contains(says), "{found}");
        }
    }

    #[test]
    fn a_runtime_in_the_library_is_reported() {
        let found =
            |manifest: &str| lines(&planted(crates, &[("crates/annulus/Cargo.toml", manifest)]));
        let manifest = "[dependencies]\ntokio-util = \"1\"\n[dev-dependencies]\ntokio = \"1\"\n";
        assert_eq!(found(manifest), [2]);
        let optional = "[dependencies]\ntokio = { version = \"1\", optional = true }\n";
        assert_eq!(found(optional), [0; 0]);
        assert_eq!(found("[dependencies]\ntokio = \"1\"\n"), [2]);
        assert_eq!(
            found(&format!("[features]\ndefault = [\"tokio\"]\n{optional}")),
            [2]
        );
    }

    #[test]
    fn a_dependency_against_the_direction_is_reported() {
        let manifest = "[dependencies]\nannulus-cli = { workspace = true }\n";
        let found = planted(crates, &[("crates/annulus-baselines/Cargo.toml", manifest)]);
        assert!(found[0].says.contains("may not depend on `annulus-cli`"));
        assert_eq!(planted(crates, &[("crates/other/Cargo.toml", "")]).len(), 1);
    }

    #[test]
    fn the_kernels_crates_outside_sys_are_reported() {
        #[rustfmt::skip]
        let cases = [
            ("driver/uring.rs", "use rustix::fd::OwnedFd; fn f() { ::libc::abort() }", 2),
            ("driver/uring.rs", "use io_uring as x;", 1),
            ("driver/uring.rs", "let io_uring = backend::io_uring::X; // rustix::x", 0),
            ("sys/ring.rs", "use rustix::fd::OwnedFd;", 0),
        ];
        for (path, code, count) in cases {
            let path = format!("crates/annulus/src/{path}");
            assert_eq!(planted(kernel_crates, &[(&path, code)]).len(), count);
        }
    }
}
