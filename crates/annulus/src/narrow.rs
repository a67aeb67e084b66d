//! Conversions of numbers to narrower types. clippy warns about every cast that could lose something; these say
//! what happens instead, and a cast that stays elsewhere gives its reason in place.

use std::time::Duration;

/// A count or an index in 32 bits. Saturates: all of the library's have a bound far below, and one that were missing
/// must not come out as a small number.
#[inline]
pub(crate) fn to_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// A count or an index of memory. Saturates where addresses have 32 bits; nothing changes where they have 64.
#[inline]
pub(crate) fn to_usize(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// A time in whole nanoseconds. Saturates, after 584 years: a longer time than that never passes.
#[inline]
pub(crate) fn to_ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The lower of the two halves that a word was made of, as tokens and heads of lists are.
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
    fn a_count_that_does_not_fit_is_the_largest_and_not_a_small_one() {
        assert_eq!(to_u32(7), 7);
        assert_eq!(to_u32((1 << 32) + 7), u32::MAX);
        assert_eq!(to_usize(u64::MAX), usize::MAX);
        assert_eq!(to_ns(Duration::from_micros(7)), 7000);
        assert_eq!(to_ns(Duration::MAX), u64::MAX);
        assert_eq!(low_half(0xabcd_0000_0007), 7);
    }
}
