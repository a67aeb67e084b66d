//! The preload library, built by cargo in the profile of the tests. It is a binary of another package, `annulus-cli`,
//! so this module runs cargo and takes the library's path from its messages. `ANNULUS_PRELOAD_LIBRARY` names one that
//! is built already.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::once::once_per_run;

/// Returns the path of the library, which it builds once per run. `tmp` is the caller's `CARGO_TARGET_TMPDIR`.
pub fn library(tmp: &Path) -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| match std::env::var_os("ANNULUS_PRELOAD_LIBRARY") {
        Some(path) => PathBuf::from(path),
        None => once_per_run(tmp, "library", || Some(build())).unwrap(),
    })
}

fn build() -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.args(["build", "-p", "annulus-cli", "--bin", "libannulus_preload"]);
    cargo.arg("--message-format=json");
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let output = cargo.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{cargo:?}: {stderr}");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let named = stdout.lines().rev().find_map(artifact);
    named.unwrap_or_else(|| panic!("{cargo:?} named no library\n{stdout}"))
}

/// Returns the shared library that one of cargo's messages names.
fn artifact(message: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let files = message.get("filenames")?.as_array()?;
    let mut names = files.iter().filter_map(|file| file.as_str());
    names
        .find(|name| name.ends_with("/libannulus_preload"))
        .map(PathBuf::from)
}
