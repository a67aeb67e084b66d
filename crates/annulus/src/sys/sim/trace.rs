//! The trace of a simulated kernel: requests, results, and injected faults. It shows that a fault occurred at all, and
//! that the same seed gives the same schedule.

use super::config::OpKind;

/// The maximum number of events kept. The hash covers all events.
const EVENTS_MAX: usize = 1 << 18;

/// The number of times that each fault was injected.
///
/// ```
/// use annulus::sim::{Sim, SimConfig};
///
/// let sim = Sim::new(SimConfig::chaos(5));
/// sim.run(async |engine| {
///     for i in 0..50 {
///         let _ = engine.write(format!("/{i}"), vec![7; 10_000]).await;
///     }
/// });
/// let counts = sim.counts();
/// assert!(counts.delayed > 0 && counts.shortened > 0, "the test does not show what it should");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FaultCounts {
    /// Operations with a delay.
    pub delayed: u64,
    /// Operations with a long delay that could not be cancelled.
    pub late: u64,
    /// Completions that overtook another that was due earlier.
    pub reordered: u64,
    /// Transfers that were cut short.
    pub shortened: u64,
    /// Buffers that were filled with garbage while in flight.
    pub scribbled: u64,
    /// Operations that failed with an injected errno.
    pub errors: u64,
    /// Enter calls that were refused with all entries still queued.
    pub enters_refused: u64,
    /// Enter calls that failed after they had taken entries.
    pub enters_broken: u64,
    /// Enter calls that took fewer entries than requested.
    pub submits_short: u64,
    /// Enter calls that were refused because completions had overflowed.
    pub enters_busy: u64,
    /// Completions that did not fit into the completion queue.
    pub overflowed: u64,
    /// Pushes that did not fit into the submission queue.
    pub pushes_refused: u64,
    /// Cancels that stopped their operation.
    pub cancels_done: u64,
    /// Cancels that did not find their operation (`ENOENT`).
    pub cancels_missed: u64,
    /// Cancels that were too late to stop their operation (`EALREADY`).
    pub cancels_too_late: u64,
    /// Stopped operations that completed before their cancel.
    pub cancelled_before: u64,
    /// Stopped operations that completed after their cancel.
    pub cancelled_after: u64,
    /// Sectors that were written back to the disk without a sync.
    pub written_back: u64,
    /// Unsynced changes that a crash discarded.
    pub crash_lost: u64,
    /// Unsynced changes that survived a crash.
    pub crash_kept: u64,
}

/// The maximum load of a simulated kernel at one time.
///
/// A limit of the program on its reads in flight holds:
///
/// ```
/// use annulus::sim::{Sim, SimConfig};
///
/// let sim = Sim::new(SimConfig::new(1));
/// sim.put("/file", vec![7; 1 << 16])?;
/// sim.run(async |engine| {
///     let file = engine.open("/file").await?;
///     let reads = (0..16).map(|i| (vec![0; 4096], i * 4096));
///     file.read_many_at(reads).window(4).await;
///     std::io::Result::Ok(())
/// })?;
/// assert!(sim.high_water().operations <= 4);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HighWater {
    /// The number of operations.
    pub operations: u64,
    /// The total length of the buffers of reads and writes.
    pub bytes: u64,
}

/// An entry of the trace.
///
/// The order of two operations can be checked in a test:
///
/// ```
/// use annulus::sim::{EventKind, OpKind, Sim, SimConfig};
///
/// let sim = Sim::new(SimConfig::new(1));
/// sim.run(async |engine| {
///     let file = engine.create("/log").await?;
///     file.write_all_at("entry", 0).await?;
///     file.sync_data().await
/// })?;
/// let trace = sim.trace();
/// let at = |kind| trace.iter().position(|event| event.kind == kind && event.what == EventKind::Started);
/// assert!(at(OpKind::Write) < at(OpKind::Sync));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// The time on the simulation's clock, ns.
    pub at_ns: u64,
    /// The kind of event.
    pub what: EventKind,
    /// The number of the operation, counted from the beginning of the simulation.
    pub operation: u64,
    /// The kind of operation.
    pub kind: OpKind,
    /// The descriptor, or a negative number.
    pub fd: i32,
    /// The offset, if the operation has one.
    pub offset: u64,
    /// The requested number of bytes, if the operation has a buffer.
    pub bytes: u64,
}

/// An event in the life of an operation.
///
/// The results that the kernel gave, before the library has repeated or continued them:
///
/// ```
/// use annulus::sim::{Errno, EventKind, OpKind, Sim, SimConfig};
///
/// let sim = Sim::new(SimConfig::new(1).errors(&[OpKind::Nop], Errno::Eintr, 500));
/// sim.run(async |engine| {
///     for _ in 0..20 {
///         engine.nop().await?; // never fails
///     }
///     std::io::Result::Ok(())
/// })?;
/// let interrupted = EventKind::Completed(-Errno::Eintr.number());
/// assert!(sim.trace().iter().any(|event| event.what == interrupted));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// The kernel took the operation.
    Started,
    /// The operation completed with this result: a count, or minus an errno.
    Completed(i32),
    /// A cancel was requested, with this result of the cancel.
    CancelRequested(i32),
}

/// The trace of a world.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    events: Vec<Event>,
    hash: Hash,
}

impl Trace {
    pub(crate) fn note(&mut self, event: Event) {
        let Event {
            at_ns,
            what,
            operation,
            kind,
            fd,
            offset,
            bytes,
        } = event;
        let (tag, res) = match what {
            EventKind::Started => (0, 0),
            EventKind::Completed(res) => (1, res),
            EventKind::CancelRequested(res) => (2, res),
        };
        for number in [
            at_ns,
            tag,
            i64::from(res).cast_unsigned(),
            operation,
            kind as u64,
            i64::from(fd).cast_unsigned(),
            offset,
            bytes,
        ] {
            self.hash.add_word(number);
        }
        if self.events.len() < EVENTS_MAX {
            self.events.push(event);
        }
    }

    /// Adds bytes to the hash that were copied from or to the caller's memory.
    pub(crate) fn note_bytes(&mut self, bytes: &[u8]) {
        self.hash.add(bytes);
    }

    pub(crate) fn events(&self) -> &[Event] {
        &self.events
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash.0
    }
}

/// FNV-1a by words. Its definition is fixed, unlike those of the standard library's hashers.
#[derive(Debug)]
struct Hash(u64);

impl Default for Hash {
    fn default() -> Hash {
        Hash(0xcbf2_9ce4_8422_2325)
    }
}

impl Hash {
    fn add(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for &word in words {
            self.add_word(u64::from_le_bytes(word));
        }
        for &byte in rest {
            self.add_word(u64::from(byte));
        }
    }

    fn add_word(&mut self, word: u64) {
        // The multiplication alone never carries bits down; the shift does.
        let mixed = (self.0 ^ word).wrapping_mul(0x0100_0000_01b3);
        self.0 = mixed ^ (mixed >> 29);
    }
}
