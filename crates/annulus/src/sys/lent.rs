//! # Safety
//!
//! Memory that a ring has registered for its whole life, or until it is taken back: READ_FIXED and
//! WRITE_FIXED name it by its index. The ring keeps each range mapped while it is registered, because
//! what was mapped at the same address later would be taken for it (Lent, Still).
#![allow(unsafe_code)]

use std::sync::Arc;

use super::call::IoVec;
use super::mapping::Mapping;
use super::register::explain;
use super::ring::Ring;
use crate::error::SetupError;

/// The number of slots for ranges in a ring's table, 8 bytes of the kernel's each: 2 TiB in ranges of 1 GiB.
pub(crate) const SLOTS_MAX: u16 = 2048;
/// The kernel's bound on one range, bytes.
pub(crate) const RANGE_BYTES_MAX: usize = 1 << 30;

/// What one ring has registered.
#[derive(Debug, Default)]
pub(super) struct Lent {
    /// The table exists.
    table: bool,
    mappings: Vec<(u16, Arc<Mapping>)>,
}

impl Ring {
    /// Registers `bytes` bytes of `memory`, from `from` on, under `index`, which is free. Charged to
    /// the user's locked memory (trap 50). Since Linux 5.19; before that, there is no empty table to
    /// begin with.
    pub(super) fn lend(
        &mut self,
        index: u16,
        memory: &Arc<Mapping>,
        from: usize,
        bytes: usize,
    ) -> Result<(), SetupError> {
        if index >= SLOTS_MAX || from.checked_add(bytes).is_none_or(|to| to > memory.bytes()) {
            let what = format!("{bytes} bytes from {from} on, at index {index}, of {memory:?}");
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

    /// Empties `index`. Operations in flight that name it go on. If the kernel refuses, the memory
    /// and its slot stay the ring's as long as there is one: false.
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
        // SAFETY: Lent, Still: `held` keeps the range mapped until its slot is emptied, or the ring is
        // gone: it is declared behind the ring's descriptor. Operations in flight keep what they name
        // by its lease.
        unsafe { self.update_buffers(u32::from(index), &[range]) }
    }
}
