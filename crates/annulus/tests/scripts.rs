//! The scripts that run tests. `ci/lib/bounded` adds no delay to a test that ends, and reports one that hangs.
//! `ci/lib/nextest` ends its tests when it is ended itself.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

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

/// Returns `ci/lib/nextest` with the script `cargo` in place of cargo, in a folder that has to live on.
fn with_cargo(cargo: &str) -> (tempfile::TempDir, Command) {
    let dir = tempfile::tempdir().unwrap();
    for name in ["cargo", "cargo-nextest"] {
        let path = dir.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{cargo}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = std::env::var("PATH").unwrap();
    let mut command = Command::new(script("nextest"));
    command.env("PATH", format!("{}:{path}", dir.path().display()));
    (dir, command)
}

/// A job of `ci/test` that lasts too long gets this signal. Tests that went on would use the processors of later jobs.
#[test]
fn a_run_that_is_ended_ends_its_tests() {
    let (_dir, mut command) =
        with_cargo("trap 'exit 5' TERM; echo started; for i in $(seq 300); do sleep 0.1; done");
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "started\n");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(5));
}
