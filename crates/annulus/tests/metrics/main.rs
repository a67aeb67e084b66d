//! What is counted, on every backend, how long it took, and who can look at it.

mod counts;
mod preload;
mod sharing;
#[cfg(feature = "test-util")]
mod simulated;
#[cfg(feature = "net")]
mod sockets;

use std::sync::{Mutex, MutexGuard, PoisonError};

use annulus::metrics::{Snapshot, Source, SourceKind, snapshot};

/// What is counted is the process's: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What has been counted since `before`.
fn since(before: &Snapshot) -> Snapshot {
    snapshot().since(before)
}

/// All that one operation came to: answers, and errors among them.
fn count(source: &Source, operation: &str) -> (u64, u64) {
    let counted = source.operation(operation);
    counted.map_or((0, 0), |counted| (counted.completed, counted.failed))
}

/// The operations that were asked for, with how often they answered, by name.
fn counted(source: &Source) -> Vec<(&'static str, u64)> {
    let operations = source
        .operations
        .iter()
        .filter(|operation| operation.completed > 0);
    let mut counted: Vec<_> = operations
        .map(|operation| (operation.name, operation.completed))
        .collect();
    counted.sort_unstable();
    counted
}

/// The sources of that kind which have counted something.
fn of_kind(snapshot: &Snapshot, kind: SourceKind) -> Vec<&Source> {
    let sources = snapshot.sources.iter();
    sources
        .filter(|source| source.kind == kind && source.counters.completed > 0)
        .collect()
}
