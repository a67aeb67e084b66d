//! Tests that cannot run here: each prints the reason and is counted.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::MetadataExt;

/// Prints the reason and appends it to the file that `ANNULUS_SKIP_LOG` names, if it is set.
pub fn skip(reason: impl Display) {
    let line = format!("skip: {reason}");
    println!("{line}");
    log(&line);
}

/// Appends a line to the file that `ANNULUS_SKIP_LOG` names, if it is set.
pub fn log(line: &str) {
    let Some(path) = std::env::var_os("ANNULUS_SKIP_LOG") else {
        return;
    };
    let log = OpenOptions::new().create(true).append(true).open(path);
    // A single write, so that lines of concurrent tests are not mixed.
    let line = format!("{line}\n");
    log.unwrap().write_all(line.as_bytes()).unwrap();
}

/// Returns whether this process is root. If not, skips `what`.
pub fn root_or_skip(what: &str) -> bool {
    let root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    if !root {
        skip(format_args!("{what} needs root"));
    }
    root
}
