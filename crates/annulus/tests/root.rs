//! The crate's root: few items, everything else in a module.

use std::collections::BTreeSet;

/// The items of the root.
const ITEMS: [&str; 14] = [
    "Backend",
    "BackendInUse",
    "BufError",
    "BufResult",
    "Engine",
    "EngineBuilder",
    "EngineError",
    "File",
    "IoBuf",
    "IoBufMut",
    "OpenOptions",
    "Operation",
    "SetupError",
    "WholeResult",
];

/// The public modules with every feature, except the hidden ones.
const MODULES: [&str; 13] = [
    "buf", "engine", "fs", "guide", "metrics", "net", "op", "runtime", "signal", "sim", "support",
    "time", "tokio",
];

/// Public modules that the documentation does not show.
const HIDDEN: [&str; 1] = ["preload"];

/// Reads the names of the items and modules that `lib.rs` exports.
fn exports() -> (BTreeSet<String>, BTreeSet<String>) {
    let text = include_str!("../src/lib.rs");
    let (mut items, mut modules) = (BTreeSet::new(), BTreeSet::new());
    // Exports of the root are not indented; a module's own are.
    let mut statement = String::new();
    for line in text.lines() {
        // Modules are within the choice of an implementation.
        if let Some(rest) = line.trim_start().strip_prefix("pub mod ") {
            let name = rest.split([';', ' ', '{']).next().unwrap_or_default();
            modules.insert(name.to_owned());
        }
        if line.starts_with("pub use ") || !statement.is_empty() {
            statement.push_str(line.trim());
        }
        if statement.ends_with(';') {
            let whole = std::mem::take(&mut statement);
            let names = whole.trim_start_matches("pub use ").trim_end_matches(';');
            let names = names.rsplit_once("::").map_or(names, |(_, last)| last);
            let names = names.trim_matches(['{', '}']).split(',');
            items.extend(
                names
                    .map(|name| name.trim().to_owned())
                    .filter(|name| !name.is_empty()),
            );
        }
    }
    (items, modules)
}

#[test]
fn the_root_has_fourteen_items_and_everything_else_is_in_a_module() {
    let (items, modules) = exports();
    assert_eq!(items, BTreeSet::from(ITEMS.map(str::to_owned)));
    let allowed = BTreeSet::from_iter(MODULES.into_iter().chain(HIDDEN).map(str::to_owned));
    let unknown: Vec<_> = modules.difference(&allowed).collect();
    assert!(
        unknown.is_empty(),
        "modules that are not in the list: {unknown:?}"
    );
}
