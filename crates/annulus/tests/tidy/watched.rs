//! `ci/lib/bounded`, which watches tests: it costs a test that ends nothing, and names one that hangs.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

fn watched(limit_s: &str, command: &[&str]) -> Child {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ci/lib/bounded");
    Command::new(script)
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
    assert!(
        text.contains("still running after 1 s, and killed: sh"),
        "{text}"
    );
    // Its child, too.
    assert!(text.contains("sleep 1000"), "{text}");
    assert_eq!(child.wait().unwrap().signal(), Some(9), "{text}");
}
