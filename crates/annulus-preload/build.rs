//! Refuses targets that the hooks are not written for. Writes the linker's list of the functions that the shared object
//! exports, from the list of glibc's functions. The build script of `annulus-cli`, which links the shared object,
//! receives the path as `DEP_ANNULUS_PRELOAD_EXPORTS`.

use std::path::PathBuf;
use std::{env, fs};

/// Every function of glibc, under a heading that says what the library does with it.
const LIST: &str = "tests/exports/glibc.txt";
/// The headings of the exported functions.
const EXPORTED: [&str; 3] = ["[served]", "[handed back]", "[noted]"];

/// The operating system, the architectures and the C library that the hooks are written for, as cargo names them.
const TARGET: [(&str, &[&str]); 3] = [
    ("CARGO_CFG_TARGET_OS", &["linux"]),
    ("CARGO_CFG_TARGET_ARCH", &["x86_64", "aarch64"]),
    ("CARGO_CFG_TARGET_ENV", &["gnu"]),
];

fn main() {
    // Here, because a `compile_error!` would be one of many errors of the compiler.
    if !TARGET
        .iter()
        .all(|(name, values)| env::var(name).is_ok_and(|set| values.contains(&set.as_str())))
    {
        println!(
            "cargo::error=annulus-preload supports only x86-64 and aarch64 Linux with glibc (x86_64-unknown-linux-gnu, \
             aarch64-unknown-linux-gnu), because its hooks of `syscall`, `clone` and variadic functions are written for \
             these ABIs; build annulus-cli without its feature `preload`"
        );
        return;
    }
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
