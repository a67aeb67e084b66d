//! Bytes that tell their place.

use std::sync::LazyLock;

/// A prime, so that no two places at a multiple of a block or a page have the same bytes.
const PERIOD: usize = 65_521;

/// Returns `count` bytes from the position `from` on. They depend on their position and on `seed`, which distinguishes
/// files and streams. They are copied, because a loop over each would be most of a test's time without optimisation.
#[must_use]
pub fn bytes(seed: u64, from: u64, count: usize) -> Vec<u8> {
    static TABLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mixed = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (0..PERIOD as u64)
            .map(|n| mixed(mixed(n) >> 29).to_be_bytes()[0])
            .collect()
    });
    let period = PERIOD as u64;
    let mut at = ((seed % period * 7_919 + from % period) % period) as usize;
    let mut bytes = Vec::with_capacity(count);
    while bytes.len() < count {
        let part = &TABLE[at..];
        bytes.extend_from_slice(&part[..part.len().min(count - bytes.len())]);
        at = 0;
    }
    bytes
}

/// Panics unless `got` is what `bytes` returns, and names the first position that differs.
#[track_caller]
pub fn check(seed: u64, from: u64, got: &[u8]) {
    let wanted = bytes(seed, from, got.len());
    if got != wanted {
        let wrong = (from..)
            .zip(got.iter().zip(&wanted))
            .find(|(_, (got, wanted))| got != wanted);
        panic!("seed {seed}: position, received, expected: {wrong:?}");
    }
}
