//! The scripts that run tests. `ci/lib/bounded` adds no delay to a test that ends, and reports one that hangs.
//! `ci/lib/nextest` lists flaky tests and fails if there are too many.

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
    command
        .env("PATH", format!("{}:{path}", dir.path().display()))
        .env("ANNULUS_FLAKY_LOG", dir.path().join("flaky.log"));
    fs::write(dir.path().join("flaky.log"), "").unwrap();
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

/// Runs `ci/lib/nextest` with a cargo that only writes a report of `count` flaky tests and one that passes.
fn with_flaky(count: usize) -> (bool, String) {
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
    let (dir, mut command) = with_cargo(&format!(
        "echo \"{report}\" >'{}/junit.xml'",
        reports.display()
    ));
    let output = command.env("NEXTEST_PROFILE", &profile).output().unwrap();
    fs::remove_dir_all(&reports).unwrap();
    let message = String::from_utf8_lossy(&output.stdout);
    for n in 0..count {
        assert!(
            message.contains(&format!("flaky: c t{n}: failed 1 of 2 times: late")),
            "{output:?}"
        );
    }
    assert!(!message.contains("good"), "{output:?}");
    let log = fs::read_to_string(dir.path().join("flaky.log")).unwrap();
    (output.status.success(), log)
}

#[test]
fn flaky_tests_are_listed_and_more_than_three_fail_the_run() {
    let (passed, log) = with_flaky(3);
    assert!(passed && log.lines().count() == 3, "{log}");
    let (passed, log) = with_flaky(4);
    assert!(!passed && log.lines().count() == 4, "{log}");
}
