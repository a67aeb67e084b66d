//! The counters of the preload library, read in this process and from another.
#![allow(unsafe_code)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use annulus::metrics::layout::preload::{Call, Event, Gauge, Served, Totals, Why};
use annulus::metrics::{self, ReasonCounts, Snapshot, Source, SourceKind, snapshot};
use annulus_observe::snapshot_of;
use annulus_testing::child_process::in_child;

use crate::sharing::{forked, shared_files};
use crate::{alone, count, since};

fn only(snapshot: &Snapshot, kind: SourceKind) -> &Source {
    let mut found = snapshot.sources.iter().filter(|source| source.kind == kind);
    let only = found
        .next()
        .unwrap_or_else(|| panic!("no {kind:?}: {snapshot:#?}"));
    assert!(found.next().is_none(), "{snapshot:#?}");
    only
}

fn reasons(counted: &[ReasonCounts]) -> Vec<(&str, u64)> {
    counted.iter().map(|one| (one.reason, one.count)).collect()
}

/// Creates a ring with one of every count, and its process source.
fn busy() -> (Served, Served) {
    let (ring, process) = (Served::ring(0), Served::process());
    ring.set_backend("io_uring (deferred task work)", None);
    ring.serve(Call::Read, 10);
    ring.serve_shared(Call::EpollWait, 4);
    ring.fail(Call::Read, 104);
    ring.count(Event::Enters, 2);
    ring.count(Event::Waits, 1);
    ring.count(Event::Entries, 50);
    ring.count(Event::NoBuffers, 3);
    ring.count_shared(Event::Rings, 1);
    ring.change(Gauge::Rings, 1);
    ring.change(Gauge::InFlight, 7);
    ring.change(Gauge::Connections, 8);
    ring.change(Gauge::Connections, -2);
    ring.change(Gauge::Buffers, 8);
    ring.change(Gauge::BuffersFree, 5);
    ring.hand_back(Why::Duplicated, 1);
    process.pass(Why::NotAStream, 9);
    process.leave_listener(Why::Port, 2);
    process.serve_shared(Call::Close, 2);
    (ring, process)
}

fn is_busy(snapshot: &Snapshot) {
    let ring = only(snapshot, SourceKind::Preload);
    assert_eq!(ring.backend, "io_uring (deferred task work)");
    assert_eq!(count(ring, "read"), (10, 1));
    assert_eq!(count(ring, "epoll_wait"), (4, 0));
    let counters = ring.counters;
    let counted = [counters.enters, counters.waits, counters.entries];
    assert_eq!(counted, [2, 1, 50]);
    assert_eq!((counters.no_buffers, counters.in_flight), (3, 7));
    assert_eq!((counters.submitted, counters.completed), (14, 14));
    assert_eq!((ring.errors[0].errno, ring.errors[0].count), (104, 1));
    let preload = &ring.preload;
    assert_eq!((preload.rings, preload.connections), (1, 6));
    assert_eq!((preload.buffers, preload.buffers_free), (8, 5));
    assert_eq!(reasons(&preload.handed_back), [("duplicated", 1)]);
    let process = only(snapshot, SourceKind::Passed);
    assert_eq!(reasons(&process.preload.passed), [("not_a_stream", 9)]);
    assert_eq!(reasons(&process.preload.listeners_left), [("port", 2)]);
    assert_eq!(count(process, "close"), (2, 0));
    assert_eq!(process.counters.in_flight, 0);
}

#[test]
fn a_snapshot_has_calls_reasons_and_gauges_but_no_gauges_of_ended_rings() {
    let _alone = alone();
    let before = snapshot();
    let (ring, process) = busy();
    is_busy(&since(&before));
    let counted = Totals::now().unwrap();
    assert!(counted.served(Call::Read) >= 10 && counted.failed(Call::Read) >= 1);
    let between = snapshot();
    ring.serve(Call::Read, 1);
    process.pass(Why::Blocking, 1);
    let later = since(&between);
    assert_eq!(count(only(&later, SourceKind::Preload), "read"), (1, 0));
    let total = later.total();
    assert_eq!(reasons(&total.preload.passed), [("blocking", 1)]);
    assert_eq!(total.preload.connections, 6, "what it has is no difference");
    drop((ring, process));
    let ended = since(&before);
    let ended = only(&ended, SourceKind::Ended);
    assert_eq!(count(ended, "read"), (11, 1));
    let passed = [("not_a_stream", 9), ("blocking", 1)];
    assert_eq!(
        sorted(reasons(&ended.preload.passed)),
        sorted(passed.into())
    );
    assert_eq!(
        (ended.counters.in_flight, ended.preload.connections),
        (0, 0)
    );
}

fn sorted<T: Ord>(mut things: Vec<T>) -> Vec<T> {
    things.sort();
    things
}

/// The environment variable of the observed process.
const ROLE: &str = "ANNULUS_TEST_PRELOADED";

/// Not a test, but the process that a test observes.
#[test]
fn a_process_on_rings() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let descriptor = metrics::share_above(500).unwrap();
    assert!(descriptor >= 500, "{descriptor}");
    assert_eq!(metrics::share_above(0).unwrap(), descriptor);
    let _busy = busy();
    println!("\nready");
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn another_process_reads_the_counters_and_the_descriptor_number_is_high() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["preload::a_process_on_rings", "--exact", "--nocapture"])
        .env(ROLE, "")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut lines = lines.by_ref().map_while(Result::ok);
    assert!(
        lines.any(|line| line == "ready"),
        "it says when it has counted"
    );
    is_busy(&snapshot_of(child.id()).unwrap());
    let [file] = &shared_files(child.id())[..] else {
        panic!("it has one file");
    };
    let number: u32 = file.file_name().unwrap().to_str().unwrap().parse().unwrap();
    assert!(number >= 500, "{number}");
    writeln!(child.stdin.take().unwrap()).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_forked_child_shares_its_own_counters_and_leaves_its_parents_unchanged() {
    in_child(
        "preload::a_forked_child_shares_its_own_counters_and_leaves_its_parents_unchanged",
        || {
            metrics::share_above(500).unwrap();
            let (ring, process) = busy();
            let pid = forked(|| {
                ring.serve(Call::Read, 100);
                process.pass(Why::Forked, 100);
                metrics::share_above(500).unwrap();
                let own = Served::ring(0);
                own.serve(Call::Send, 3);
                // SAFETY: waits for a signal.
                unsafe { libc::pause() };
            });
            let own = wait_for(pid as u32);
            is_busy(&snapshot_of(std::process::id()).unwrap());
            let ring = only(&own, SourceKind::Preload);
            assert_eq!((count(ring, "send"), count(ring, "read")), ((3, 0), (0, 0)));
            // SAFETY: a child of this process, not waited for yet.
            unsafe {
                libc::kill(pid, libc::SIGKILL);
                libc::waitpid(pid, std::ptr::null_mut(), 0);
            }
        },
    );
}

/// Waits until the process has counted something: it shares its counters a moment earlier.
fn wait_for(process: u32) -> Snapshot {
    loop {
        if let Ok(own) = snapshot_of(process)
            && own.total().counters.completed > 0
        {
            return own;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
