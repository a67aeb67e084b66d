//! Things that tests build and share. Under nextest each test is a process of its own, so a static is not enough.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

/// The path that `make` returns. Under nextest the first test of a run calls it, and the others wait for that and take
/// its path. Without nextest each call makes it; a process that has many tests keeps the path itself. `None`, which
/// is asked for again each time: it can't be made here.
pub(crate) fn once_per_run(name: &str, make: impl FnOnce() -> Option<PathBuf>) -> Option<PathBuf> {
    let Ok(run) = std::env::var("NEXTEST_RUN_ID") else {
        return make();
    };
    let record = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("once-{name}"));
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(record)
        .unwrap();
    // Until this process closes the file.
    file.lock().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    if let Some((of, path)) = text.split_once('\n')
        && of == run
    {
        return Some(path.into());
    }
    // An older run's, or of one that was killed while it wrote.
    file.set_len(0).unwrap();
    file.rewind().unwrap();
    let path = make()?;
    let line = format!("{run}\n{}", path.to_str().unwrap());
    file.write_all(line.as_bytes()).unwrap();
    Some(path)
}
