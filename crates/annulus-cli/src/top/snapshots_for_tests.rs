//! Snapshots for tests, with known numbers.

use annulus::metrics::{ErrorCounts, OperationCounts, ReasonCounts, Snapshot, Source, SourceKind};

use super::notes;
use super::report::{ProcessFacts, Report};

fn source(kind: SourceKind, index: u32, backend: &str) -> Source {
    let mut source = Source::default();
    source.kind = kind;
    source.owner = 1;
    source.index = index;
    source.backend = backend.to_owned();
    source
}

fn operation(name: &'static str, completed: u64, failed: u64) -> OperationCounts {
    let mut operation = OperationCounts::default();
    operation.name = name;
    operation.completed = completed;
    operation.failed = failed;
    operation
}

fn error(errno: i32, count: u64) -> ErrorCounts {
    let mut error = ErrorCounts::default();
    error.errno = errno;
    error.count = count;
    error
}

/// A core, and blocking threads as the fallback of a ring.
pub(super) fn earlier() -> Snapshot {
    let mut core = source(SourceKind::Core, 0, "io_uring");
    core.counters.completed = 1_000;
    core.counters.submitted = 1_000;
    core.counters.enters = 100;
    core.counters.entries = 400;
    core.counters.short = 3;
    core.operations = vec![operation("recv", 600, 0), operation("send", 400, 0)];
    core.errors = vec![error(104, 3)];
    let mut threads = source(SourceKind::Threads, 0, "blocking threads");
    threads.owner = 2;
    threads.fallback = Some("io_uring is disabled by a sysctl".to_owned());
    threads.counters.completed = 10;
    threads.operations = vec![operation("read_at", 10, 1)];
    threads.errors = vec![error(5, 1)];
    let mut snapshot = Snapshot::default();
    snapshot.process = 4321;
    snapshot.at_ns = 5_000_000_000;
    snapshot.sources = vec![core, threads];
    snapshot
}

/// The snapshot two seconds later.
pub(super) fn now() -> Snapshot {
    let mut now = earlier();
    now.at_ns += 2_000_000_000;
    now.kernel_workers = 2;
    let core = &mut now.sources[0];
    core.counters.completed += 50_000;
    core.counters.submitted += 50_000;
    core.counters.enters += 2_000;
    core.counters.entries += 25_000;
    core.counters.waits += 500;
    core.counters.wakeups += 20;
    core.counters.no_buffers += 8;
    core.counters.in_flight = 32;
    core.operations[0].completed += 30_000;
    core.operations[1].completed += 20_000;
    for ns in [10_000, 20_000, 900_000] {
        core.operations[0].latency.record(ns);
        core.operations[0].queue.record(ns / 10);
        core.operations[0].device.record(ns - ns / 10);
    }
    let threads = &mut now.sources[1];
    threads.counters.failed += 4;
    threads.counters.in_flight = 7;
    threads.operations[0].failed += 4;
    threads.errors[0].count += 4;
    now
}

pub(super) fn facts() -> ProcessFacts {
    ProcessFacts {
        pid: 4321,
        command: "annulus serve echo --addr 127.0.0.1:7000".to_owned(),
        uptime_seconds: Some(3_723.0),
    }
}

pub(super) fn report() -> Report {
    notes::report(facts(), &earlier(), &now())
}

/// The report of a program under `annulus run`, with completions and connections that were handed back.
pub(super) fn report_of_preload() -> Report {
    let reason = |reason: &'static str, count: u64| {
        let mut counted = ReasonCounts::default();
        (counted.reason, counted.count) = (reason, count);
        counted
    };
    let mut ring = source(SourceKind::Preload, 0, "io_uring (deferred task work)");
    ring.counters.completed = 1_000;
    ring.counters.enters = 50;
    ring.operations = vec![operation("read", 500, 0), operation("write", 500, 0)];
    let mut process = source(SourceKind::Passed, 0, "");
    process.preload.passed = vec![reason("port", 2), reason("not_a_stream", 5)];
    let mut earlier = Snapshot::default();
    earlier.process = 4321;
    earlier.sources = vec![ring, process];
    let mut now = earlier.clone();
    now.at_ns = 1_000_000_000;
    let ring = &mut now.sources[0];
    ring.counters.completed += 20_500;
    ring.counters.enters += 500;
    ring.counters.entries += 10_000;
    ring.counters.in_flight = 301;
    ring.operations[0].completed += 10_000;
    ring.operations[1].completed += 10_000;
    ring.operations[1].failed += 3;
    ring.counters.failed = 3;
    ring.errors = vec![error(32, 3)];
    let preload = &mut ring.preload;
    (preload.rings, preload.connections) = (1, 300);
    (preload.buffers, preload.buffers_free) = (32, 30);
    preload.handed_back = vec![reason("duplicated", 4)];
    now.sources[1].preload.passed[1].count += 1;
    let facts = ProcessFacts {
        command: "redis-server *:6379".to_owned(),
        ..facts()
    };
    notes::report(facts, &earlier, &now)
}

/// The report of a machine with many cores.
pub(super) fn report_of_many(cores: u32) -> Report {
    let with_cores = |mut snapshot: Snapshot| {
        for index in 1..cores {
            let mut core = snapshot.sources[0].clone();
            core.index = index;
            snapshot.sources.push(core);
        }
        snapshot
    };
    notes::report(facts(), &with_cores(earlier()), &with_cores(now()))
}
