//! Seccomp filters that refuse io_uring as containers do: the results are the same without it, and the reason names the
//! filter and a hint.

use std::io::Write;
use std::os::fd::AsRawFd;

use annulus::{Backend, Engine, EngineError, SetupError};
use annulus_testing::child_process::in_child;
use annulus_testing::{skip, workload};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// Refuses a system call to this thread and to those it starts.
fn refuse(call: libc::c_long, errno: i32) {
    let rules = [(call, Vec::new())].into_iter().collect();
    let action = SeccompAction::Errno(errno as u32);
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, arch).unwrap();
    seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
}

/// Everything works on threads, and both backends report the reason.
#[track_caller]
fn assert_refused(call: libc::c_long, errno: i32, is_right: fn(&SetupError) -> bool) {
    let dir = tempfile::tempdir().unwrap();
    let before = Engine::new().unwrap();
    workload::assert_all_works(&before, dir.path());
    refuse(call, errno);
    let (engine, reason) = workload::fallen_back();
    workload::assert_all_works(&engine, dir.path());
    for part in [
        "seccomp",
        "allow io_uring_setup, io_uring_enter and io_uring_register",
    ] {
        assert!(reason.contains(part), "no {part:?} in: {reason}");
    }
    let error = workload::no_ring();
    assert!(is_right(&error), "{error:?}");
    assert_eq!(error.to_string(), reason);
    assert!(error.allows_fallback());
    // An engine from before the filter keeps its ring and works.
    workload::assert_all_works(&before, dir.path());
}

fn is_refused(error: &SetupError) -> bool {
    matches!(error, SetupError::Refused { .. })
}

fn is_missing(error: &SetupError) -> bool {
    matches!(error, SetupError::Missing { .. })
}

#[test]
fn a_forbidden_setup_is_reported_and_everything_works() {
    in_child(
        "seccomp::a_forbidden_setup_is_reported_and_everything_works",
        || {
            assert_refused(libc::SYS_io_uring_setup, libc::EPERM, is_refused);
        },
    );
}

#[test]
fn a_setup_that_seems_missing_is_reported_and_everything_works() {
    in_child(
        "seccomp::a_setup_that_seems_missing_is_reported_and_everything_works",
        || {
            assert_refused(libc::SYS_io_uring_setup, libc::ENOSYS, is_missing);
        },
    );
}

#[test]
fn a_forbidden_enter_is_reported_and_everything_works() {
    in_child(
        "seccomp::a_forbidden_enter_is_reported_and_everything_works",
        || {
            assert_refused(libc::SYS_io_uring_enter, libc::EPERM, is_refused);
        },
    );
}

#[test]
fn a_forbidden_register_is_reported_and_everything_works() {
    in_child(
        "seccomp::a_forbidden_register_is_reported_and_everything_works",
        || {
            assert_refused(libc::SYS_io_uring_register, libc::EPERM, is_refused);
        },
    );
}

#[test]
fn transfers_with_flags_that_the_system_lacks_are_made_without() {
    in_child(
        "seccomp::transfers_with_flags_that_the_system_lacks_are_made_without",
        || {
            refuse(libc::SYS_preadv2, libc::ENOSYS);
            refuse(libc::SYS_pwritev2, libc::ENOSYS);
            let dir = tempfile::tempdir().unwrap();
            let fallback = Engine::builder().backend(Backend::Fallback).build();
            for engine in [Engine::new().unwrap(), fallback.unwrap()] {
                // Rings transfer without these calls, but the calling thread reads cached data with them.
                workload::assert_all_works(&engine, dir.path());
                let (end, mut other) = std::io::pipe().unwrap();
                other.write_all(b"of a pipe").unwrap();
                drop(other);
                let path = format!("/proc/self/fd/{}", end.as_raw_fd());
                let read = pollster::block_on(engine.read(path)).unwrap();
                assert_eq!(read, b"of a pipe", "on {}", engine.backend());
            }
        },
    );
}

#[test]
fn a_ring_reads_and_queries_files_if_no_thread_can_be_started() {
    in_child(
        "seccomp::a_ring_reads_and_queries_files_if_no_thread_can_be_started",
        || {
            let engine = match Engine::builder().backend(Backend::Uring).build() {
                Ok(engine) => engine,
                Err(error) => return skip::skip(format_args!("io_uring: {error}")),
            };
            let driver = engine.current_thread_driver().unwrap();
            refuse(libc::SYS_clone3, libc::ENOSYS);
            refuse(libc::SYS_clone, libc::EAGAIN);
            let read = driver.block_on(engine.read("/proc/version"));
            assert_eq!(read.unwrap(), std::fs::read("/proc/version").unwrap());
            // Nor do queries.
            driver.block_on(engine.metadata("/proc/version")).unwrap();
            driver.block_on(engine.metadata("/etc/passwd")).unwrap();
        },
    );
}

#[test]
fn operations_that_get_no_thread_fail_with_a_hint() {
    in_child(
        "seccomp::operations_that_get_no_thread_fail_with_a_hint",
        || {
            let engine = |backend| Engine::builder().backend(backend).build();
            let mut engines = Vec::new();
            // The thread of its driver starts with the first operation.
            match engine(Backend::Uring) {
                Ok(ring) => engines.push(("ring", ring)),
                Err(error) => skip::skip(format_args!("io_uring: {error}")),
            }
            refuse(libc::SYS_clone3, libc::ENOSYS);
            refuse(libc::SYS_clone, libc::EAGAIN);
            engines.push(("threads", engine(Backend::Fallback).unwrap()));
            for (name, engine) in engines {
                // On another mount than the root directory, so not opened on the calling thread.
                let opened = pollster::block_on(engine.open("/proc/version"));
                let listed = pollster::block_on(engine.read_dir("/etc")).map(drop);
                for error in [opened.map(drop).unwrap_err(), listed.unwrap_err()] {
                    let errno = libc::EAGAIN;
                    let engine_error = EngineError::of(&error);
                    assert_eq!(
                        engine_error,
                        Some(EngineError::NoThread { errno }),
                        "{name}: {error}"
                    );
                    let text = error.to_string();
                    assert!(
                        text.contains("thread") && text.contains("RLIMIT_NPROC"),
                        "{text}"
                    );
                }
            }
        },
    );
}

/// Linux before 5.11 lacks the call, and so do some filters that forbid io_uring.
#[cfg(feature = "net")]
#[test]
fn sockets_beside_a_timer_that_is_far_away_need_no_newer_call_than_epoll_pwait() {
    use std::time::Duration;

    use annulus::net::UnixStream;
    use annulus::runtime::Runtime;
    use annulus::time::{sleep, timeout};

    in_child(
        "seccomp::sockets_beside_a_timer_that_is_far_away_need_no_newer_call_than_epoll_pwait",
        || {
            refuse(libc::SYS_epoll_pwait2, libc::ENOSYS);
            let builder = Runtime::builder().backend(Backend::Fallback);
            let received = builder.block_on(async {
                let (near, far) = UnixStream::pair().unwrap();
                let send = async {
                    sleep(Duration::from_millis(1)).await;
                    near.send_all("hello").await.unwrap();
                };
                let receive = timeout(Duration::MAX, far.recv_exact(vec![0; 5]));
                futures_lite::future::zip(receive, send)
                    .await
                    .0
                    .unwrap()
                    .unwrap()
            });
            assert_eq!(received.unwrap(), b"hello");
        },
    );
}
