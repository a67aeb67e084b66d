//! The library that servers are tested with: the one that cargo builds, another, or none.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use annulus_testing::preload_library;

/// The variable that names another library. With `none`, the servers run without a library, which shows whether a test
/// only expects the server's usual behaviour.
const LIBRARY: &str = "ANNULUS_TEST_LIBRARY";

pub(crate) fn library() -> Option<&'static Path> {
    static PATH: OnceLock<Option<PathBuf>> = OnceLock::new();
    match PATH.get_or_init(|| std::env::var_os(LIBRARY).map(Into::into)) {
        Some(none) if none.as_os_str() == "none" => None,
        Some(path) => Some(path),
        None => Some(preload_library::library(Path::new(env!(
            "CARGO_TARGET_TMPDIR"
        )))),
    }
}
