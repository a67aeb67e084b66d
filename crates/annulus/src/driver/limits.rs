//! The limits of a driver.

/// The maximum number of SQEs that are pushed before they are submitted.
pub(super) const CHUNK_MAX: u32 = 32;

/// The maximum numbers of operations, and of bytes of their buffers, that a driver has in the kernel at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) in_flight: u32,
    pub(crate) in_flight_bytes: u64,
}

impl Limits {
    /// Returns whether an operation with `bytes` bytes may start beside those in flight. A lone operation always may.
    pub(super) fn admit(&self, in_flight: u32, in_flight_bytes: u64, bytes: u64) -> bool {
        in_flight == 0
            || in_flight < self.in_flight && in_flight_bytes + bytes <= self.in_flight_bytes
    }

    /// Limits the operations in flight to the size of a ring's completion queue.
    pub(crate) fn within(self, cq_entries: u32) -> Limits {
        Limits {
            in_flight: self.in_flight.min(cq_entries),
            ..self
        }
    }
}
