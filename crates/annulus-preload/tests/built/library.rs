//! The preload library as an operator has it: built by cargo, in the profile of the tests. Cargo builds no `cdylib` for
//! the tests of its own package, so this module runs it, and takes the file's path from its messages.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::once::once_per_run;

/// Builds the library, once.
pub(crate) fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| once_per_run("library", || Some(build())).unwrap())
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
    let stdout = String::from_utf8_lossy(&output.stdout);
    let named = stdout.lines().rev().find_map(artifact);
    named.unwrap_or_else(|| panic!("{cargo:?} named no library\n{stdout}"))
}

/// The shared library that one of cargo's messages names.
fn artifact(message: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let files = message.get("filenames")?.as_array()?;
    let mut names = files.iter().filter_map(|file| file.as_str());
    names
        .find(|name| name.ends_with("/libannulus_preload.so"))
        .map(PathBuf::from)
}
