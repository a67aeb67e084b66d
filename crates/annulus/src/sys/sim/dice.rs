//! The simulation's only source of randomness: SplitMix64, so that a seed gives the same schedule with every version of
//! every dependency. There is one per world and one per executor.

use crate::narrow::to_usize;
/// A generator whose numbers depend only on the seed.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        // Neighbouring seeds must not start neighbouring sequences.
        let mut dice = Dice(seed ^ 0x9e37_79b9_7f4a_7c15);
        dice.next();
        dice
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`; 0 if `bound` is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }

    /// Returns an index into a collection of this length.
    pub(crate) fn index(&mut self, len: usize) -> usize {
        to_usize(self.below(len as u64))
    }

    /// Returns `true` with a probability of `per_mille` / 1000. Draws no number if the result is certain, so that a
    /// disabled fault does not change the schedule of the others.
    pub(crate) fn hits(&mut self, per_mille: u16) -> bool {
        match per_mille {
            0 => false,
            1000.. => true,
            _ => self.below(1000) < u64::from(per_mille),
        }
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.next() & 1 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chance_occurs_about_as_often_as_configured() {
        let mut dice = Dice::new(1);
        let hits = (0..100_000).filter(|_| dice.hits(250)).count();
        assert!((24_000..26_000).contains(&hits), "{hits}");
        assert!(!(0..1000).any(|_| dice.hits(0)));
        assert!((0..1000).all(|_| dice.hits(1000)));
    }

    #[test]
    fn the_same_seed_gives_the_same_sequence() {
        let take = |seed| -> Vec<u64> {
            let mut dice = Dice::new(seed);
            (0..8).map(|_| dice.next()).collect()
        };
        assert_eq!(take(7), take(7));
        assert_ne!(take(7), take(8));
    }
}
