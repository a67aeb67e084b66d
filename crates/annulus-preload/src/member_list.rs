//! # Safety
//!
//! Descriptors as a bitmap: those of a set's members, and those of all sets. Any thread adds one without a lock, and a
//! signal handler or a child of a fork can walk the list at any time: its memory is static, or mapped when the set is
//! made, and stays (Owned). Pages without members are not allocated.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::mapping;

#[derive(Default)]
pub(crate) struct MemberList {
    words: &'static [AtomicU64],
    /// One more than the last word that has ever had a member.
    used: AtomicUsize,
}

impl MemberList {
    /// Returns an empty list, for 64 numbers per word.
    pub(crate) const fn of(words: &'static [AtomicU64]) -> MemberList {
        MemberList {
            words,
            used: AtomicUsize::new(0),
        }
    }

    /// Creates the list, for numbers below `count`. `None`: there is no memory.
    pub(crate) fn new(count: usize) -> Option<MemberList> {
        let length = count.div_ceil(64);
        let words = mapping::map_zeroed(length * size_of::<AtomicU64>())?;
        // SAFETY: Owned: a new mapping of this length, which stays; zero bytes are valid values.
        let words = unsafe { std::slice::from_raw_parts(words.cast_const().cast(), length) };
        Some(MemberList::of(words))
    }

    /// Adds a number, whose entry names the set already.
    pub(crate) fn add(&self, fd: i32) {
        let nth = fd as usize / 64;
        if let Some(word) = self.words.get(nth) {
            word.fetch_or(1 << (fd % 64), Ordering::SeqCst);
            if nth >= self.used.load(Ordering::Relaxed) {
                self.used.fetch_max(nth + 1, Ordering::Relaxed);
            }
        }
    }

    /// Returns the numbers in order, and removes those of which `is_member` is false.
    pub(crate) fn walk(
        &'static self,
        is_member: impl Fn(i32) -> bool,
    ) -> impl Iterator<Item = i32> {
        let words = &self.words[..self.used.load(Ordering::Relaxed)];
        let numbers = words.iter().enumerate().flat_map(|(nth, word)| {
            let mut bits = word.load(Ordering::SeqCst);
            std::iter::from_fn(move || {
                let bit = bits.trailing_zeros();
                bits &= bits.wrapping_sub(1);
                (bit < u64::BITS).then(|| (word, bit, (nth * 64) as i32 + bit as i32))
            })
        });
        numbers.filter_map(move |(word, bit, fd)| {
            if !is_member(fd) {
                word.fetch_and(!(1 << bit), Ordering::SeqCst);
                // Meanwhile, another thread may have made it a member.
                if !is_member(fd) {
                    return None;
                }
                word.fetch_or(1 << bit, Ordering::SeqCst);
            }
            Some(fd)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_returns_the_members_in_order_and_removes_the_others() {
        let list: &MemberList = Box::leak(Box::new(MemberList::new(1024).unwrap()));
        for fd in [999, 0, 63, 64, 64, 500, 1024] {
            list.add(fd);
        }
        let walk = |but: i32| list.walk(move |fd| fd != but).collect::<Vec<_>>();
        assert_eq!(walk(-1), [0, 63, 64, 500, 999]);
        assert_eq!(walk(64), [0, 63, 500, 999]);
        assert_eq!(walk(-1), [0, 63, 500, 999]);
    }
}
