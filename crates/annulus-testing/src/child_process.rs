//! Tests that change a property of their whole process. Each runs in a child process: the same test program, started again
//! for one test.
#![allow(unsafe_code)]

use std::process::{Command, Stdio};

use crate::skip::log;

/// The environment variable that names the test of a child.
const ROLE: &str = "ANNULUS_TEST_CHILD";

/// Runs `body` in a process that runs nothing else. Panics if the child panics. Writes the child's skips to the log,
/// because the child may have no access to that file.
#[track_caller]
pub fn in_child(test: &str, body: impl FnOnce()) {
    if std::env::var(ROLE).as_deref() == Ok(test) {
        return body();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            test,
            "--exact",
            "--include-ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(ROLE, test)
        .env_remove("ANNULUS_SKIP_LOG")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && stdout.contains("1 passed"),
        "the child of {test}: {}\n{stdout}\n{stderr}",
        output.status
    );
    for line in stdout.lines() {
        println!("{line}");
        if let Some(at) = line.find("skip: ") {
            log(&line[at..]);
        }
    }
}

/// Changes to the user "nobody", without groups and capabilities, in all threads of this process.
pub fn become_nobody() {
    const NOBODY: libc::uid_t = 65534;
    // SAFETY: only numbers are passed; the C library applies the change to every thread.
    unsafe {
        assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
        assert_eq!(libc::setresgid(NOBODY, NOBODY, NOBODY), 0);
        assert_eq!(libc::setresuid(NOBODY, NOBODY, NOBODY), 0);
        assert_eq!(libc::geteuid(), NOBODY);
    }
}
