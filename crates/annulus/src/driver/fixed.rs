//! The ranges of an engine's arenas that a driver's ring has registered. There is one list per
//! driver, which only its thread uses.
//!
//! Operations do not know about registration. A READ or WRITE whose memory is inside a registered
//! range becomes READ_FIXED or WRITE_FIXED on its way into the submission queue.

use std::sync::Arc;

use crate::buf::{Arenas, RegisteredRegion};
use crate::error::SetupError;
use crate::sys::kernel::Kernel;
use crate::sys::lent::{RANGE_BYTES_MAX, SLOTS_MAX};
use crate::sys::probe;
use crate::sys::sqe::{Sqe, opcode};

#[derive(Debug, Default)]
pub(super) struct Fixed {
    /// The version of the engine's list that this list reflects.
    version: u64,
    /// Sorted by address.
    ranges: Vec<Range>,
    known: Vec<Arc<RegisteredRegion>>,
    /// Free indices that were used before. From `fresh` on, none has been used yet.
    vacant: Vec<u16>,
    fresh: u16,
}

/// A registered range.
#[derive(Clone, Copy, Debug)]
struct Range {
    from: u64,
    to: u64,
    index: u16,
}

impl Fixed {
    /// Registers arenas that are new in the engine's list, and unregisters those that have left it.
    #[inline]
    pub(super) fn follow(&mut self, arenas: Option<&Arc<Arenas>>, kernel: &mut impl Kernel) {
        if let Some(arenas) = arenas
            && self.is_behind(Some(arenas))
        {
            self.catch_up(arenas, kernel);
        }
    }

    /// Returns whether the engine's list has changed.
    #[inline]
    pub(super) fn is_behind(&self, arenas: Option<&Arc<Arenas>>) -> bool {
        arenas.is_some_and(|arenas| arenas.version() != self.version)
    }

    #[cold]
    fn catch_up(&mut self, arenas: &Arenas, kernel: &mut impl Kernel) {
        let (version, list) = arenas.list();
        self.version = version;
        // First, to make space for new ones.
        for gone in self.known.extract_if(.., |region| !contains(&list, region)) {
            let (from, to) = bounds(&gone);
            self.ranges.retain(|range| {
                let of_another = range.to <= from || to <= range.from;
                if !of_another && kernel.take_back(range.index) {
                    self.vacant.push(range.index);
                }
                of_another
            });
        }
        for region in list {
            if !contains(&self.known, &region) {
                self.register(&region, |index, from, bytes| {
                    kernel.lend(index, &region.memory, from, bytes)
                });
                self.known.push(region);
            }
        }
    }

    /// Registers as much of an arena as the kernel accepts, from its start: all of it, or in
    /// halves.
    fn register(
        &mut self,
        region: &RegisteredRegion,
        mut lend: impl FnMut(u16, usize, usize) -> Result<(), SetupError>,
    ) {
        let mut done = 0;
        let mut refusal = None;
        let mut step = whole_buffers(first_step().max(region.stride), region.stride);
        while done < region.bytes && step > 0 {
            let bytes = step.min(region.bytes - done);
            let Some(index) = self.vacant_index() else {
                let what = format!("a ring's table of {SLOTS_MAX} registered ranges is full");
                refusal = Some(SetupError::Config(what));
                break;
            };
            match lend(index, done, bytes) {
                Ok(()) => {
                    self.insert(region, done, bytes, index);
                    done += bytes;
                }
                Err(error @ SetupError::Memlock { .. }) => {
                    self.vacant.push(index);
                    refusal.get_or_insert(error);
                    step = whole_buffers(bytes / 2, region.stride);
                }
                Err(error) => {
                    self.vacant.push(index);
                    refusal = Some(error);
                    break;
                }
            }
        }
        let reason = refusal.filter(|_| done < region.bytes);
        region.note_registration(done, reason);
    }

    fn vacant_index(&mut self) -> Option<u16> {
        let used = self.vacant.pop();
        used.or_else(|| {
            let fresh = self.fresh;
            self.fresh += u16::from(fresh < SLOTS_MAX);
            (fresh < SLOTS_MAX).then_some(fresh)
        })
    }

    fn insert(&mut self, region: &RegisteredRegion, done: usize, bytes: usize, index: u16) {
        let from = bounds(region).0 + done as u64;
        let to = from + bytes as u64;
        let at = self.ranges.partition_point(|range| range.from < from);
        self.ranges.insert(at, Range { from, to, index });
    }

    /// Makes an operation use the registration of its memory. Returns whether it does.
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
        let Some(index) = self.index_of(sqe.addr, sqe.len) else {
            return false;
        };
        sqe.opcode = fixed;
        sqe.buf_index = index;
        true
    }

    /// Returns the index of the range that contains all of the memory.
    fn index_of(&self, addr: u64, len: u32) -> Option<u16> {
        let after = self.ranges.partition_point(|range| range.from <= addr);
        let range = self.ranges.get(after.checked_sub(1)?)?;
        (range.to.checked_sub(addr)? >= u64::from(len)).then_some(range.index)
    }
}

fn contains(list: &[Arc<RegisteredRegion>], region: &Arc<RegisteredRegion>) -> bool {
    list.iter().any(|one| Arc::ptr_eq(one, region))
}

