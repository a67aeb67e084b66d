//! A process with a memory limit, which is also that of its page cache.

use std::ffi::OsStr;
use std::fs;
use std::io::{Error, Result};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Runs this program again with other arguments, in a new cgroup with a memory limit. Returns what it printed.
///
/// # Errors
///
/// Fails without the right to make a cgroup, which needs root, and if the program fails.
pub fn in_limited_memory(bytes: u64, arguments: &[&OsStr]) -> Result<String> {
    let name = format!("annulus-measure-{}", std::process::id());
    let old = Path::new("/sys/fs/cgroup/memory");
    let (group, limit) = match old.exists() {
        true => (old.join(name), "memory.limit_in_bytes"),
        false => (Path::new("/sys/fs/cgroup").join(name), "memory.max"),
    };
    fs::create_dir(&group).map_err(|error| {
        let what = format!("creating {}, which needs root: {error}", group.display());
        Error::new(error.kind(), what)
    })?;
    let output = fs::write(group.join(limit), bytes.to_string()).and_then(|()| {
        // The shell enters the cgroup before the program begins, so that all of its memory counts.
        Command::new("sh")
            .args(["-c", "echo $$ >\"$0/cgroup.procs\" && exec \"$@\""])
            .arg(&group)
            .arg(std::env::current_exe()?)
            .args(arguments)
            .output()
    });
    // Its last pages are released shortly after the process has ended.
    let _ = fs::write(group.join("memory.force_empty"), "0");
    for _ in 0..100 {
        if fs::remove_dir(&group).is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = output?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Error::other(format!(
            "{arguments:?}: {}: {said}",
            output.status
        )));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
