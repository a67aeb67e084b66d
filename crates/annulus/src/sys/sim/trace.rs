//! What a simulated kernel was asked and answered, and which faults it threw in: the evidence that a
//! fault was met at all, and that the same seed gives the same schedule.

use super::config::OpKind;

/// Events kept; the hash covers those beyond as well.
const EVENTS_MAX: usize = 1 << 18;

/// How often each fault was thrown in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FaultCounts {
    /// Operations that took time.
    pub delayed: u64,
    /// Operations that took long and could not be cancelled.
    pub late: u64,
    /// Completions that overtook another that was due before.
    pub reordered: u64,
    /// Transfers cut short.
    pub shortened: u64,
    /// Buffers filled with garbage while in flight.
    pub scribbled: u64,
    /// Operations failed with an injected errno.
    pub errors: u64,
    /// Enter calls refused with everything queued.
    pub enters_refused: u64,
    /// Enter calls that failed after they had taken entries.
    pub enters_broken: u64,
    /// Enter calls that took fewer entries than asked.
    pub submits_short: u64,
    /// Enter calls refused because completions had overflowed.
    pub enters_busy: u64,
    /// Completions that found no room in the completion queue.
    pub overflowed: u64,
    /// Pushes that found no room in the submission queue.
    pub pushes_refused: u64,
    /// Cancels that stopped their operation.
    pub cancels_done: u64,
    /// Cancels that did not find their operation (`ENOENT`).
    pub cancels_missed: u64,
    /// Cancels that came too late to stop it (`EALREADY`).
    pub cancels_too_late: u64,
    /// Stopped operations whose own completion came before that of the cancel.
    pub cancelled_before: u64,
    /// Stopped operations whose own completion came after that of the cancel.
    pub cancelled_after: u64,
    /// Sectors written back to the disk without being asked.
    pub written_back: u64,
    /// Unsynced changes that a crash threw away.
    pub crash_lost: u64,
    /// Unsynced changes that survived a crash.
    pub crash_kept: u64,
}

/// The most that a simulated kernel held at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HighWater {
    /// Operations.
    pub operations: u64,
    /// Bytes of the buffers of reads and writes.
    pub bytes: u64,
}

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// When, on the simulation's clock, ns.
    pub at_ns: u64,
    /// What.
    pub what: EventKind,
    /// Which operation, counted from the beginning of the simulation.
    pub operation: u64,
    /// What the operation is.
    pub kind: OpKind,
    /// Its descriptor, or a negative number.
    pub fd: i32,
    /// Its offset, where it has one.
    pub offset: u64,
    /// Bytes asked for, where it has a buffer.
    pub bytes: u64,
}

/// What happened to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// The kernel took it.
    Started,
    /// The kernel answered: a count, or minus an errno.
    Completed(i32),
    /// A cancel was asked; its own answer.
    CancelRequested(i32),
}

/// The record of a world.
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

    /// Bytes that went to or came from the caller's memory.
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

/// FNV-1a, a word at a time: of a fixed definition, unlike the standard library's hashers.
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
        // The multiplication alone carries nothing down; the shift does.
        let mixed = (self.0 ^ word).wrapping_mul(0x0100_0000_01b3);
        self.0 = mixed ^ (mixed >> 29);
    }
}
