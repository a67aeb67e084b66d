//! The keys of a fill and of the batches, and the value of each key.

use crate::Error;

pub(crate) const TASKS: u64 = 32;
pub(crate) const BATCH: u64 = 256;
const VALUE_BYTES: usize = 128;

pub(crate) type Key = [u8; 16];

/// The key of a number, as RocksDB's `db_bench` writes it.
pub(crate) fn key(number: u64) -> Key {
    let mut key = [b'0'; 16];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key
}

/// The only value that a key can have.
pub(crate) fn value(number: u64) -> [u8; VALUE_BYTES] {
    let mut random = fastrand::Rng::with_seed(number);
    let mut value = [0; VALUE_BYTES];
    random.fill(&mut value);
    value
}

/// Returns the numbers of `fillrandom` in their order.
pub(crate) fn random_keys(keys: u64) -> impl Iterator<Item = u64> {
    let mut random = fastrand::Rng::with_seed(keys);
    (0..keys).map(move |_| random.u64(0..keys))
}

/// The batches of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) keys: u64,
    /// Batches of each task.
    pub(crate) batches: u64,
    /// The distance between the keys of a batch; 0 for random keys.
    pub(crate) stride: u64,
    pub(crate) seed: u64,
}

impl Load {
    /// Returns a small load with other keys, after which a database has opened its files and read their indexes.
    pub(crate) fn warm_up(self) -> Load {
        Load {
            batches: 1,
            stride: 0,
            seed: 0,
            ..self
        }
    }

    pub(crate) fn gets(self) -> u64 {
        TASKS * self.batches * BATCH
    }

    /// Returns the numbers of the keys of a task, batch by batch.
    pub(crate) fn batches_of(self, task: u64) -> impl Iterator<Item = Vec<u64>> {
        let mut random = fastrand::Rng::with_seed(self.seed << 32 | task);
        (0..self.batches).map(move |_| match self.stride {
            0 => (0..BATCH).map(|_| random.u64(0..self.keys)).collect(),
            stride => {
                let first = random.u64(0..self.keys);
                (0..BATCH)
                    .map(|place| (first + place * stride) % self.keys)
                    .collect()
            }
        })
    }
}

/// Returns 1 if a key was found with its value, and 0 if it was not found.
pub(crate) fn check(number: u64, found: Option<&[u8]>) -> Result<u64, Error> {
    match found {
        None => Ok(0),
        Some(found) if found == value(number) => Ok(1),
        Some(_) => {
            Err(format!("key {number} has another value than the one that was written").into())
        }
    }
}
