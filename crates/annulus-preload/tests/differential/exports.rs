//! Checks that the list of glibc's exports is complete: `tests/exports/glibc.txt` assigns each function to a heading,
//! and the functions under the first three headings are those that the library exports.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use annulus_testing::skip::skip;

use crate::library;

/// The headings: the library's treatment of the names below each.
const HEADINGS: [&str; 6] = [
    "served",
    "handed back",
    "noted",
    "covered otherwise",
    "passes",
    "irrelevant",
];
/// The number of headings whose names the library exports.
const EXPORTED: usize = 3;

/// The libraries of glibc whose functions use descriptors or processes; from 2.34 on, most are in the first.
const LIBRARIES: [&str; 9] = [
    "libc.so.6",
    "libpthread.so.0",
    "librt.so.1",
    "libresolv.so.2",
    "libanl.so.1",
    "libutil.so.1",
    "libdl.so.2",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
];

/// The parsed list.
#[derive(Default)]
struct List {
    /// Full names, with their headings.
    names: BTreeMap<String, usize>,
    patterns: Vec<String>,
    wrong: Vec<String>,
}

impl List {
    fn read(text: &str) -> List {
        let mut list = List::default();
        let (mut heading, mut reason) = (None, false);
        for (line, nth) in text.lines().zip(1..) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(name) = line
                .strip_prefix('[')
                .and_then(|line| line.strip_suffix(']'))
            {
                heading = HEADINGS.iter().position(|known| *known == name);
                reason = false;
            } else if line.starts_with(": ") {
                reason = true;
            } else if let Some(heading) = heading.filter(|_| reason) {
                for word in line.split_whitespace() {
                    list.add(word, heading);
                }
            } else {
                list.wrong.push(format!(
                    "line {nth}: no known heading precedes it, or its heading has no reason"
                ));
            }
        }
        list
    }

    fn add(&mut self, word: &str, heading: usize) {
        if word.contains('*') {
            if heading + 1 < HEADINGS.len() {
                let message =
                    "a pattern under a heading whose names matter; write each name in full";
                self.wrong.push(format!("{word}: {message}"));
            }
            self.patterns.push(word.to_owned());
        } else if self.names.insert(word.to_owned(), heading).is_some() {
            self.wrong.push(format!("{word}: is listed twice"));
        }
    }

    fn covers(&self, name: &str) -> bool {
        self.names.contains_key(name) || self.patterns.iter().any(|pattern| matches(pattern, name))
    }

    fn exported(&self) -> BTreeSet<&str> {
        let names = self
            .names
            .iter()
            .filter(|(_, heading)| **heading < EXPORTED);
        names.map(|(name, _)| &**name).collect()
    }
}

/// Returns whether a name matches a pattern, in which `*` stands for any characters.
fn matches(pattern: &str, name: &str) -> bool {
    let (first, remaining) = pattern.split_once('*').unwrap_or((pattern, ""));
    let Some(left) = name.strip_prefix(first) else {
        return false;
    };
    if !pattern.contains('*') {
        return left.is_empty();
    }
    (0..=left.len()).any(|at| {
        let tail = &left[at..];
        matches(remaining, tail)
    })
}

/// Returns the functions that a library exports, without private ones. `None`: `nm` is not installed.
fn functions(library: &Path) -> Option<BTreeSet<String>> {
    let listed = Command::new("nm")
        .args(["--dynamic", "--defined-only", "--format=posix"])
        .arg(library)
        .output()
        .ok()?;
    let listed = String::from_utf8(listed.stdout).unwrap();
    let function = |line: &str| {
        let mut words = line.split(' ');
        let (name, kind) = (words.next()?, words.next()?);
        let is_function = matches!(kind, "T" | "W" | "i");
        let name = name
            .strip_suffix("@@GLIBC_PRIVATE")
            .map_or(Some(name), |_| None);
        let name = name.filter(|name| is_function && !name.ends_with("@GLIBC_PRIVATE"))?;
        Some(name.split('@').next().unwrap_or(name).to_owned())
    };
    Some(listed.lines().filter_map(function).collect())
}

/// Returns the folder of the C library that this test uses.
fn folder() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps.lines().find_map(|line| {
        let path = line.split_whitespace().next_back()?;
        path.ends_with("/libc.so.6").then_some(path)
    });
    Path::new(path.unwrap()).parent().unwrap().to_owned()
}

fn list() -> List {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exports/glibc.txt");
    List::read(&std::fs::read_to_string(path).unwrap())
}

#[test]
fn every_function_of_the_installed_glibc_is_in_the_list() {
    let list = list();
    assert!(list.wrong.is_empty(), "{}", list.wrong.join("\n"));
    let folder = folder();
    let mut missing = BTreeSet::new();
    for library in LIBRARIES.map(|name| folder.join(name)) {
        if library.exists() {
            let Some(functions) = functions(&library) else {
                return skip("no nm to list the C library's symbols");
            };
            missing.extend(functions.into_iter().filter(|name| !list.covers(name)));
        }
    }
    assert!(
        missing.is_empty(),
        "glibc exports functions that tests/exports/glibc.txt does not list; add each under a heading: {missing:?}"
    );
}

#[test]
fn the_listed_functions_are_exported_and_no_others() {
    let Some(exported) = functions(library()) else {
        return skip("no nm to list the library's symbols");
    };
    let exported: BTreeSet<&str> = exported.iter().map(String::as_str).collect();
    let list = list();
    let listed = list.exported();
    let absent: Vec<_> = listed.difference(&exported).collect();
    let unnamed: Vec<_> = exported
        .difference(&listed)
        .filter(|name| !name.starts_with("rust_"))
        .collect();
    assert!(absent.is_empty(), "listed, but not exported: {absent:?}");
    assert!(
        unnamed.is_empty(),
        "exported; put these under one of the first {EXPORTED} headings of the list: {unnamed:?}"
    );
}

#[test]
fn a_new_name_is_reported_as_missing() {
    let list =
        List::read("# text\n[served]\n: why\nread write\n[irrelevant]\n: why\nstr* get*ent\n");
    assert!(list.wrong.is_empty());
    assert!(list.covers("read") && list.covers("strlen") && list.covers("getpwent"));
    assert!(!list.covers("read2") && !list.covers("getpwents") && !list.covers("mystr"));
    assert_eq!(list.exported(), BTreeSet::from(["read", "write"]));
    for wrong in [
        "[served]\nread\n",
        "[unknown]\n: why\nread\n",
        "[served]\n: why\nre*\n",
        "[passes]\n: why\nread\n[served]\n: why\nread\n",
    ] {
        assert!(!List::read(wrong).wrong.is_empty(), "{wrong}");
    }
}
