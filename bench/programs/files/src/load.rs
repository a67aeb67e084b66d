//! The load of one run: random blocks of one file, and the count of correct results.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::fs::{Advice, OFlags, fadvise};

/// Every unit of the file begins with its number.
const UNIT_BYTES: u64 = 4096;
/// The length of the file that is created.
const FILE_BYTES: u64 = 4 << 30;

/// The state of the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Cache {
    Direct,
    Cold,
    Hot,
}

/// One run, which all threads and tasks of a variant share.
pub struct Load {
    pub path: PathBuf,
    pub block_bytes: usize,
    pub depth: usize,
    pub cache: Cache,
    blocks: u64,
    seed: u64,
    taken: AtomicU64,
    correct: AtomicU64,
    began: Instant,
    time: Duration,
    failure: Mutex<Option<String>>,
}

impl Load {
    pub fn new(
        path: &Path,
        block_bytes: usize,
        depth: usize,
        cache: Cache,
        time: Duration,
    ) -> io::Result<Load> {
        let file = File::open(path)?;
        let blocks = file.metadata()?.len() / block_bytes as u64;
        match cache {
            Cache::Direct | Cache::Cold => fadvise(&file, 0, None, Advice::DontNeed)?,
            Cache::Hot => drop(io::copy(&mut &file, &mut io::sink())?),
        }
        Ok(Load {
            path: path.to_owned(),
            block_bytes,
            depth,
            cache,
            // A power of two, for the order.
            blocks: 1 << blocks.max(1).ilog2(),
            seed: fastrand::u64(..),
            taken: AtomicU64::new(0),
            correct: AtomicU64::new(0),
            began: Instant::now(),
            time,
            failure: Mutex::new(None),
        })
    }

    /// Opens the file as the load requires.
    pub fn open(&self) -> io::Result<File> {
        OpenOptions::new()
            .read(true)
            .custom_flags(self.flags())
            .open(&self.path)
    }

    /// Returns the flags for the variants that open the file by its path.
    pub fn flags(&self) -> i32 {
        match self.cache {
            Cache::Direct => OFlags::DIRECT.bits() as i32,
            Cache::Cold | Cache::Hot => 0,
        }
    }

    /// Returns the offset of the next block, or `None` at the end. Each pass has every block once, and a cold run has
    /// one pass.
    pub fn next(&self) -> Option<u64> {
        let index = self.taken.fetch_add(1, Relaxed);
        if self.began.elapsed() >= self.time || (self.cache == Cache::Cold && index >= self.blocks)
        {
            return None;
        }
        // An odd factor permutes the numbers below a power of two.
        let block = index
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add(self.seed)
            % self.blocks;
        Some(block * self.block_bytes as u64)
    }

    /// Takes the result of a read at `offset`.
    pub fn done(&self, offset: u64, result: io::Result<usize>, bytes: &[u8]) {
        let word = bytes.first_chunk().map(|word| u64::from_le_bytes(*word));
        let problem = match result {
            Ok(count) if count == self.block_bytes && word == Some(offset / UNIT_BYTES) => {
                self.correct.fetch_add(1, Relaxed);
                return;
            }
            Ok(count) => format!("offset {offset}: {count} bytes, or those of another offset"),
            Err(error) => format!("offset {offset}: {error}"),
        };
        self.failure.lock().unwrap().get_or_insert(problem);
    }

    /// Returns the number of correct reads and the time that they took.
    pub fn ended(&self) -> Result<(u64, Duration), String> {
        match self.failure.lock().unwrap().take() {
            Some(problem) => Err(problem),
            None => Ok((self.correct.load(Relaxed), self.began.elapsed())),
        }
    }
}

/// Creates the file if it does not exist.
pub fn create(path: &Path) -> io::Result<()> {
    let mut file = match File::create_new(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        file => file?,
    };
    let mut chunk = vec![0; 1 << 20];
    fastrand::fill(&mut chunk);
    for start in (0..FILE_BYTES).step_by(chunk.len()) {
        for (index, unit) in chunk.chunks_exact_mut(UNIT_BYTES as usize).enumerate() {
            let number = start / UNIT_BYTES + index as u64;
            unit[..8].copy_from_slice(&number.to_le_bytes());
        }
        file.write_all(&chunk)?;
    }
    file.sync_all()
}

/// Returns a buffer, and the start of the aligned block in it.
pub fn buffer(block_bytes: usize) -> (Vec<u8>, usize) {
    let buffer = vec![0; block_bytes + UNIT_BYTES as usize];
    let start = buffer.as_ptr().align_offset(UNIT_BYTES as usize);
    (buffer, start)
}
