//! Tests that change a property of their whole process. Each runs in a child process: the same test program, started
//! again for one test.
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

/// The time after which the kernel kills a forked child.
const FORK_MAX_S: u32 = 200;

/// Runs `body` in a forked child. Panics if the child panics or hangs. Call it inside of `in_child`: a lock that
/// another thread holds meanwhile is never free in the forked child.
#[track_caller]
pub fn in_fork(body: impl FnOnce()) {
    // SAFETY: no other thread of this process holds a lock, and the child ends without running destructors of the
    // parent.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: only a number is passed.
        unsafe { libc::alarm(FORK_MAX_S) };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        // SAFETY: ends the child without running any code of the parent.
        unsafe { libc::_exit(result.is_err().into()) };
    }
    assert!(pid > 0, "fork: {}", std::io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: `status` outlives the call, and this process has not waited for the child before.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!((waited, status), (pid, 0), "the forked child failed");
}

/// The number of a user who owns no files, and whose processes are only those of this test process. The kernel counts
/// locked memory and processes per user, so tests that share a user fail beside each other.
#[must_use]
pub fn own_user() -> u32 {
    // Within the 65,536 users that a container usually has, and above those of a usual system.
    20_000 + std::process::id() % 40_000
}

/// Changes to `own_user`, without groups and capabilities, in all threads of this process.
pub fn become_own_user() {
    let user = own_user();
    // SAFETY: only numbers are passed; the C library applies the change to every thread.
    unsafe {
        assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
        assert_eq!(libc::setresgid(user, user, user), 0);
        assert_eq!(libc::setresuid(user, user, user), 0);
        assert_eq!(libc::geteuid(), user);
    }
}
