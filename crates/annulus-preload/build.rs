//! Writes the linker's list of the functions that the shared object exports, from the list of glibc's functions. The
//! build script of `annulus-cli`, which links the shared object, receives the path as `DEP_ANNULUS_PRELOAD_EXPORTS`.

use std::path::PathBuf;
use std::{env, fs};

/// Every function of glibc, under a heading that says what the library does with it.
const LIST: &str = "tests/exports/glibc.txt";
/// The headings of the exported functions.
const EXPORTED: [&str; 3] = ["[served]", "[handed back]", "[noted]"];

fn main() {
    println!("cargo::rerun-if-changed={LIST}");
    let list = fs::read_to_string(LIST).expect("the package contains the list of functions");
    let mut is_exported = false;
    let mut script = String::from("{ global:\n");
    for line in list.lines() {
        match line.chars().next() {
            Some('[') => is_exported = EXPORTED.contains(&line),
            Some('#' | ':') => {}
            _ if is_exported => line
                .split_whitespace()
                .for_each(|name| script += &format!("{name};\n")),
            _ => {}
        }
    }
    script += "local: *; };\n";
    let folder = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    let path = PathBuf::from(folder).join("exports.map");
    fs::write(&path, script).expect("cargo's output folder is writable");
    println!("cargo::metadata=exports={}", path.display());
}
