//! # Safety
//!
//! Memory that a ring has registered, for its whole life or until it is taken back. READ_FIXED and WRITE_FIXED name it
//! by its index. The ring keeps each range mapped while it is registered: the kernel would go on using the old pages
//! even if other memory were mapped at the same address (Lent, Still; trap 60).
#![allow(unsafe_code)]

use std::sync::Arc;

use super::call::IoVec;
use super::mapping::Mapping;
use super::register::explain;
use super::ring::Ring;
use crate::error::SetupError;

/// The number of slots for ranges in a ring's table, at 8 bytes of kernel memory each: 2 TiB in ranges of 1 GiB.
pub(crate) const SLOTS_MAX: u16 = 2048;
/// The kernel's limit on the size of one range, bytes.
pub(crate) const RANGE_BYTES_MAX: usize = 1 << 30;

/// The memory that one ring has registered.
#[derive(Debug, Default)]
pub(super) struct Lent {
    /// True if the table has been registered.
    table: bool,
    mappings: Vec<(u16, Arc<Mapping>)>,
}

impl Ring {
    /// Registers `bytes` bytes of `memory`, starting at `from`, in the free slot `index`. The memory is charged to the
    /// user's locked-memory limit (trap 50). Since Linux 5.19; earlier kernels cannot register an empty table.
    pub(super) fn lend(
        &mut self,
        index: u16,
        memory: &Arc<Mapping>,
        from: usize,
        bytes: usize,
    ) -> Result<(), SetupError> {
        if index >= SLOTS_MAX || from.checked_add(bytes).is_none_or(|to| to > memory.bytes()) {
            let what =
                format!("{bytes} bytes at offset {from} do not fit into {memory:?}, slot {index}");
            return Err(SetupError::Config(what));
        }
        if !self.lent().table {
            let made = self
                .submitter()
                .register_buffers_sparse(u32::from(SLOTS_MAX));
            made.map_err(|error| explain(error, "an empty table of registered buffers", "5.19"))?;
            self.lent().table = true;
        }
        let range = IoVec {
            base: memory.base().wrapping_add(from),
            bytes,
        };
        self.put(index, range)?;
        self.lent().mappings.push((index, Arc::clone(memory)));
        Ok(())
    }

    /// Empties slot `index`. Operations in flight that use it continue. Returns `false` if the kernel refuses; the ring
    /// then keeps the memory mapped and the slot occupied as long as it lives.
    pub(super) fn take_back(&mut self, index: u16) -> bool {
        let nothing = IoVec {
            base: std::ptr::null_mut(),
            bytes: 0,
        };
        let emptied = self.put(index, nothing).is_ok();
        if emptied {
            self.lent().mappings.retain(|(other, _)| *other != index);
        }
        emptied
    }

    fn put(&mut self, index: u16, range: IoVec) -> Result<(), SetupError> {
        // SAFETY: Lent, Still: `mappings` keeps the range mapped until its slot is emptied or the ring is closed: the
        // field is declared after the ring's descriptor. Operations in flight hold a lease of the range that they use.
        unsafe { self.update_buffers(u32::from(index), &[range]) }
    }
}
