//! The metrics of every backend: counts, times, and access from other processes.

mod counts;
mod preload;
mod sharing;
#[cfg(feature = "test-util")]
mod simulated;
#[cfg(feature = "net")]
mod sockets;

use std::sync::{Mutex, MutexGuard, PoisonError};

use annulus::metrics::{Snapshot, Source, SourceKind, snapshot};

/// Counters belong to the process, so tests run one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the counts since `before`.
fn since(before: &Snapshot) -> Snapshot {
    snapshot().since(before)
}

/// Returns the numbers of completions of one operation, and of errors among them.
fn count(source: &Source, operation: &str) -> (u64, u64) {
    let counted = source.operation(operation);
    counted.map_or((0, 0), |counted| (counted.completed, counted.failed))
}

/// Returns the operations that were made, with their completions, by name.
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

/// Returns the sources of a kind that have counted something.
fn of_kind(snapshot: &Snapshot, kind: SourceKind) -> Vec<&Source> {
    let sources = snapshot.sources.iter();
    sources
        .filter(|source| source.kind == kind && source.counters.completed > 0)
        .collect()
}
