//! The library as a server's operator has it: built by cargo, of the profile that the tests are of.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Names another library than the one that cargo builds; `none` has the servers run without, which shows whether a
/// test asks what a server does by itself.
const LIBRARY: &str = "ANNULUS_TEST_LIBRARY";

/// Builds the library, once, and returns where it is. A library that nothing links is not built for its tests.
pub(crate) fn library() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = BUILT.get_or_init(|| match std::env::var_os(LIBRARY) {
        Some(none) if none == "none" => None,
        Some(given) => Some(given.into()),
        None => Some(build()),
    });
    built.as_deref()
}

fn build() -> PathBuf {
    // …/debug/deps/servers-0123456789abcdef
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap().parent().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "-p", "annulus-preload"]);
    cargo.arg("--target-dir").arg(folder.parent().unwrap());
    if folder.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success(), "{cargo:?}");
    let built = folder.join("libannulus_preload.so");
    assert!(built.is_file(), "{cargo:?} made no {}", built.display());
    built
}
