//! The mode in which a stream receives on a ring. It follows from the sizes of what has arrived.

use super::{BULK_BYTES, BULK_BYTES_MIN};

/// Number of full buffers in a row after which bulk receives take over.
const BULK_FROM: u32 = 4;
/// Upper bound of that number, which grows when bulk receives brought little data.
const BULK_FROM_MAX: u32 = 4096;
/// Number of receives in a row that may find no free buffer; the next one is a single receive into separate memory
/// (trap 26).
const MISSED_MAX: u8 = 2;

/// The mode of the next receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReceiveMode {
    /// A single receive into a buffer of the core. A connection may end after one message; then there is nothing to
    /// cancel.
    First,
    /// A multishot receive into buffers of the core. The last `full` of them were full; then the caller may receive
    /// directly. The last `missed` receives found no free buffer.
    Multishot { full: u32, missed: u8 },
    /// Large receives into separate memory, or by the caller.
    Bulk,
}

/// The next receive, as a request to the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextReceive {
    Single,
    /// Waits for readiness first. All streams that found no buffer are armed again in one enter. If they received
    /// immediately, the same amount of data would arrive at once and find no buffer again.
    SinglePollFirst,
    Multishot,
    /// Into separate memory of this size; `None` is the size of a buffer of the core.
    Separate(Option<usize>),
}

/// The mode, and what it depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceivePolicy {
    mode: ReceiveMode,
    /// False if the kernel has no multishot receive (before 6.0).
    has_multishot: bool,
    /// The last direct receive was short. One is often the rest of a large message, which the kernel has split.
    was_short: bool,
    /// The number of full buffers in a row that starts bulk receives. It grows each time that they brought little data,
    /// because messages of exactly one buffer look like bulk data.
    bulk_from: u32,
}

impl ReceivePolicy {
    pub(super) const NEW: ReceivePolicy = ReceivePolicy {
        mode: ReceiveMode::First,
        has_multishot: true,
        was_short: false,
        bulk_from: BULK_FROM,
    };

    #[inline]
    pub(super) fn is_bulk(self) -> bool {
        self.mode == ReceiveMode::Bulk
    }

    /// Returns whether the caller may receive directly: the last buffer was full.
    #[inline]
    pub(super) fn has_large(self) -> bool {
        matches!(
            self.mode,
            ReceiveMode::Bulk | ReceiveMode::Multishot { full: 1.., .. }
        )
    }

    /// Returns what the next receive asks for.
    pub(super) fn next_receive(&mut self) -> NextReceive {
        match self.mode {
            ReceiveMode::Bulk => NextReceive::Separate(Some(BULK_BYTES)),
            _ if !self.has_multishot => NextReceive::Separate(None),
            ReceiveMode::First => {
                self.end_large();
                NextReceive::Single
            }
            ReceiveMode::Multishot { missed: 0, .. } => NextReceive::Multishot,
            ReceiveMode::Multishot { missed, .. } if missed < MISSED_MAX => {
                NextReceive::SinglePollFirst
            }
            ReceiveMode::Multishot { .. } => NextReceive::Separate(None),
        }
    }

    /// Notes that the kernel has refused a multishot receive. Returns `false` if it had refused one before.
    pub(super) fn lose_multishot(&mut self) -> bool {
        std::mem::replace(&mut self.has_multishot, false)
    }

    /// Notes data in buffers of the core, which filled `more` of them.
    pub(super) fn note_full(&mut self, more: u32) {
        let before = match self.mode {
            ReceiveMode::Multishot { full, .. } => full,
            ReceiveMode::Bulk => self.bulk_from,
            ReceiveMode::First => 0,
        };
        let full = before.saturating_add(more);
        self.mode = match full >= self.bulk_from {
            true => ReceiveMode::Bulk,
            false => ReceiveMode::Multishot { full, missed: 0 },
        };
    }

    /// Notes that a receive found no free buffer.
    pub(super) fn note_no_buffer(&mut self) {
        if let ReceiveMode::Multishot { missed, .. } = &mut self.mode {
            *missed = missed.saturating_add(1);
        }
    }

