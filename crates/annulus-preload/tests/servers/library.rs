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
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.args(["build", "-p", "annulus-preload", "--message-format=json"]);
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let output = cargo.output().unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{cargo:?}: {complaints}");
    let said = String::from_utf8_lossy(&output.stdout);
    let built = said.lines().rev().find_map(artifact);
    built.unwrap_or_else(|| panic!("{cargo:?} named no library:\n{said}"))
}

/// The library, if one of cargo's messages names it.
fn artifact(message: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let files = message["filenames"].as_array()?;
    let mut paths = files.iter().filter_map(|file| file.as_str());
    let library = paths.find(|path| path.ends_with("/libannulus_preload.so"))?;
    Some(PathBuf::from(library))
}
