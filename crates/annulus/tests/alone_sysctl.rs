//! `kernel.io_uring_disabled`: it holds for the whole machine, so nothing else may run meanwhile, and the tests are
//! skipped unless `ANNULUS_TEST_SYSCTL=1` asks for them; 0 says that they have a turn of their own.

#[path = "child/process.rs"]
mod process;
#[path = "child/skip.rs"]
mod skip;
#[path = "child/sysctl.rs"]
mod sysctl;
#[path = "child/workload.rs"]
mod workload;

use std::sync::Mutex;

use annulus::{Engine, SetupError};
use process::{become_nobody, in_child};
use sysctl::{Changed, DISABLED, may_change};

/// One test at a time.
static TURN: Mutex<()> = Mutex::new(());

#[track_caller]
fn assert_disabled(value: u32, cure: &str) {
    let dir = tempfile::tempdir().unwrap();
    let (engine, because) = workload::fallen_back();
    workload::assert_all_works(&engine, dir.path());
    let by_sysctl = format!("kernel.io_uring_disabled = {value}");
    for part in [by_sysctl.as_str(), cure] {
        assert!(because.contains(part), "no {part:?} in: {because}");
    }
    let error = workload::no_ring();
    assert!(
        matches!(&error, SetupError::Refused { by, .. } if *by == by_sysctl),
        "{error:?}"
    );
    assert_eq!(error.to_string(), because);
}

#[test]
fn a_machine_without_io_uring_is_named_and_everything_works() {
    if !may_change() {
        return;
    }
    let _turn = TURN.lock();
    let _disabled = Changed::to(DISABLED, "2");
    assert_disabled(2, "sysctl -w kernel.io_uring_disabled=0");
}

#[test]
fn io_uring_for_root_alone_is_named_and_everything_works() {
    const NAME: &str = "io_uring_for_root_alone_is_named_and_everything_works";
    // The parent changes the machine; the child, which may not, is inside.
    let child = std::env::var_os("ANNULUS_TEST_CHILD").is_some();
    if !child && !may_change() {
        return;
    }
    let _turn = TURN.lock();
    let _disabled = (!child).then(|| Changed::to(DISABLED, "1"));
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
        become_nobody();
        assert_disabled(1, "kernel.io_uring_group");
    });
}