    /// Notes a single receive of `bytes` bytes into separate memory.
    pub(super) fn note_separate(&mut self, bytes: usize) {
        if bytes >= BULK_BYTES_MIN {
            self.bulk_from = BULK_FROM;
            self.mode = ReceiveMode::Bulk;
            return;
        }
        if self.is_bulk() {
            self.bulk_from = (self.bulk_from * 4).min(BULK_FROM_MAX);
        }
        self.end_large();
    }

    /// Notes a direct receive of `bytes` bytes into memory of `space` bytes.
    pub(super) fn note_direct(&mut self, bytes: usize, space: usize) {
        let is_full = bytes == space;
        let is_short = bytes < BULK_BYTES_MIN;
        let was_short = std::mem::replace(&mut self.was_short, is_short && !is_full);
        if is_short && (is_full || !was_short) {
            // A full buffer is small, which says nothing about the message.
            if !self.has_large() {
                self.mode = ReceiveMode::Multishot { full: 1, missed: 0 };
            }
        } else {
            self.note_separate(bytes);
        }
    }

    /// Notes that there was no large message, or that it has ended.
    #[inline]
    pub(super) fn end_large(&mut self) {
        self.mode = ReceiveMode::Multishot { full: 0, missed: 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: usize = BULK_BYTES_MIN;

    #[test]
    fn the_first_receive_is_single_and_the_next_multishot() {
        let mut policy = ReceivePolicy::NEW;
        assert_eq!(policy.next_receive(), NextReceive::Single);
        assert_eq!(policy.next_receive(), NextReceive::Multishot);
        assert!(!policy.has_large());
    }

    #[test]
    fn full_buffers_in_a_row_start_bulk_receives_and_little_data_ends_them() {
        let mut policy = ReceivePolicy::NEW;
        policy.note_full(BULK_FROM - 1);
        assert!(policy.has_large() && !policy.is_bulk());
        policy.end_large();
        assert!(!policy.has_large());
        policy.note_full(BULK_FROM);
        assert_eq!(
            policy.next_receive(),
            NextReceive::Separate(Some(BULK_BYTES))
        );
        policy.note_separate(LARGE);
        assert!(policy.is_bulk());
        policy.note_separate(1);
        assert_eq!(policy.next_receive(), NextReceive::Multishot);
        // It takes more of them the next time.
        policy.note_full(BULK_FROM);
        assert!(!policy.is_bulk());
        policy.note_full(3 * BULK_FROM);
        assert!(policy.is_bulk());
    }

    #[test]
    fn receives_without_a_free_buffer_go_to_separate_memory() {
        let mut policy = ReceivePolicy::NEW;
        policy.note_full(1);
        policy.note_no_buffer();
        assert!(policy.has_large(), "the caller needs no buffer");
        assert_eq!(policy.next_receive(), NextReceive::SinglePollFirst);
        policy.note_no_buffer();
        assert_eq!(policy.next_receive(), NextReceive::Separate(None));
        policy.note_separate(1);
        assert_eq!(policy.next_receive(), NextReceive::Multishot);
    }

    #[test]
    fn without_multishot_receives_each_is_single() {
        let mut policy = ReceivePolicy::NEW;
        assert!(policy.lose_multishot());
        assert!(!policy.lose_multishot());
        for bytes in [1, LARGE, 1] {
            assert!(matches!(policy.next_receive(), NextReceive::Separate(_)));
            policy.note_separate(bytes);
        }
    }

    #[test]
    fn one_short_direct_receive_does_not_end_a_large_message_but_two_do() {
        let mut policy = ReceivePolicy::NEW;
        policy.note_full(1);
        policy.note_direct(LARGE, LARGE);
        assert!(policy.is_bulk());
        policy.note_direct(1, LARGE);
        assert!(policy.is_bulk());
        policy.note_direct(1, LARGE);
        assert!(!policy.has_large());
    }
}
