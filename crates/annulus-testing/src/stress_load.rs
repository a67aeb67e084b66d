//! A stress load: many tasks on several executors, each with its own region of a file. The tasks read and write at
//! random offsets, drop a part of their futures at any point, and let others time out. Each word that is read must be
//! possible: the last one written, or one whose write was cancelled. The library's test programs `stress` and
//! `tokio_stress` run the load briefly, and its example `stress` as long as requested.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use annulus::{BufError, Engine, File, IoBuf, IoBufMut, OpenOptions};

/// The number of bytes with one version: half a sector, so that transfers of sectors mix versions.
const CELL_BYTES: usize = 256;
/// The number of cells in a task's region.
const CELLS: usize = 128;
/// The size of a task's region: 32 KiB.
pub const REGION_BYTES: usize = CELL_BYTES * CELLS;
/// The number of bytes behind the lent part of each buffer that must not be written.
const GUARD_BYTES: usize = 64;
const POISON: u8 = 0xa5;

/// The drain timeout of an engine: longer than any disk takes, even for a sync.
pub const DRAIN: Duration = Duration::from_secs(600);

/// Counts of events by kind, and the errors. Each kind must occur.
#[derive(Debug, Default)]
pub struct Tally {
    /// The number of operations started.
    pub operations: AtomicU64,
    dropped: AtomicU64,
    timed_out: AtomicU64,
    failed: AtomicU64,
    batches: AtomicU64,
    words_checked: AtomicU64,
    buffers: AtomicI64,
    wrong: Mutex<Vec<String>>,
}

impl Tally {
    /// Returns a summary in one line.
    pub fn line(&self) -> String {
        format!(
            "{} operations, {} dropped, {} timed out, {} failed, {} batches, {} words checked",
            self.operations.load(Relaxed),
            self.dropped.load(Relaxed),
            self.timed_out.load(Relaxed),
            self.failed.load(Relaxed),
            self.batches.load(Relaxed),
            self.words_checked.load(Relaxed),
        )
    }

    fn wrong(&self, what: String) {
        if let Ok(mut wrong) = self.wrong.lock() {
            wrong.push(what);
        }
    }

    /// Returns the errors, and the kinds of events that never occurred. Failed operations are errors unless the kernel
    /// injects them (`injected`).
    pub fn verdict(&self, injected: bool) -> Result<(), String> {
        let mut wrong = self
            .wrong
            .lock()
            .map_err(|_| "a task panicked".to_owned())?
            .clone();
        let (buffers, failed) = (self.buffers.load(Relaxed), self.failed.load(Relaxed));
        if buffers != 0 {
            wrong.push(format!("{buffers} buffers were never dropped"));
        }
        if failed > 0 && !injected {
            wrong.push(format!(
                "{failed} operations failed, and no failure was injected"
            ));
        }
        for (what, count) in [
            ("dropped a future", &self.dropped),
            ("ran into a timeout", &self.timed_out),
            ("read a batch", &self.batches),
            ("checked a word", &self.words_checked),
        ] {
            if count.load(Relaxed) == 0 {
                wrong.push(format!("no task ever {what}"));
            }
        }
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(wrong.join("; "))
        }
    }
}

/// A poisoned buffer with a guard behind its lent bytes. The tally counts the live ones.
struct Guarded {
    bytes: Box<[u8]>,
    tally: Arc<Tally>,
}

impl Guarded {
    fn new(bytes: usize, tally: &Arc<Tally>) -> Guarded {
        tally.buffers.fetch_add(1, Relaxed);
        let bytes = vec![POISON; bytes + GUARD_BYTES].into_boxed_slice();
        Guarded {
            bytes,
            tally: Arc::clone(tally),
        }
    }

    fn lent(&mut self) -> &mut [u8] {
        let end = self.bytes.len() - GUARD_BYTES;
        &mut self.bytes[..end]
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let guard = &self.bytes[self.bytes.len() - GUARD_BYTES..];
        if guard.iter().any(|&byte| byte != POISON) {
            self.tally
                .wrong("a transfer wrote beyond its buffer".to_owned());
        }
        // A write to this memory after the drop would go to poisoned bytes.
        self.bytes.fill(POISON);
        self.tally.buffers.fetch_sub(1, Relaxed);
    }
}

