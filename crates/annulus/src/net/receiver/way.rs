//! The way in which a stream receives on a ring: it follows from the sizes of what has arrived.

use super::{BULK_BYTES, BULK_BYTES_MIN};

/// Number of full buffers in a row after which bulk receives take over.
const BULK_FROM: u32 = 4;
/// Upper bound of that number, which grows when bulk receives brought little data.
const BULK_FROM_MAX: u32 = 4096;
/// Number of receives in a row that may find no free buffer; the next one is a single receive into separate memory
/// (trap 26).
const MISSED_MAX: u8 = 2;

/// The way of the next receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
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
pub(super) enum Request {
    Single,
    /// Waits for readiness first. All streams that found no buffer are armed again in one enter. If they received
    /// immediately, the same amount of data would arrive at once and find no buffer again.
    SinglePollFirst,
    Multishot,
    /// Into separate memory of this size; `None` is the size of a buffer of the core.
    Separate(Option<usize>),
}

/// The way, and what it depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    way: Way,
    /// The kernel has no multishot receive (before 6.0).
    has_multishot: bool,
    /// The last direct receive was short. One is often the rest of a large message, which the kernel has split.
    was_short: bool,
    /// The number of full buffers in a row that starts bulk receives. It grows each time that they brought little data,
    /// because messages of exactly one buffer look like bulk data.
    bulk_from: u32,
}

impl Pace {
    pub(super) const NEW: Pace = Pace {
        way: Way::First,
        has_multishot: true,
        was_short: false,
        bulk_from: BULK_FROM,
    };

    #[inline]
    pub(super) fn is_bulk(self) -> bool {
        self.way == Way::Bulk
    }

    /// Returns whether the caller may receive directly: the last buffer was full.
    #[inline]
    pub(super) fn has_large(self) -> bool {
        matches!(self.way, Way::Bulk | Way::Multishot { full: 1.., .. })
    }

    /// Returns what the next receive asks for.
    pub(super) fn request(&mut self) -> Request {
        match self.way {
            Way::Bulk => Request::Separate(Some(BULK_BYTES)),
            _ if !self.has_multishot => Request::Separate(None),
            Way::First => {
                self.end_large();
                Request::Single
            }
            Way::Multishot { missed: 0, .. } => Request::Multishot,
            Way::Multishot { missed, .. } if missed < MISSED_MAX => Request::SinglePollFirst,
            Way::Multishot { .. } => Request::Separate(None),
        }
    }

    /// Notes that the kernel has refused a multishot receive. Returns `false` if it had refused one before.
    pub(super) fn lose_multishot(&mut self) -> bool {
        std::mem::replace(&mut self.has_multishot, false)
    }

    /// Notes data in buffers of the core, which filled `more` of them.
    pub(super) fn note_full(&mut self, more: u32) {
        let before = match self.way {
            Way::Multishot { full, .. } => full,
            Way::Bulk => self.bulk_from,
            Way::First => 0,
        };
        let full = before.saturating_add(more);
        self.way = match full >= self.bulk_from {
            true => Way::Bulk,
            false => Way::Multishot { full, missed: 0 },
        };
    }

    /// Notes that a receive found no free buffer.
    pub(super) fn note_no_buffer(&mut self) {
        if let Way::Multishot { missed, .. } = &mut self.way {
            *missed = missed.saturating_add(1);
        }
    }

    /// Notes a single receive of `bytes` bytes into separate memory.
    pub(super) fn note_separate(&mut self, bytes: usize) {
        if bytes >= BULK_BYTES_MIN {
            self.bulk_from = BULK_FROM;
            self.way = Way::Bulk;
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
                self.way = Way::Multishot { full: 1, missed: 0 };
            }
        } else {
            self.note_separate(bytes);
        }
    }

    /// Notes that there was no large message, or that it has ended.
    #[inline]
    pub(super) fn end_large(&mut self) {
        self.way = Way::Multishot { full: 0, missed: 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: usize = BULK_BYTES_MIN;

    #[test]
    fn the_first_receive_is_single_and_the_next_multishot() {
        let mut pace = Pace::NEW;
        assert_eq!(pace.request(), Request::Single);
        assert_eq!(pace.request(), Request::Multishot);
        assert!(!pace.has_large());
    }

    #[test]
    fn full_buffers_in_a_row_start_bulk_receives_and_little_data_ends_them() {
        let mut pace = Pace::NEW;
        pace.note_full(BULK_FROM - 1);
        assert!(pace.has_large() && !pace.is_bulk());
        pace.end_large();
        assert!(!pace.has_large());
        pace.note_full(BULK_FROM);
        assert_eq!(pace.request(), Request::Separate(Some(BULK_BYTES)));
        pace.note_separate(LARGE);
        assert!(pace.is_bulk());
        pace.note_separate(1);
        assert_eq!(pace.request(), Request::Multishot);
        // It takes more of them the next time.
        pace.note_full(BULK_FROM);
        assert!(!pace.is_bulk());
        pace.note_full(3 * BULK_FROM);
        assert!(pace.is_bulk());
    }

    #[test]
    fn receives_without_a_free_buffer_go_to_separate_memory() {
        let mut pace = Pace::NEW;
        pace.note_full(1);
        pace.note_no_buffer();
        assert!(pace.has_large(), "the caller needs no buffer");
        assert_eq!(pace.request(), Request::SinglePollFirst);
        pace.note_no_buffer();
        assert_eq!(pace.request(), Request::Separate(None));
        pace.note_separate(1);
        assert_eq!(pace.request(), Request::Multishot);
    }

    #[test]
    fn without_multishot_receives_each_is_single() {
        let mut pace = Pace::NEW;
        assert!(pace.lose_multishot());
        assert!(!pace.lose_multishot());
        for bytes in [1, LARGE, 1] {
            assert!(matches!(pace.request(), Request::Separate(_)));
            pace.note_separate(bytes);
        }
    }

    #[test]
    fn one_short_direct_receive_does_not_end_a_large_message_but_two_do() {
        let mut pace = Pace::NEW;
        pace.note_full(1);
        pace.note_direct(LARGE, LARGE);
        assert!(pace.is_bulk());
        pace.note_direct(1, LARGE);
        assert!(pace.is_bulk());
        pace.note_direct(1, LARGE);
        assert!(!pace.has_large());
    }
}
