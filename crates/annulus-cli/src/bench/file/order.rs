//! The order of blocks: a pass over every block, then another pass in a different order.
//!
//! A run has one order, which its workers share. A worker leases a range of positions, so the shared counter is
//! touched once in [`CHUNK_MAX`] operations. A seeded permutation maps positions to blocks, so a random order needs no
//! memory and repeats no block within a pass.

use std::sync::atomic::{AtomicU64, Ordering};

/// The longest lease: long enough to hide the cost of the counter, and short enough that workers finish a pass
/// together.
const CHUNK_MAX: u64 = 64;

/// The order of one run.
pub(crate) struct Order {
    blocks: u64,
    seed: u64,
    random: bool,
    endless: bool,
    chunk: u64,
    chunks_per_pass: u64,
    taken: AtomicU64,
}

/// The parameters of an order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OrderSpec {
    pub(crate) blocks: u64,
    pub(crate) seed: u64,
    pub(crate) random: bool,
    /// Start another pass after the last block. Not for a cold run, whose blocks are no longer cold.
    pub(crate) endless: bool,
    /// The number of workers that share the order.
    pub(crate) workers: usize,
}

impl Order {
    pub(crate) fn new(spec: OrderSpec) -> Order {
        // A sequential order is sequential across all workers: one position at a time.
        let chunk = match spec.random {
            true => (spec.blocks / (spec.workers.max(1) as u64 * 16)).clamp(1, CHUNK_MAX),
            false => 1,
        };
        Order {
            blocks: spec.blocks,
            seed: spec.seed,
            random: spec.random,
            endless: spec.endless,
            chunk,
            chunks_per_pass: spec.blocks.div_ceil(chunk).max(1),
            taken: AtomicU64::new(0),
        }
    }

    /// Returns the next range of positions, or `None` if every block has been used and there is no second pass.
    pub(crate) fn lease(&self) -> Option<Lease> {
        let chunk = self.taken.fetch_add(1, Ordering::Relaxed);
        let pass = chunk / self.chunks_per_pass;
        if pass > 0 && !self.endless {
            return None;
        }
        let start = (chunk % self.chunks_per_pass) * self.chunk;
        let shuffle = self
            .random
            .then(|| Shuffle::new(self.blocks, self.seed ^ mix(pass)));
        Some(Lease {
            next: start,
            end: (start + self.chunk).min(self.blocks),
            shuffle,
        })
    }
}

/// A range of positions in one pass, for one worker.
#[derive(Default)]
pub(crate) struct Lease {
    next: u64,
    end: u64,
    shuffle: Option<Shuffle>,
}

impl Lease {
    /// Returns the next block of this lease.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<u64> {
        if self.next >= self.end {
            return None;
        }
        let position = self.next;
        self.next += 1;
        Some(match &self.shuffle {
            Some(shuffle) => shuffle.block(position),
            None => position,
        })
    }
}

/// Blocks by Zipf's law: one in a shuffled order has a share that falls with its rank to the power of an exponent below
/// 1. The approximation is that of YCSB, which is exact for the first two ranks (Gray et al., SIGMOD 1994).
pub(crate) struct Zipf {
    shuffle: Shuffle,
    exponent: f64,
    /// The sum of 1 / rank^exponent.
    sum: f64,
    eta: f64,
}

impl Zipf {
    pub(crate) fn new(blocks: u64, seed: u64, exponent: f64) -> Zipf {
        let share = |rank: u64| (rank as f64).powf(-exponent);
        let sum: f64 = (1..=blocks).map(share).sum();
        let two = 1.0 + share(2);
        let rest = 1.0 - (2.0 / blocks as f64).powf(1.0 - exponent);
        Zipf {
            shuffle: Shuffle::new(blocks, seed),
            exponent,
            sum,
            eta: rest / (1.0 - two / sum),
        }
    }

    /// Draws a block.
    pub(crate) fn block(&self, rng: &mut fastrand::Rng) -> u64 {
        self.shuffle.block(self.rank(rng.f64()))
    }

    /// Returns the rank, from 0, for a number from 0 to 1.
    fn rank(&self, at: f64) -> u64 {
        let blocks = self.shuffle.blocks;
        match at * self.sum {
            first if first < 1.0 => 0,
            two if two < 1.0 + 0.5_f64.powf(self.exponent) => 1.min(blocks - 1),
            _ => {
                let part = (self.eta * at - self.eta + 1.0).powf(1.0 / (1.0 - self.exponent));
                ((blocks as f64 * part) as u64).min(blocks - 1)
            }
        }
    }
}

