//! Buffer groups with incremental filling: several receives share one buffer.

use super::{BufRing, explain};
use crate::error::SetupError;
use crate::sys::ring::Ring;

const INCREMENTAL: &str = "a buffer group that is filled incrementally";
/// `IOU_PBUF_RING_INC`. Since Linux 6.12.
const IOU_PBUF_RING_INC: u16 = 1 << 1;

impl Ring {
    /// Registers a buffer group in which a receive continues in the buffer where the previous one ended.
    /// Since Linux 6.12.
    pub(crate) fn register_incremental_buf_ring(
        &mut self,
        entries: u16,
        group: u16,
    ) -> Result<BufRing, SetupError> {
        self.register_buf_ring_with(entries, group, IOU_PBUF_RING_INC)?
            .map_err(|error| explain(error, INCREMENTAL, "6.12"))
    }
}
