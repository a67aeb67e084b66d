//! Conversions to narrower integer types. clippy warns about every cast that can lose information; each function here
//! documents its result for values that do not fit. A cast that remains elsewhere states its reason in place.

use std::time::Duration;

/// Converts a count or an index to 32 bits. Saturates: every count of the library has a far lower bound, and if one
/// bound were missing, the result must not be a small number.
#[inline]
pub(crate) fn to_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Converts a count or an index of memory. Saturates on 32-bit targets; lossless on 64-bit targets.
#[inline]
pub(crate) fn to_usize(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// Converts a time to whole nanoseconds. Saturates after 584 years, which never pass.
#[inline]
pub(crate) fn to_ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the lower half of a word that was composed of two, such as a token or the head of a list.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the upper half is another number"
)]
pub(crate) const fn low_half(word: u64) -> u32 {
    word as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn a_count_that_does_not_fit_saturates() {
        assert_eq!(to_u32(7), 7);
        assert_eq!(to_u32((1 << 32) + 7), u32::MAX);
        assert_eq!(to_usize(u64::MAX), usize::MAX);
        assert_eq!(to_ns(Duration::from_micros(7)), 7000);
        assert_eq!(to_ns(Duration::MAX), u64::MAX);
        assert_eq!(low_half(0xabcd_0000_0007), 7);
    }
}
