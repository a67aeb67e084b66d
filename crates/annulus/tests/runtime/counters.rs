//! The cost of a core, by its counters: one enter per poll, and no system call to wake itself.

use std::thread;

use annulus::OpenOptions;
use annulus::fs::CachedReads;
use annulus::runtime;

use crate::ways::{ask_and_wait, each_way, listener};

/// Enters that a test allows beyond those it counts: one that a signal interrupts is repeated, and one may only run
/// task work.
const EXTRA_ENTERS: u64 = 2;

#[test]
fn a_core_enters_once_per_poll_and_wakes_itself_without_a_system_call() {
    const ROUNDS: u32 = 500;
    each_way(|builder| {
        let ended = builder.block_on(async {
            let (listener, address) = listener();
            let client = thread::spawn(move || ask_and_wait(address, ROUNDS));
            let stream = listener.accept().await.unwrap();
            let before = runtime::handle().metrics(0);
            let mut chunks = stream.recv_multishot();
            while let Some(Ok(chunk)) = chunks.next().await {
                stream.send_all(chunk).await.unwrap();
            }
            let after = runtime::handle().metrics(0);
            client.join().unwrap();
            (before, after)
        });
        let (before, after) = ended.unwrap();
        println!("{before:?}\n{after:?}");
        let polls = after.ring_polls - before.ring_polls;
        let enters = after.enters - before.enters;
        assert!(
            enters <= polls + EXTRA_ENTERS,
            "{enters} enters in {polls} polls"
        );
        assert!(after.waits - before.waits <= enters);
        // A request wakes the core once; the completion of its response may be another wake-up.
        assert!(
            enters <= 2 * u64::from(ROUNDS) + EXTRA_ENTERS,
            "{enters} enters for {ROUNDS} requests"
        );
        assert_eq!(after.wakeups, before.wakeups);
    });
}

#[test]
fn a_file_of_the_core_is_read_through_its_own_ring_without_another_thread() {
    const READS: u64 = 200;
    each_way(|builder| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        std::fs::write(&path, vec![5; 1 << 16]).unwrap();
        let has_ring = format!("{builder:?}").contains("Uring");
        let ended = builder.block_on(async move {
            let mut options = OpenOptions::new();
            options.read(true).cached_reads(CachedReads::Never);
            let file = runtime::engine().open_with(&options, &path).await.unwrap();
            let handle = runtime::handle();
            let before = (handle.metrics(0), handle.file_metrics());
            for read in 0..READS {
                let (bytes, page) = file.read_at(vec![0; 4096], read % 16 * 4096).await.unwrap();
                assert_eq!((bytes, page[0]), (4096, 5));
            }
            (before, (handle.metrics(0), handle.file_metrics()))
        });
        let ((before, files_before), (after, files)) = ended.unwrap();
        println!("{before:?}\n{after:?}\n{files:?}");
        assert_eq!(files.completed - files_before.completed, READS);
        if !has_ring {
            assert_eq!(files.blocking - files_before.blocking, READS);
            return;
        }
        assert_eq!(
            (files.blocking, files.wakeups),
            (0, 0),
            "an operation was submitted to another thread"
        );
        assert_eq!(
            after.wakeups, before.wakeups,
            "the core was woken for its own file"
        );
        let (polls, enters) = (
            after.ring_polls - before.ring_polls,
            after.enters - before.enters,
        );
        assert!(
            enters <= polls + EXTRA_ENTERS,
            "{enters} enters in {polls} polls"
        );
        // The enter that submits a read waits for it, and its completion wakes the task in the same round.
        assert!(
            enters <= READS + EXTRA_ENTERS,
            "{enters} enters for {READS} reads"
        );
        let (submitted, completed) = (
            after.submitted - before.submitted,
            after.completed - before.completed,
        );
        assert!(
            submitted.abs_diff(READS) <= EXTRA_ENTERS,
            "{submitted} entries"
        );
        assert!(
            completed.abs_diff(READS) <= EXTRA_ENTERS,
            "{completed} completions"
        );
    });
}
