//! What a driver's ring has registered of its engine's arenas, and which operations use it. One per
//! driver, touched by its thread only.
//!
//! Operations do not know of it: a READ or WRITE whose memory lies in a registered range becomes
//! READ_FIXED or WRITE_FIXED on its way into the submission queue.

use std::sync::Arc;

use crate::buf::{Arenas, Tract};
use crate::error::SetupError;
use crate::sys::lent::{PLACES, RANGE_BYTES_MAX};
use crate::sys::probe;
use crate::sys::ring::Kernel;
use crate::sys::sqe::{Sqe, opcode};

#[derive(Debug, Default)]
pub(super) struct Fixed {
    /// The version of the engine's list that this follows.
    version: u64,
    /// By address.
    ranges: Vec<Range>,
    known: Vec<Arc<Tract>>,
}

/// A registered range.
#[derive(Clone, Copy, Debug)]
struct Range {
    from: u64,
    to: u64,
    place: u16,
}

impl Fixed {
    /// Registers what is new in the engine's list, and lets go of what has left it.
    #[inline]
    pub(super) fn follow(&mut self, arenas: Option<&Arc<Arenas>>, kernel: &mut impl Kernel) {
        if let Some(arenas) = arenas
            && arenas.version() != self.version
        {
            self.catch_up(arenas, kernel);
        }
    }

    #[cold]
    fn catch_up(&mut self, arenas: &Arenas, kernel: &mut impl Kernel) {
        let (version, list) = arenas.list();
        self.version = version;
        // First, so that there is room for what is new.
        for gone in self.known.extract_if(.., |tract| !contains(&list, tract)) {
            let (from, to) = bounds(&gone);
            self.ranges.retain(|range| {
                let of_another = range.to <= from || to <= range.from;
                if !of_another {
                    kernel.take_back(range.place);
                }
                of_another
            });
        }
        for tract in list {
            if !contains(&self.known, &tract) {
                self.register(&tract, kernel);
                self.known.push(tract);
            }
        }
    }

    /// Registers as much of an arena as the kernel takes, from its start: all of it, or in halves.
    fn register(&mut self, tract: &Tract, kernel: &mut impl Kernel) {
        let mut done = 0;
        let mut refusal = None;
        let mut step = whole_buffers(first_step().max(tract.stride), tract.stride);
        while done < tract.bytes && step > 0 {
            let bytes = step.min(tract.bytes - done);
            let Some(place) = self.vacant_place() else {
                let what = format!("a ring's table of {PLACES} registered ranges is full");
                refusal = Some(SetupError::Config(what));
                break;
            };
            match kernel.lend(place, &tract.memory, done, bytes) {
                Ok(()) => {
                    self.insert(tract, done, bytes, place);
                    done += bytes;
                }
                Err(error @ SetupError::Memlock { .. }) => {
                    refusal.get_or_insert(error);
                    step = whole_buffers(bytes / 2, tract.stride);
                }
                Err(error) => {
                    refusal = Some(error);
                    break;
                }
            }
        }
        let because = refusal.filter(|_| done < tract.bytes);
        tract.answer(done, because);
    }

    fn vacant_place(&self) -> Option<u16> {
        (0..PLACES).find(|place| self.ranges.iter().all(|range| range.place != *place))
    }

    fn insert(&mut self, tract: &Tract, done: usize, bytes: usize, place: u16) {
        let from = bounds(tract).0 + done as u64;
        let to = from + bytes as u64;
        let at = self.ranges.partition_point(|range| range.from < from);
        self.ranges.insert(at, Range { from, to, place });
    }

    /// Lets an operation use the registration of its memory. True: it does.
    #[inline]
    pub(super) fn apply(&self, sqe: &mut Sqe) -> bool {
        if self.ranges.is_empty() {
            return false;
        }
        let fixed = match sqe.opcode {
            opcode::READ => opcode::READ_FIXED,
            opcode::WRITE => opcode::WRITE_FIXED,
            _ => return false,
        };
        let Some(place) = self.place_of(sqe.addr, sqe.len) else {
            return false;
        };
        sqe.opcode = fixed;
        sqe.buf_index = place;
        true
    }

    /// The place of the range in which the memory lies as a whole.
    fn place_of(&self, addr: u64, len: u32) -> Option<u16> {
        let after = self.ranges.partition_point(|range| range.from <= addr);
        let range = self.ranges.get(after.checked_sub(1)?)?;
        (addr + u64::from(len) <= range.to).then_some(range.place)
    }
}

fn contains(list: &[Arc<Tract>], tract: &Arc<Tract>) -> bool {
    list.iter().any(|one| Arc::ptr_eq(one, tract))
}

/// Where an arena begins and ends.
fn bounds(tract: &Tract) -> (u64, u64) {
    let from = tract.memory.base().addr() as u64;
    (from, from + tract.bytes as u64)
}

/// What to register at first: no more than the kernel takes in one piece, nor than the limit of
/// locked memory, for it would pin all of that before it refuses.
fn first_step() -> usize {
    let limit = if probe::memlock_waived() {
        None
    } else {
        probe::memlock_bytes()
    };
    let limit = limit.and_then(|bytes| usize::try_from(bytes).ok());
    limit.unwrap_or(usize::MAX).min(RANGE_BYTES_MAX)
}

/// No buffer lies in two ranges.
fn whole_buffers(bytes: usize, stride: usize) -> usize {
    bytes - bytes % stride
}