/// A permutation of `0..blocks`: invertible steps on the next power of two, repeated while the result is outside the
/// range (at most twice on average).
struct Shuffle {
    blocks: u64,
    mask: u64,
    shift: u32,
    add: u64,
    multiply: [u64; 2],
}

impl Shuffle {
    fn new(blocks: u64, seed: u64) -> Shuffle {
        let bits = 64 - blocks.saturating_sub(1).leading_zeros();
        Shuffle {
            blocks,
            mask: if bits == 64 { !0 } else { (1 << bits) - 1 },
            shift: (bits / 2).max(1),
            add: mix(seed ^ 1),
            // Odd, so that multiplication is invertible modulo a power of two.
            multiply: [mix(seed ^ 2) | 1, mix(seed ^ 3) | 1],
        }
    }

    #[inline]
    fn block(&self, position: u64) -> u64 {
        let mut x = position;
        loop {
            x = x.wrapping_add(self.add) & self.mask;
            for factor in self.multiply {
                x = x.wrapping_mul(factor) & self.mask;
                x ^= x >> self.shift;
            }
            if x < self.blocks {
                return x;
            }
        }
    }
}

/// Mixes the bits of a number (the finalizer of SplitMix64).
#[inline]
pub(crate) fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(order: &Order) -> Vec<u64> {
        let mut blocks = Vec::new();
        while (blocks.len() as u64) < order.blocks {
            let Some(mut lease) = order.lease() else {
                break;
            };
            blocks.extend(std::iter::from_fn(|| lease.next()));
        }
        blocks
    }

    fn order(blocks: u64, random: bool, endless: bool) -> Order {
        Order::new(OrderSpec {
            blocks,
            seed: 7,
            random,
            endless,
            workers: 4,
        })
    }

    #[test]
    fn a_pass_has_every_block_once() {
        for blocks in [1, 2, 3, 5, 64, 65, 1000, 4096, 4097, 100_003] {
            let mut positions = pass(&order(blocks, true, false));
            positions.sort_unstable();
            assert!(positions.iter().copied().eq(0..blocks), "{blocks} blocks");
        }
    }

    #[test]
    fn a_cold_order_ends_after_one_pass_and_an_endless_one_goes_on_differently() {
        let cold = order(1000, true, false);
        assert_eq!(pass(&cold).len(), 1000);
        assert!(cold.lease().is_none());
        let endless = order(1000, true, true);
        let (first, second) = (pass(&endless), pass(&endless));
        assert_eq!(second.len(), 1000);
        assert_ne!(first, second);
    }

    #[test]
    fn sequential_is_sequential() {
        assert!(pass(&order(100, false, false)).into_iter().eq(0..100));
    }

    #[test]
    fn random_order_is_not_nearly_sequential() {
        let blocks = pass(&order(65_536, true, false));
        let near = blocks
            .windows(2)
            .filter(|pair| pair[0].abs_diff(pair[1]) <= 16)
            .count();
        // By chance, 2 * 16 / 65,536 of 65,535 pairs are near: 32.
        assert!(near < 100, "{near} of 65,535 steps are short");
    }

    #[test]
    fn ranks_by_zipfs_law_have_their_shares() {
        let blocks = 10_000;
        let zipf = Zipf::new(blocks, 7, 0.99);
        let mut counts = vec![0_u32; blocks as usize];
        let draws = 200_000;
        (0..draws)
            .for_each(|nth| counts[zipf.rank(f64::from(nth) / f64::from(draws)) as usize] += 1);
        let share = |counts: &[u32]| f64::from(counts.iter().sum::<u32>()) / f64::from(draws);
        let law = |ranks: u64| {
            (1..=ranks)
                .map(|rank| (rank as f64).powf(-0.99))
                .sum::<f64>()
        };
        for ranks in [1, 2, 100, 1000] {
            let (found, expected) = (share(&counts[..ranks]), law(ranks as u64) / law(blocks));
            assert!(
                (found - expected).abs() < 0.02,
                "{ranks}: {found} {expected}"
            );
        }
        let mut rng = fastrand::Rng::with_seed(1);
        assert!((0..1000).all(|_| Zipf::new(3, 1, 0.5).block(&mut rng) < 3));
    }

    #[test]
    fn the_same_seed_gives_the_same_order() {
        assert_eq!(
            pass(&order(500, true, false)),
            pass(&order(500, true, false))
        );
    }
}