// SAFETY: Still: the box is never replaced or resized.
unsafe impl IoBuf for Guarded {
    fn stable_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }

    fn init_bytes(&self) -> usize {
        self.bytes.len() - GUARD_BYTES
    }
}

// SAFETY: Still, and the value is the only owner of the block.
unsafe impl IoBufMut for Guarded {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr()
    }

    fn lent_bytes(&self) -> usize {
        self.bytes.len() - GUARD_BYTES
    }

    unsafe fn set_init(&mut self, _: usize) {}
}

/// One task's part of the file, and its possible contents.
struct Region {
    file: File,
    from: u64,
    random: fastrand::Rng,
    tally: Arc<Tally>,
    /// The versions that each cell may have; the last one written is at the end.
    versions: Vec<Vec<u32>>,
    next_version: u32,
    tears_words: bool,
}

/// Returns the word at index `word` of a cell; it encodes the position and the version.
fn word(position: u64, version: u32, word: usize) -> u64 {
    let mixed = (position << 20 ^ u64::from(version)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (word as u64).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// Returns whether each byte is that of one of the words.
fn is_mixed(words: impl Iterator<Item = u64> + Clone, bytes: [u8; 8]) -> bool {
    let has = |(at, byte)| words.clone().any(|word| word.to_ne_bytes()[at] == byte);
    bytes.into_iter().enumerate().all(has)
}

/// The outcome of an operation.
enum Ended<T> {
    Completed(T),
    Dropped,
}

impl Region {
    fn cells(&mut self) -> (usize, usize) {
        let count = self.random.usize(1..=16);
        (self.random.usize(0..=CELLS - count), count)
    }

    fn position(&self, cell: usize) -> u64 {
        self.from + (cell * CELL_BYTES) as u64
    }

    /// Awaits `future`, or drops it: before its first poll, after it, or some polls later.
    async fn maybe<F: Future>(&mut self, future: F) -> Ended<F::Output> {
        self.tally.operations.fetch_add(1, Relaxed);
        let patience = match self.random.u8(..100) {
            0..2 => 0,
            2..14 => 1,
            14..20 => self.random.usize(2..5),
            _ => usize::MAX,
        };
        let mut future = pin!(future);
        let mut polls = 0;
        let ended = poll_fn(|context| {
            if polls == patience {
                return Poll::Ready(Ended::Dropped);
            }
            polls += 1;
            match future.as_mut().poll(context) {
                Poll::Ready(output) => Poll::Ready(Ended::Completed(output)),
                Poll::Pending if polls >= patience => {
                    // Polled once more, so that the drop happens a little after the last poll.
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
                Poll::Pending => Poll::Pending,
            }
        })
        .await;
        if matches!(ended, Ended::Dropped) {
            self.tally.dropped.fetch_add(1, Relaxed);
        }
        ended
    }

    fn failed(&self, error: &io::Error) {
        match error.kind() {
            io::ErrorKind::TimedOut => self.tally.timed_out.fetch_add(1, Relaxed),
            _ => self.tally.failed.fetch_add(1, Relaxed),
        };
    }

    fn timeout(&mut self) -> Duration {
        match self.random.u8(..20) {
            0 => Duration::from_micros(self.random.u64(0..200)),
            _ => Duration::from_secs(600),
        }
    }

    async fn write(&mut self) {
        let (cell, count) = self.cells();
        self.next_version += 1;
        let version = self.next_version;
        let mut buf = Guarded::new(count * CELL_BYTES, &self.tally);
        for (at, bytes) in (cell..).zip(buf.lent().chunks_exact_mut(CELL_BYTES)) {
            let position = self.position(at);
            let (words, _) = bytes.as_chunks_mut();
            for (n, bytes) in words.iter_mut().enumerate() {
                *bytes = word(position, version, n).to_ne_bytes();
            }
        }
        let (at, file, timeout) = (self.position(cell), self.file.clone(), self.timeout());
        let ended = self
            .maybe(file.write_all_at(buf, at).timeout(timeout))
            .await;
        let whole = match ended {
            Ended::Completed(Ok(_)) => true,
            Ended::Completed(Err(error)) => {
                self.failed(error.error());
                false
            }
            Ended::Dropped => false,
        };
        for versions in &mut self.versions[cell..cell + count] {
            // A write that was given up may still reach the file at any later time. It stays possible, and so do the
            // later ones.
            if whole && versions.len() == 1 {
                versions.clear();
            }
            versions.push(version);
        }
    }

    async fn read(&mut self) {
        let (cell, count) = self.cells();
        let (at, file, timeout) = (self.position(cell), self.file.clone(), self.timeout());
        if self.random.bool() {
            let buf = Guarded::new(count * CELL_BYTES, &self.tally);
            match self
                .maybe(file.read_exact_at(buf, at).timeout(timeout))
                .await
            {
                Ended::Completed(Ok(mut buf)) => self.check(cell, buf.lent()),
                Ended::Completed(Err(error)) => self.failed(error.error()),
                Ended::Dropped => {}
            }
            return;
        }
        let mut slice = vec![0; count * CELL_BYTES];
        let ended = self
            .maybe(file.read_into(&mut slice, at).timeout(timeout))
            .await;
        match ended {
            Ended::Completed(Ok(bytes)) => {
                let whole = bytes / CELL_BYTES * CELL_BYTES;
                self.check(cell, &slice[..whole]);
            }
            Ended::Completed(Err(error)) => self.failed(&error),
            Ended::Dropped => {}
        }
    }

    /// Reads a batch, and does not wait for some of its results in some cases.
    async fn batch(&mut self) {
        self.tally.batches.fetch_add(1, Relaxed);
        let requests: Vec<_> = (0..self.random.usize(1..24))
            .map(|_| self.cells())
            .collect();
        let file = self.file.clone();
        let reads: Vec<_> = requests
            .iter()
            .map(|&(cell, count)| {
                (
                    Guarded::new(count * CELL_BYTES, &self.tally),
                    self.position(cell),
                )
            })
            .collect();
        let mut many = file.read_many_at(reads).timeout(self.timeout());
        let awaited = if self.random.u8(..5) == 0 {
            self.random.usize(..requests.len())
        } else {
            requests.len()
        };
        for _ in 0..awaited {
            self.tally.operations.fetch_add(1, Relaxed);
            let Some(done) = many.next().await else { break };
            match done.result {
                Ok((bytes, mut buf)) => {
                    let whole = bytes / CELL_BYTES * CELL_BYTES;
                    self.check(requests[done.index].0, &buf.lent()[..whole]);
                }
                Err(error) => self.failed(BufError::error(&error)),
            }
        }
        if awaited < requests.len() {
            self.tally
                .dropped
                .fetch_add((requests.len() - awaited) as u64, Relaxed);
        }
    }

    fn check(&self, first: usize, bytes: &[u8]) {
        for (cell, bytes) in (first..).zip(bytes.chunks_exact(CELL_BYTES)) {
            let position = self.position(cell);
            let (words, _) = bytes.as_chunks();
            for (n, &word_bytes) in words.iter().enumerate() {
                let read = u64::from_ne_bytes(word_bytes);
                let words = self.versions[cell].iter().map(|&version| match version {
                    0 => 0,
                    version => word(position, version, n),
                });
                let is_possible = words.clone().any(|word| word == read)
                    || self.tears_words && is_mixed(words, word_bytes);
                if !is_possible {
                    self.tally
                        .wrong(format!("word {n} of the cell at {position} is {read:#x}"));
                    return;
                }
            }
        }
        self.tally
            .words_checked
            .fetch_add((bytes.len() / 8) as u64, Relaxed);
    }

    async fn run(mut self, steps: u64) {
        for _ in 0..steps {
            match self.random.u8(..10) {
                0..4 => self.write().await,
                4..8 => self.read().await,
                8 => self.batch().await,
                _ => {
                    let file = self.file.clone();
                    match self
                        .maybe(file.sync_data().timeout(Duration::from_secs(600)))
                        .await
                    {
                        Ended::Completed(Err(error)) => self.failed(&error),
                        Ended::Completed(Ok(())) | Ended::Dropped => {}
                    }
                }
            }
        }
    }
}

/// A load on one engine.
pub struct Load<'a> {
    /// The engine, which is shut down at the end.
    pub engine: Engine,
    /// The file, which is created.
    pub path: &'a Path,
    /// The seed of the random numbers.
    pub seed: u64,
    /// The number of tasks.
    pub tasks: usize,
    /// The number of steps of each task; a batch is one step with several operations.
    pub steps: u64,
    /// Counts operations and collects errors.
    pub tally: &'a Arc<Tally>,
    /// True if a write may end within a word. It is a simulated short write, whose future was dropped or which failed.
    pub tears_words: bool,
    /// Builds the Tokio runtime among the executors.
    pub tokio: fn() -> io::Result<tokio::runtime::Runtime>,
}

/// Returns Tokio's own runtime with two workers.
pub fn plain_tokio() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
}

impl Load<'_> {
    /// Runs the tasks on three executors at the same time: the Tokio runtime, smol's, and plain threads. Then shuts
    /// down the engine.
    pub fn run(self) -> Result<(), String> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        let file = pollster::block_on(self.engine.open_with(&options, self.path))
            .map_err(|error| format!("opening {}: {error}", self.path.display()))?;
        let bytes = (self.tasks * REGION_BYTES) as u64;
        for _ in 0..1000 {
            // A simulated kernel may refuse at random.
            if pollster::block_on(file.set_len(bytes)).is_ok() {
                break;
            }
        }
        let runtime = (self.tokio)().map_err(|error| format!("a Tokio runtime: {error}"))?;
        let mut groups: [Vec<Region>; 3] = Default::default();
        for task in 0..self.tasks {
            groups[task % 3].push(Region {
                file: file.clone(),
                from: (task * REGION_BYTES) as u64,
                random: fastrand::Rng::with_seed(self.seed ^ (task as u64) << 32),
                tally: Arc::clone(self.tally),
                versions: vec![vec![0]; CELLS],
                next_version: 0,
                tears_words: self.tears_words,
            });
        }
        drop(file);
        let [tokio, smol, plain] = groups;
        let steps = self.steps;
        std::thread::scope(|scope| {
            scope.spawn(|| on_tokio(&runtime, tokio, steps));
            scope.spawn(move || {
                let executor = smol::LocalExecutor::new();
                let tasks: Vec<_> = smol
                    .into_iter()
                    .map(|region| executor.spawn(region.run(steps)))
                    .collect();
                pollster::block_on(executor.run(async {
                    for task in tasks {
                        task.await;
                    }
                }));
            });
            for region in plain {
                scope.spawn(move || pollster::block_on(region.run(steps)));
            }
        });
        self.engine.shutdown();
        let metrics = self.engine.metrics();
        let mut wrong = BTreeMap::new();
        for (what, count) in [
            (
                "operations were submitted but never completed",
                metrics.submitted - metrics.completed,
            ),
            ("CQEs named no operation in flight", metrics.stale),
            ("operations were leaked", metrics.leaked),
        ] {
            if count != 0 {
                wrong.insert(what, count);
            }
        }
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(format!("{wrong:?}"))
        }
    }
}

fn on_tokio(runtime: &tokio::runtime::Runtime, regions: Vec<Region>, steps: u64) {
    runtime.block_on(async {
        let tasks: Vec<_> = regions
            .into_iter()
            .map(|region| tokio::spawn(region.run(steps)))
            .collect();
        for task in tasks {
            let _ = task.await;
        }
    });
}

/// Returns the number of open descriptors of this process.
pub fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// Returns whether the process returns to `before` open descriptors within 60 s. It waits because a scope can end
/// before its threads drop their thread-locals, including rings. Always `true` under ThreadSanitizer, which opens
/// descriptors itself after its first suppressed report.
pub fn back_to(before: usize) -> bool {
    if std::env::var_os("TSAN_OPTIONS").is_some() {
        return true;
    }
    let back = (0..6000).any(|_| {
        let back = open_descriptors() <= before;
        if !back {
            std::thread::sleep(Duration::from_millis(10));
        }
        back
    });
    if !back {
        for descriptor in std::fs::read_dir("/proc/self/fd").into_iter().flatten() {
            let target = descriptor.and_then(|found| std::fs::read_link(found.path()));
            println!("open: {target:?}");
        }
    }
    back
}
