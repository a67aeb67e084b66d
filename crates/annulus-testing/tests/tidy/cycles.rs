//! The largest cycle of imports between the files of each crate. It may shrink, and must not grow.
//!
//! A file imports another one if a `use` or a path in its code leads there. A name that a folder's file only re-exports
//! leads to the file that defines it. Code that only tests compile does not count.

use std::collections::{BTreeMap, BTreeSet};

use crate::repo::{Findings, Repo};
use crate::source::{Source, find_word, ident_after, split_top};

/// The number of files in the largest cycle of each crate. 1 is no cycle. In the library it is the runtime's; that of
/// the drivers had 18 at bc95828d.
const LARGEST: [(&str, usize); 11] = [
    ("annulus", 8),
    ("annulus-baselines", 3),
    ("annulus-cli", 2),
    ("annulus-http", 2),
    ("annulus-hyper", 2),
    ("annulus-object-store", 3),
    ("annulus-observe", 1),
    ("annulus-opendal", 1),
    ("annulus-pool", 2),
    ("annulus-preload", 4),
    ("annulus-testing", 1),
];

pub(crate) fn largest(repo: &Repo, found: &mut Findings) {
    for (name, recorded) in LARGEST {
        let read = Crate::read(repo, name);
        let cycle = read.largest_cycle();
        let largest = cycle.len().max(1);
        if largest == recorded {
            continue;
        }
        let remedy = match largest > recorded {
            true => "cut an import, or move what two files need to a file of its own",
            false => "record the smaller number in LARGEST",
        };
        let files = cycle.join(" ");
        let says = format!(
            "the largest cycle has {largest} files, recorded are {recorded}; {remedy}: {files}"
        );
        found.add(&format!("crates/{name}/src"), 1, says);
    }
}

/// A path of modules from the crate's root.
type Module = Vec<String>;

/// The files of a crate that ship, by module.
#[derive(Default)]
struct Crate {
    files: BTreeMap<Module, String>,
    /// The names that a module re-exports, with the path that leads to each.
    exports: BTreeMap<Module, BTreeMap<String, Module>>,
    /// The paths that a module names, besides re-exports.
    named: BTreeMap<Module, Vec<Module>>,
}

impl Crate {
    fn read(repo: &Repo, name: &str) -> Crate {
        let mut read = Crate::default();
        for (_, below, source) in repo.sources_of(name) {
            let stem = below.trim_end_matches(".rs");
            let mut module: Module = stem.split('/').map(str::to_owned).collect();
            if module.iter().any(|part| part == "tests" || part == "bin") {
                continue;
            }
            if matches!(
                module.last().map(String::as_str),
                Some("mod" | "lib" | "main")
            ) {
                module.pop();
            }
            read.add(module, below, source);
        }
        read
    }

    fn add(&mut self, module: Module, below: &str, source: &Source) {
        let code = &source.shipped;
        let (mut exports, mut named) = (BTreeMap::new(), Vec::new());
        for (path, alias, is_export) in paths(code) {
            let Some(path) = absolute(&module, &path) else {
                continue;
            };
            match alias {
                Some(alias) if is_export => drop(exports.insert(alias, path)),
                _ => named.push(path),
            }
        }
        self.exports.insert(module.clone(), exports);
        self.named.insert(module.clone(), named);
        self.files.insert(module, below.to_owned());
    }

    /// Returns the module whose file defines what `path` names.
    fn module_of(&self, path: &[String], depth: usize) -> Option<&Module> {
        let known = |length: &usize| self.files.contains_key(&path[..*length]);
        let length = (0..=path.len()).rev().find(known)?;
        let (module, _) = self.files.get_key_value(&path[..length])?;
        let export = path
            .get(length)
            .and_then(|name| self.exports.get(module)?.get(name));
        match export {
            Some(target) if depth > 0 && target != path => self.module_of(target, depth - 1),
            _ => Some(module),
        }
    }

    fn imports(&self, module: &Module) -> BTreeSet<&Module> {
        let named = self.named.get(module).into_iter().flatten();
        let imported = named.filter_map(|path| self.module_of(path, 4));
        imported.filter(|other| *other != module).collect()
    }

