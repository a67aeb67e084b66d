//! Files that a run of the tests builds once. Under nextest each test is its own process, so a static lives for one
//! test only.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

/// Returns the path that `make` returns. Under nextest the first test of a run calls `make`; the other tests wait for
/// it and use its path. Without nextest each call runs `make`, so a process with many tests keeps the path itself.
/// `None` means that the file cannot be built here; it is not remembered.
///
/// `tmp` is the caller's `CARGO_TARGET_TMPDIR`. The path is recorded there, in the file `once-<name>`.
pub fn once_per_run(
    tmp: &Path,
    name: &str,
    make: impl FnOnce() -> Option<PathBuf>,
) -> Option<PathBuf> {
    let Ok(run) = std::env::var("NEXTEST_RUN_ID") else {
        return make();
    };
    let record = tmp.join(format!("once-{name}"));
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(record)
        .unwrap();
    // The lock is held until this process closes the file.
    file.lock().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    if let Some((of, path)) = text.split_once('\n')
        && of == run
    {
        return Some(path.into());
    }
    // The record of an older run, or of one that was killed while it wrote.
    file.set_len(0).unwrap();
    file.rewind().unwrap();
    let path = make()?;
    let line = format!("{run}\n{}", path.to_str().unwrap());
    file.write_all(line.as_bytes()).unwrap();
    Some(path)
}
