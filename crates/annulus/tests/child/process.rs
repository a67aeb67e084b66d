//! Tests that change what holds for a whole process: each runs in a child of its own, which is the same
//! binary, started again for one test.
#![allow(unsafe_code)]

use std::process::{Command, Stdio};

use crate::skip::log;

/// The test that a child is for.
const ROLE: &str = "ANNULUS_TEST_CHILD";

/// Runs `body` in a process that runs nothing else. A panic of the child is the caller's; what the child skips is
/// logged here, because the child may not be allowed to.
#[track_caller]
pub(crate) fn in_child(test: &str, body: impl FnOnce()) {
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
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "the child of {test}: {}\n{said}\n{complained}",
        output.status
    );
    for line in said.lines() {
        println!("{line}");
        if let Some(at) = line.find("skip: ") {
            log(&line[at..]);
        }
    }
}

/// Becomes the user "nobody", with no groups and no capabilities, in all threads of this process.
#[allow(dead_code, reason = "not every test gives up its rights")]
pub(crate) fn become_nobody() {
    const NOBODY: libc::uid_t = 65534;
    // SAFETY: numbers only; the C library carries the change to every thread.
    unsafe {
        assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
        assert_eq!(libc::setresgid(NOBODY, NOBODY, NOBODY), 0);
        assert_eq!(libc::setresuid(NOBODY, NOBODY, NOBODY), 0);
        assert_eq!(libc::geteuid(), NOBODY);
    }
}
