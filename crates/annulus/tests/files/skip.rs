//! A test that can't run here says so, and is counted.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::MetadataExt;

/// Prints the reason, and adds it to the file that `ANNULUS_SKIP_LOG` names.
pub(crate) fn skip(reason: impl Display) {
    println!("skip: {reason}");
    if let Some(log) = std::env::var_os("ANNULUS_SKIP_LOG") {
        let mut log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .unwrap();
        // One write, so that tests side by side don't mix their lines.
        let line = format!("skip: {reason}\n");
        log.write_all(line.as_bytes()).unwrap();
    }
}

/// Whether this process is root; says what it skips if not.
pub(crate) fn root_or_skip(what: &str) -> bool {
    let root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    if !root {
        skip(format_args!("{what} needs root"));
    }
    root
}
