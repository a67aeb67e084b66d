//! A set of slot indices as a bit set. One per driver, used by its thread only.

/// Grows to the largest index it ever held.
#[derive(Debug, Default)]
pub(super) struct IndexSet {
    words: Vec<u64>,
}

impl IndexSet {
    #[inline]
    pub(super) fn insert(&mut self, index: u32) {
        let word = index as usize / 64;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (index % 64);
    }

    #[inline]
    pub(super) fn remove(&mut self, index: u32) {
        if let Some(word) = self.words.get_mut(index as usize / 64) {
            *word &= !(1 << (index % 64));
        }
    }

    pub(super) fn has(&self, index: u32) -> bool {
        let word = self.words.get(index as usize / 64);
        word.is_some_and(|word| word & 1 << (index % 64) != 0)
    }

    /// Returns the indices in ascending order.
    pub(super) fn indices(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.words).flat_map(|(word, &bits)| {
            (0..64)
                .filter(move |bit| bits & 1 << bit != 0)
                .map(move |bit| word * 64 + bit)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_that_were_inserted_and_not_removed_are_listed() {
        let mut set = IndexSet::default();
        for index in [300, 0, 63, 64, 5] {
            set.insert(index);
        }
        set.remove(64);
        set.remove(9999);
        assert_eq!(set.indices().collect::<Vec<_>>(), [0, 5, 63, 300]);
        assert_eq!(
            [5, 6, 64, 9999].map(|index| set.has(index)),
            [true, false, false, false]
        );
    }
}
