//! In place of what the drivers will fill, until they do: a process in which nothing happens.

use std::time::Instant;

use super::Snapshot;

/// See [`watch`].
#[derive(Debug)]
pub struct Watch(());

/// Nothing has happened.
pub fn snapshot() -> Snapshot {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    Snapshot {
        process: std::process::id(),
        at_ns: START.get_or_init(Instant::now).elapsed().as_nanos() as u64,
        ..Snapshot::default()
    }
}

/// Nothing is recorded.
pub fn watch() -> Watch {
    Watch(())
}

/// Nothing is shared.
///
/// # Errors
///
/// None.
pub fn share() -> std::io::Result<()> {
    Ok(())
}
