//! `ci/lib/bounded`, which watches tests: it costs a test that ends nothing, and names one that hangs.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ci/lib/bounded")
}

fn watched(limit_s: &str, command: &[&str]) -> Child {
    Command::new(script())
        .args(command)
        .env("ANNULUS_TEST_LIMIT_S", limit_s)
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

/// As rustdoc does it: the output is read to its end first. A watcher that held it open, or that took the zombie for
/// a running process, would let the limit pass and complain.
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
    assert!(text.contains("still running after 1 s: sh"), "{text}");
    // Its child, too.
    assert!(text.contains("sleep 1000"), "{text}");
    assert_eq!(child.wait().unwrap().signal(), Some(9), "{text}");
}

#[test]
fn a_test_that_is_only_shown_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("stderr");
    let said = "still running after 1 s: sh";
    let mut child = Command::new(script())
        .args(["--show", "1", "sh", "-c"])
        .arg(format!("until grep -q '{said}' stderr; do sleep 0.1; done"))
        .current_dir(dir.path())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    assert!(child.wait().unwrap().success());
}
