//! Engines with `kernel.io_uring_disabled` set to 1 and 2 (Linux 6.6 or later, as root). The setting applies to the
//! whole machine, so `ci/kernel` runs these tests in a virtual machine, one at a time.

use annulus::{Engine, SetupError};
use annulus_testing::child_process::{become_own_user, in_child};
use annulus_testing::sysctl::{ChangedSysctl, DISABLED};
use annulus_testing::workload;

#[track_caller]
fn assert_disabled(value: u32, hint: &str) {
    let dir = tempfile::tempdir().unwrap();
    let (engine, reason) = workload::fallen_back();
    workload::assert_all_works(&engine, dir.path());
    let by_sysctl = format!("kernel.io_uring_disabled = {value}");
    for part in [by_sysctl.as_str(), hint] {
        assert!(reason.contains(part), "no {part:?} in: {reason}");
    }
    let error = workload::no_ring();
    assert!(
        matches!(&error, SetupError::Refused { by, .. } if *by == by_sysctl),
        "{error:?}"
    );
    assert_eq!(error.to_string(), reason);
}

#[test]
#[ignore = "changes kernel.io_uring_disabled of the whole machine; ci/kernel runs it in a guest"]
fn a_machine_without_io_uring_is_reported_and_everything_works() {
    let _disabled = ChangedSysctl::to(DISABLED, "2");
    assert_disabled(2, "sysctl -w kernel.io_uring_disabled=0");
}

#[test]
#[ignore = "changes kernel.io_uring_disabled of the whole machine; ci/kernel runs it in a guest"]
fn io_uring_for_root_only_is_reported_and_everything_works() {
    const NAME: &str = "sysctl::io_uring_for_root_only_is_reported_and_everything_works";
    // The parent changes the setting; the child, which is not allowed to, runs the test.
    let child = std::env::var_os("ANNULUS_TEST_CHILD").is_some();
    let _disabled = (!child).then(|| ChangedSysctl::to(DISABLED, "1"));
    if !child {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::new().unwrap();
        workload::assert_all_works(&engine, dir.path());
        assert!(
            engine.backend().to_string().starts_with("io_uring"),
            "{}",
            engine.backend()
        );
    }
    in_child(NAME, || {
        become_own_user();
        assert_disabled(1, "kernel.io_uring_group");
    });
}
