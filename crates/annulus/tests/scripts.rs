//! The scripts that run tests. `ci/lib/bounded` adds no delay to a test that ends, and reports one that hangs.
//! `ci/lib/nextest` lists flaky tests and fails if there are too many.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../ci/lib")
        .join(name)
}

fn watched(limit_s: &str, command: &[&str]) -> Child {
    Command::new(script("bounded"))
        .arg(limit_s)
        .args(command)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn complaints(child: &mut Child) -> String {
    let mut text = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    text
}

/// Runs the script as rustdoc does, which first reads the output to its end. A watcher that held the output open, or
/// took a zombie for a running process, would let the time limit pass and report the test.
#[test]
fn a_test_that_has_ended_is_not_waited_for_by_its_watcher() {
    let mut child = watched("60", &["true"]);
    assert_eq!(complaints(&mut child), "");
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_test_that_hangs_is_killed_and_its_threads_are_listed() {
    let mut child = watched("1", &["sh", "-c", "sleep 1000; :"]);
    let text = complaints(&mut child);
    assert!(
        text.contains("still running after 1 s, and killed: sh"),
        "{text}"
    );
    // Its child is killed as well.
    assert!(text.contains("sleep 1000"), "{text}");
    assert_eq!(child.wait().unwrap().signal(), Some(9), "{text}");
}

/// Runs `ci/lib/nextest` with a cargo that only writes a report of `count` flaky tests and one that passes.
fn with_flaky(count: usize) -> (bool, String) {
    let dir = tempfile::tempdir().unwrap();
    let profile = format!("runner-{}-{count}", std::process::id());
    let reports = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../target/nextest")
        .join(&profile);
    fs::create_dir_all(&reports).unwrap();
    let flaky: String = (0..count)
        .map(|n| {
            format!("<testcase classname='c' name='t{n}'><flakyFailure message='late'/></testcase>")
        })
        .collect();
    let report = format!(
        "<testsuites><testsuite><testcase classname='c' name='good'/>{flaky}</testsuite></testsuites>"
    );
    let cargo = format!(
        "#!/bin/sh\necho \"{report}\" >'{}/junit.xml'\n",
        reports.display()
    );
    for name in ["cargo", "cargo-nextest"] {
        let path = dir.path().join(name);
        fs::write(&path, &cargo).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let log = dir.path().join("flaky.log");
    fs::write(&log, "").unwrap();
    let path = format!(
        "{}:{}",
        dir.path().display(),
        std::env::var("PATH").unwrap()
    );
    let output = Command::new(script("nextest"))
        .env("PATH", path)
        .env("NEXTEST_PROFILE", &profile)
        .env("ANNULUS_FLAKY_LOG", &log)
        .output()
        .unwrap();
    fs::remove_dir_all(&reports).unwrap();
    let message = String::from_utf8_lossy(&output.stdout);
    for n in 0..count {
        assert!(
            message.contains(&format!("flaky: c t{n}: failed 1 of 2 times: late")),
            "{output:?}"
        );
    }
    assert!(!message.contains("good"), "{output:?}");
    (output.status.success(), fs::read_to_string(&log).unwrap())
}

#[test]
fn flaky_tests_are_listed_and_more_than_three_fail_the_run() {
    let (passed, log) = with_flaky(3);
    assert!(passed && log.lines().count() == 3, "{log}");
    let (passed, log) = with_flaky(4);
    assert!(!passed && log.lines().count() == 4, "{log}");
}