/// Returns the start and end of an arena.
fn bounds(region: &RegisteredRegion) -> (u64, u64) {
    let from = region.memory.base().addr() as u64;
    (from, from + region.bytes as u64)
}

/// Returns the size of the first range to register. It exceeds neither the kernel's limit for one
/// range nor the locked-memory limit, because the kernel would pin that much before it refuses.
fn first_step() -> usize {
    let limit = if probe::memlock_waived() {
        None
    } else {
        probe::memlock_bytes()
    };
    let limit = limit.and_then(|bytes| usize::try_from(bytes).ok());
    limit.unwrap_or(usize::MAX).min(RANGE_BYTES_MAX)
}

/// Rounds down to whole buffers, because a buffer must not span two ranges.
fn whole_buffers(bytes: usize, stride: usize) -> usize {
    bytes - bytes % stride
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buf::{Arena, BufferLayout};

    /// Creates an arena of `count` buffers of `bytes`.
    fn arena(count: usize, bytes: usize) -> Arena {
        let layout = BufferLayout::new(count, bytes);
        Arena::new(layout, &Arc::default()).unwrap()
    }

    fn refused() -> SetupError {
        SetupError::Memlock {
            what: "a test",
            have_bytes: None,
            hint: String::new(),
        }
    }

    #[test]
    fn only_memory_that_is_completely_inside_one_registered_range_is_recognised() {
        let (one, other) = (arena(1, 1 << 20), arena(4, 4096));
        let mut fixed = Fixed::default();
        fixed.register(one.region(), |_, _, _| Ok(()));
        // In two ranges, of two buffers each.
        let parts = |_, _, bytes| if bytes > 8192 { Err(refused()) } else { Ok(()) };
        fixed.register(other.region(), parts);
        assert!(other.registered().is_whole());
        let (from, to) = bounds(one.region());
        let (split, _) = bounds(other.region());
        for (addr, len, index) in [
            (from, 1, Some(0)),
            (from, 1 << 20, Some(0)),
            (to - 1, 1, Some(0)),
            (to - 1, 2, None),
            (to, 1, None),
            (from - 1, 2, None),
            (from, u32::MAX, None),
            (0, 4096, None),
            (u64::MAX, 1, None),
            (split + 4096, 4096, fixed.index_of(split, 8192)),
            (split + 4096, 8192, None),
            (split + 8192, 8192, fixed.index_of(split + 16_383, 1)),
        ] {
            for (opcode, registered) in [
                (opcode::READ, opcode::READ_FIXED),
                (opcode::WRITE, opcode::WRITE_FIXED),
                (opcode::READV, opcode::READV),
                (opcode::FSYNC, opcode::FSYNC),
            ] {
                let plain = Sqe {
                    addr,
                    len,
                    off: 7,
                    op_flags: 3,
                    ..Sqe::new(opcode, 5)
                };
                let mut sqe = plain;
                let expected = index.filter(|_| registered != opcode);
                assert_eq!(fixed.apply(&mut sqe), expected.is_some());
                let opcode = if expected.is_some() {
                    registered
                } else {
                    opcode
                };
                assert_eq!((sqe.opcode, sqe.buf_index), (opcode, expected.unwrap_or(0)));
                let rest = (sqe.addr, sqe.len, sqe.off, sqe.op_flags, sqe.fd);
                assert_eq!(rest, (addr, len, 7, 3, 5));
            }
        }
    }

    #[test]
    fn a_refused_arena_is_registered_from_its_start_in_halves_of_whole_buffers() {
        let one = arena(100, 5000);
        let mut fixed = Fixed::default();
        let (mut space, mut ranges) = (300_000, Vec::new());
        fixed.register(one.region(), |_, from, bytes| {
            ranges.push((from, bytes));
            if bytes > space {
                return Err(refused());
            }
            space -= bytes;
            Ok(())
        });
        let registered = one.registered();
        assert_eq!((registered.bytes, registered.full), (36 * 8192, 0));
        assert!(space < 8192 && registered.reason.is_some());
        assert!(
            ranges
                .iter()
                .all(|(from, bytes)| from % 8192 == 0 && bytes % 8192 == 0)
        );
        assert!(ranges.len() < 20, "{ranges:?}");
        // Not a lack of memory, so nothing smaller is tried.
        let other = arena(2, 4096);
        fixed.register(other.region(), |_, _, _| {
            Err(SetupError::Config("no".to_owned()))
        });
        assert_eq!(
            other.to_string().split(", ").last(),
            Some("not registered: no")
        );
    }

    #[test]
    fn a_table_without_an_empty_slot_reports_that_it_is_full() {
        let mut fixed = Fixed::default();
        let all = arena(usize::from(SLOTS_MAX) + 1, 4096);
        fixed.register(all.region(), |_, _, bytes| {
            if bytes > 4096 { Err(refused()) } else { Ok(()) }
        });
        let registered = all.registered();
        assert_eq!(registered.bytes, u64::from(SLOTS_MAX) * 4096);
        assert!(
            all.to_string()
                .ends_with("table of 2048 registered ranges is full"),
            "{all}"
        );
    }
}