    /// Returns the modules that `module` reaches by imports.
    fn reached<'a>(
        &'a self,
        module: &'a Module,
        edges: &BTreeMap<&'a Module, BTreeSet<&'a Module>>,
    ) -> BTreeSet<&'a Module> {
        let (mut reached, mut next) = (BTreeSet::new(), vec![module]);
        while let Some(module) = next.pop() {
            for other in edges.get(module).into_iter().flatten() {
                if reached.insert(*other) {
                    next.push(other);
                }
            }
        }
        reached
    }

    /// Returns the files of the largest set in which each file reaches every other one.
    fn largest_cycle(&self) -> Vec<&str> {
        let edges: BTreeMap<_, _> = (self.files.keys())
            .map(|module| (module, self.imports(module)))
            .collect();
        let reached: BTreeMap<_, _> = (self.files.keys())
            .map(|module| (module, self.reached(module, &edges)))
            .collect();
        let cycle_of = |module: &Module| {
            let others = reached[module]
                .iter()
                .filter(|other| reached[*other].contains(module));
            others
                .map(|other| self.files[*other].as_str())
                .collect::<Vec<_>>()
        };
        let cycles = self.files.keys().map(cycle_of);
        cycles.max_by_key(Vec::len).unwrap_or_default()
    }
}

/// Returns the paths in the code: the segments, the name that a `use` gives it, and whether that re-exports it.
fn paths(code: &str) -> Vec<(Vec<&str>, Option<String>, bool)> {
    let (mut found, mut uses) = (Vec::new(), Vec::new());
    for at in find_word(code, "use") {
        let end = code[at..].find(';').map_or(code.len(), |end| at + end);
        let line = code[..at].rfind('\n').map_or(0, |line| line + 1);
        let is_export = code[line..at].trim_start().starts_with("pub");
        branches(&code[at + "use".len()..end], &[], &mut |path, alias| {
            found.push((path.to_vec(), Some(alias.to_owned()), is_export));
        });
        uses.push(at..end);
    }
    for start in ["crate", "super"] {
        for at in find_word(code, start) {
            let rest = &code[at..];
            let in_a_use = uses.iter().any(|range| range.contains(&at));
            if !in_a_use && !code[..at].ends_with("::") && rest[start.len()..].starts_with("::") {
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
                let path = rest[..end.unwrap_or(rest.len())].trim_end_matches(':');
                found.push((path.split("::").collect(), None, false));
            }
        }
    }
    found
}

/// Calls `add` with the segments of each branch of a `use`, and with the name that it gives.
fn branches<'a>(tree: &'a str, before: &[&'a str], add: &mut impl FnMut(&[&'a str], &'a str)) {
    let tree = tree.trim();
    if let Some(inside) = tree.strip_prefix('{') {
        let parts = split_top(inside);
        return parts
            .into_iter()
            .for_each(|part| branches(part, before, add));
    }
    let segment = ident_after(tree, 0);
    if segment.is_empty() {
        return;
    }
    let mut path = before.to_vec();
    let rest = tree[segment.len()..].trim_start();
    if segment != "self" || before.is_empty() {
        path.push(segment);
    }
    match rest.strip_prefix("::") {
        Some(rest) if !rest.trim_start().starts_with('*') => branches(rest, &path, add),
        _ => {
            let alias = rest
                .strip_prefix("as ")
                .map_or(segment, |alias| ident_after(alias, 0));
            add(&path, alias);
        }
    }
}

/// Returns the path from the crate's root; `None` for a path into another crate, which no file has the name of.
fn absolute(module: &[String], path: &[&str]) -> Option<Module> {
    let (mut base, mut rest) = (module.to_vec(), path);
    match *path.first()? {
        "crate" => {
            base.clear();
            rest = &path[1..];
        }
        "self" => rest = &path[1..],
        "super" => {
            while let Some((&"super", others)) = rest.split_first() {
                base.pop()?;
                rest = others;
            }
        }
        // A child of this module, or another crate, which then leads to this file itself.
        _ => {}
    }
    base.extend(rest.iter().map(|part| (*part).to_owned()));
    Some(base)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::planted;

    #[test]
    fn a_cycle_is_found_through_uses_paths_and_names_that_a_folder_re_exports() {
        let found = planted(
            largest,
            &[
                ("crates/annulus/src/lib.rs", "mod a; mod b; mod c;"),
                ("crates/annulus/src/a.rs", "use crate::b::{self, Shared};"),
                (
                    "crates/annulus/src/b/mod.rs",
                    "mod inner;\npub(crate) use inner::Shared;",
                ),
                ("crates/annulus/src/b/inner.rs", "fn f() { crate::c::g() }"),
                (
                    "crates/annulus/src/c.rs",
                    "use super::a::{\n    x::Y as Z,\n};",
                ),
                (
                    "crates/annulus/src/d.rs",
                    "#[cfg(test)]\nmod tests {\n    use crate::e::E;\n}",
                ),
                ("crates/annulus/src/e.rs", "use crate::d::D;"),
            ],
        );
        let annulus = found
            .iter()
            .find(|one| one.file == "crates/annulus/src")
            .unwrap();
        assert!(annulus.says.contains("has 3 files"), "{}", annulus.says);
        assert!(
            annulus.says.ends_with("a.rs b/inner.rs c.rs"),
            "{}",
            annulus.says
        );
    }
}
