//! No locked memory: some kernels charge rings to the user, and everything works without rings.
#![allow(unsafe_code)]

use annulus::buf::{Arena, BufferLayout};
use annulus::{Backend, BackendInUse, Engine, OpenOptions, SetupError};
use annulus_testing::child_process::{become_own_user, in_child};
use annulus_testing::{skip, workload};

/// Removes all locked memory, and the capability that waives the limit.
fn forbid_locked_memory() {
    limit_locked_memory(0);
}

fn limit_locked_memory(bytes: u64) {
    let none = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    // SAFETY: reads the given struct.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const none) };
    assert_eq!(set, 0);
    become_own_user();
}

#[test]
fn without_locked_memory_everything_works_and_a_refusal_has_a_hint() {
    in_child(
        "memlock::without_locked_memory_everything_works_and_a_refusal_has_a_hint",
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
                BackendInUse::Fallback {
                    reason: Some(reason),
                    ..
                } => {
                    assert!(
                        matches!(
                            reason,
                            SetupError::Memlock {
                                have_bytes: Some(0),
                                ..
                            }
                        ),
                        "{reason:?}"
                    );
                    let error = workload::no_ring();
                    assert_eq!(error.to_string(), reason.to_string());
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
    in_child(
        "memlock::without_locked_memory_blocking_threads_work",
        || {
            if !skip::root_or_skip("becoming another user") {
                return;
            }
            forbid_locked_memory();
            let dir = tempfile::tempdir().unwrap();
            let engine = Engine::builder()
                .backend(Backend::Fallback)
                .build()
                .unwrap();
            workload::assert_all_works(&engine, dir.path());
        },
    );
}

/// Creates an engine with a ring for a user with this limit, and an arena of 16 MiB. Returns `None` after a skip.
fn starved_arena(limit_bytes: u64) -> Option<(Engine, Arena)> {
    if !skip::root_or_skip("becoming another user") {
        return None;
    }
    limit_locked_memory(limit_bytes);
    let engine = match Engine::builder().backend(Backend::Uring).build() {
        Ok(engine) => engine,
        Err(error) => {
            assert!(error.allows_fallback(), "{error}");
            skip::skip(error);
            return None;
        }
    };
    let layout = BufferLayout::new(16, 1 << 20);
    let arena = engine.register_buffers(layout).unwrap();
    println!("{arena}");
    if let Some(SetupError::TooOld { .. }) = arena.registered().reason.as_deref() {
        skip::skip(&arena);
        return None;
    }
    let registered = arena.registered();
    let reason = registered.reason.as_deref().unwrap();
    let SetupError::Memlock { have_bytes, .. } = reason else {
        panic!("{reason}");
    };
    assert_eq!((*have_bytes, registered.full), (Some(limit_bytes), 0));
    for part in ["registered buffers", "ulimit -l", "register less"] {
        assert!(arena.to_string().contains(part), "no {part:?} in: {arena}");
    }
    Some((engine, arena))
}

/// Writes and reads through every buffer. Returns the number of transfers with registered buffers.
fn use_all(engine: &Engine, arena: &Arena) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    pollster::block_on(async {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        let file = engine.open_with(&options, dir.path().join("f"));
        let file = file.await.unwrap();
        let mut bufs = Vec::new();
        while let Some(mut buf) = arena.try_take() {
            let mark = buf.index() as u8 + 1;
            buf.fill(mark);
            let buf = file.write_all_at(buf, u64::from(mark) << 20).await;
            bufs.push(file.read_exact_at(buf.unwrap(), 1 << 20).await.unwrap());
        }
        assert!(bufs.iter().all(|buf| buf.iter().all(|&byte| byte == 1)));
        assert_eq!(bufs.len(), 16);
    });
    engine.metrics().fixed
}

#[test]
fn an_arena_beyond_the_limit_is_registered_in_part_and_reports_it() {
    in_child(
        "memlock::an_arena_beyond_the_limit_is_registered_in_part_and_reports_it",
        || {
            const LIMIT: u64 = 8 << 20;
            let Some((engine, arena)) = starved_arena(LIMIT) else {
                return;
            };
            let registered = arena.registered();
            assert!((LIMIT / 4..=LIMIT).contains(&registered.bytes), "{arena}");
            assert!(
                arena.to_string().contains(" MiB of 16 MiB registered: "),
                "{arena}"
            );
            let fixed = use_all(&engine, &arena);
            assert!((1..32).contains(&fixed), "{fixed} with {arena}");
        },
    );
}

#[test]
fn an_arena_that_exceeds_the_limit_works_unregistered_and_reports_the_reason() {
    in_child(
        "memlock::an_arena_that_exceeds_the_limit_works_unregistered_and_reports_the_reason",
        || {
            let Some((engine, arena)) = starved_arena(512 << 10) else {
                return;
            };
            assert_eq!(arena.registered().bytes, 0);
            let message = arena.to_string();
            assert!(
                message.contains(", not registered: the locked-memory limit of 524288 bytes"),
                "{message}"
            );
            assert_eq!(use_all(&engine, &arena), 0);
        },
    );
}
