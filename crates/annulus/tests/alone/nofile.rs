//! No free descriptors. A ring needs two: its own and that of its eventfd.
#![allow(unsafe_code)]

use std::fs::File;

use annulus::{Engine, SetupError};
use annulus_testing::child_process::in_child;
use annulus_testing::workload;

/// A lowered limit on descriptors; dropping it restores the old one.
struct Limited(libc::rlimit);

impl Limited {
    /// Leaves `free` free descriptors.
    fn to(free: usize) -> Limited {
        let mut old = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: writes the given struct.
        let done = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut old) };
        assert_eq!(done, 0);
        // Opening takes the lowest free number, so this fills the gaps in the process's
        // descriptors.
        let mut gaps: Vec<File> = Vec::new();
        while (gaps.len() as u64) < 3 {
            gaps.push(File::open("/dev/null").unwrap());
        }
        let next = gaps
            .iter()
            .map(std::os::fd::AsRawFd::as_raw_fd)
            .min()
            .unwrap();
        let new = libc::rlimit {
            rlim_cur: next as u64 + free as u64,
            rlim_max: old.rlim_max,
        };
        drop(gaps);
        // SAFETY: reads the given struct.
        let done = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const new) };
        assert_eq!(done, 0);
        Limited(old)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // SAFETY: reads the given struct.
        let done = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const self.0) };
        assert_eq!(done, 0);
    }
}

#[track_caller]
fn fallen_back() -> Engine {
    let (engine, reason) = workload::fallen_back();
    assert!(reason.contains("raise RLIMIT_NOFILE"), "{reason}");
    let error = workload::no_ring();
    assert!(
        matches!(error, SetupError::Descriptors { have: Some(_) }),
        "{error:?}"
    );
    assert_eq!(error.to_string(), reason);
    engine
}

#[test]
fn with_one_descriptor_left_everything_works_without_a_ring() {
    in_child(
        "nofile::with_one_descriptor_left_everything_works_without_a_ring",
        || {
            let dir = tempfile::tempdir().unwrap();
            let limited = Limited::to(1);
            workload::assert_all_works(&fallen_back(), dir.path());
            drop(limited);
        },
    );
}

#[test]
fn with_no_descriptor_left_a_file_can_not_be_opened_and_the_reason_is_the_limit() {
    in_child(
        "nofile::with_no_descriptor_left_a_file_can_not_be_opened_and_the_reason_is_the_limit",
        || {
            let dir = tempfile::tempdir().unwrap();
            let limited = Limited::to(0);
            let engine = fallen_back();
            let path = dir.path().join("data");
            let error = pollster::block_on(engine.create(&path)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
            let error = pollster::block_on(engine.read("/proc/version")).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
            // Operations without a descriptor work.
            pollster::block_on(engine.create_dir(&path)).unwrap();
            assert!(pollster::block_on(engine.metadata(&path)).unwrap().is_dir());
            drop(limited);
            // The engine works again.
            pollster::block_on(engine.remove_dir(&path)).unwrap();
            workload::assert_all_works(&engine, dir.path());
        },
    );
}
