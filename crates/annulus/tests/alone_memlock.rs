//! No locked memory: rings are charged to the user on some kernels, and everything works without them.
#![allow(unsafe_code)]

#[path = "child/process.rs"]
mod process;
#[path = "child/skip.rs"]
mod skip;
#[path = "child/workload.rs"]
#[allow(dead_code, reason = "not every kernel refuses here")]
mod workload;

use annulus::{Backend, BackendInUse, Engine, SetupError};
use process::{become_nobody, in_child};

/// Takes away all locked memory, and the right to do without.
fn forbid_locked_memory() {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: reads the struct given.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const none) };
    assert_eq!(set, 0);
    become_nobody();
}

#[test]
fn without_locked_memory_everything_works_and_a_refusal_has_its_cure() {
    in_child(
        "without_locked_memory_everything_works_and_a_refusal_has_its_cure",
        || {
            if !skip::root_or_skip("becoming another user") {
                return;
            }
            forbid_locked_memory();
            let dir = tempfile::tempdir().unwrap();
            let engine = Engine::new().unwrap();
            println!("{}", engine.backend());
            workload::assert_all_works(&engine, dir.path());
            match engine.backend() {
                BackendInUse::Uring { .. } => println!("this kernel does not charge rings"),
                BackendInUse::Blocking {
                    because: Some(because),
                    ..
                } => {
                    assert!(
                        matches!(
                            because,
                            SetupError::Memlock {
                                have_bytes: Some(0),
                                ..
                            }
                        ),
                        "{because:?}"
                    );
                    let error = workload::no_ring();
                    assert_eq!(error.to_string(), because.to_string());
                    for part in [
                        "locked-memory limit of 0 bytes",
                        "ulimit -l",
                        "LimitMEMLOCK",
                    ] {
                        assert!(error.to_string().contains(part), "no {part:?} in: {error}");
                    }
                }
                other => panic!("{other}"),
            }
        },
    );
}

#[test]
fn without_locked_memory_blocking_threads_work() {
    in_child("without_locked_memory_blocking_threads_work", || {
        if !skip::root_or_skip("becoming another user") {
            return;
        }
        forbid_locked_memory();
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::builder()
            .backend(Backend::Blocking)
            .build()
            .unwrap();
        workload::assert_all_works(&engine, dir.path());
    });
}
