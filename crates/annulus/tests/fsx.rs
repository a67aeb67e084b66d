//! Random operations on one file, compared step by step with a vector of bytes, in the manner of fsx; on every backend,
//! buffered and direct.
//!
//! `SEED=` repeats a run, `OPS=` makes it longer. A failure prints the command that repeats it, and the last steps.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use annulus::buf::AlignedBuf;
use annulus::engine::SetupMode;
use annulus::fs::{AllocateMode, Merge, SyncRangeMode};
use annulus::{Backend, Engine, EngineBuilder, File, OpenOptions};
use annulus_testing::skip::skip;

/// The maximum length of the file, so that steps overlap.
const FILE_BYTES_MAX: u64 = 256 << 10;
const TRANSFER_BYTES_MAX: u64 = 48 << 10;
/// The maximum number of parts of a vectored transfer, or of ranges of a batch.
const PARTS_MAX: u64 = 12;
const OPS: u64 = 600;
/// The number of steps that a failure prints.
const LAST: usize = 20;
/// The alignment of direct steps: sufficient for any device.
const SECTOR: u64 = 4096;

/// Splitmix64.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Returns a number below `bound`, which is not 0.
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn bytes(&mut self, count: u64) -> Vec<u8> {
        // Bytes depend on the step and the position, so that lost and shifted writes are both noticed.
        let first = self.next();
        (0..count)
            .map(|at| (first.wrapping_add(at * 167) >> (at % 8)) as u8)
            .collect()
    }
}

/// A range of the file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Range {
    offset: u64,
    bytes: u64,
}

impl fmt::Debug for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.offset, self.end())
    }
}

impl Range {
    fn end(self) -> u64 {
        self.offset + self.bytes
    }
}

#[derive(Clone, Debug)]
enum Step {
    Read(Range),
    ReadInto(Range),
    ReadExact(Range),
    ReadVectored(u64, Vec<u64>),
    ReadMany(Vec<Range>),
    ReadMerged(Vec<Range>, Merge),
    Write(Range),
    WriteDurable(Range),
    WriteVectored(u64, Vec<u64>),
    CopyRange(Range, u64),
    SyncRange(Range),
    SetLen(u64),
    Allocate(AllocateMode, Range),
    SyncAll,
    SyncData,
    Reopen,
    Length,
}

/// Generates steps at any offset, or on sectors if writes must be aligned.
struct Author {
    dice: Dice,
    unit: u64,
}

impl Author {
    fn offset(&mut self) -> u64 {
        self.dice.below(FILE_BYTES_MAX / self.unit) * self.unit
    }

    fn range(&mut self) -> Range {
        let offset = self.offset();
        let most = TRANSFER_BYTES_MAX.min(FILE_BYTES_MAX - offset) / self.unit;
        // Small transfers are as likely as large ones.
        let most = 1 + self.dice.below(most.max(1));
        Range {
            offset,
            bytes: (1 + self.dice.below(most)) * self.unit,
        }
    }

    /// Returns an offset and consecutive lengths.
    fn parts(&mut self) -> (u64, Vec<u64>) {
        let offset = self.offset();
        let mut left = (FILE_BYTES_MAX - offset) / self.unit;
        let mut parts = Vec::new();
        for _ in 0..=self.dice.below(PARTS_MAX) {
            let part = self.dice.below(4096_u64.max(4 * self.unit) / self.unit) + 1;
            if part > left {
                break;
            }
            left -= part;
            parts.push(part * self.unit);
        }
        if parts.is_empty() {
            parts.push(self.unit);
        }
        (offset, parts)
    }

    /// Returns ranges of reads, which may be unaligned in any case: the library rounds them.
    fn ranges(&mut self) -> Vec<Range> {
        let odd = self.dice.below(2) == 0;
        let unit = std::mem::replace(&mut self.unit, if odd { 1 } else { SECTOR });
        let ranges = (0..=self.dice.below(PARTS_MAX))
            .map(|_| self.range())
            .collect();
        self.unit = unit;
        ranges
    }

    fn one_range(&mut self) -> Range {
        self.ranges()[0]
    }

    fn step(&mut self) -> Step {
        match self.dice.below(28) {
            0..=2 => Step::Read(self.one_range()),
            3 => Step::ReadInto(self.one_range()),
            4 => Step::ReadExact(self.one_range()),
            5 | 6 => {
                let (offset, parts) = self.parts();
                Step::ReadVectored(offset, parts)
            }
            7 | 8 => Step::ReadMany(self.ranges()),
            9 | 10 => {
                let merge = Merge::new(self.dice.below(16 << 10), 1 << (12 + self.dice.below(9)));
                Step::ReadMerged(self.ranges(), merge)
            }
            11..=14 => Step::Write(self.range()),
            15 => Step::WriteDurable(self.range()),
            16 | 17 => {
                let (offset, parts) = self.parts();
                Step::WriteVectored(offset, parts)
            }
            18 | 19 => Step::SetLen(self.offset()),
            20 => Step::Allocate(AllocateMode::Extend, self.range()),
            21 => Step::Allocate(AllocateMode::KeepLength, self.range()),
            22 => Step::Allocate(AllocateMode::PunchHole, self.range()),
            23 => Step::Allocate(AllocateMode::Zero, self.range()),
            24 => [Step::SyncAll, Step::SyncData, Step::Reopen, Step::Length]
                [self.dice.below(4) as usize]
                .clone(),
            25 => Step::SyncRange(self.range()),
            26 => Step::CopyRange(self.range(), self.offset()),
            _ => Step::Reopen,
        }
    }
}

/// The file and its expected contents.
struct Subject<'a> {
    engine: &'a Engine,
    path: PathBuf,
    direct: bool,
    file: File,
    model: Vec<u8>,
}

fn memory(bytes: u64) -> AlignedBuf {
    AlignedBuf::with_len(bytes as usize, SECTOR as usize)
}

fn filled(from: &[u8]) -> AlignedBuf {
    let mut buf = memory(from.len() as u64);
    buf.copy_from_slice(from);
    buf
}

async fn open(engine: &Engine, path: &Path, direct: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).direct(direct);
    engine.open_with(&options, path).await
}

impl Subject<'_> {
    /// Returns the expected bytes of a range, up to the end of the file.
    fn expected(&self, range: Range) -> &[u8] {
        let end = (range.end() as usize).min(self.model.len());
        &self.model[(range.offset as usize).min(end)..end]
    }

    #[track_caller]
    fn compare(&self, range: Range, bytes: usize, got: &[u8]) {
        let expected = self.expected(range);
        assert_eq!(
            bytes,
            expected.len(),
            "bytes of {range:?} in a file of {}",
            self.model.len()
        );
        let differs = got
            .iter()
            .zip(expected)
            .position(|(got, expected)| got != expected);
        if let Some(at) = differs {
            panic!(
                "byte {} of {range:?} is {}, not {}",
                range.offset as usize + at,
                got[at],
                expected[at]
            );
        }
    }

    fn write_model(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset as usize + bytes.len();
        if self.model.len() < end {
            self.model.resize(end, 0);
        }
        self.model[offset as usize..end].copy_from_slice(bytes);
    }

    async fn take(&mut self, step: &Step, dice: &mut Dice) -> io::Result<()> {
        match step {
            Step::Read(_) | Step::ReadInto(_) | Step::ReadExact(_) => self.read(step).await?,
            Step::ReadVectored(offset, parts) => self.read_vectored(*offset, parts).await?,
            Step::ReadMany(ranges) => {
                let results = self.file.read_many_at(requests(ranges)).await;
                self.compare_all(ranges, results);
            }
            Step::ReadMerged(ranges, merge) => {
                let results = self.file.read_many_at(requests(ranges)).merge(*merge).await;
                self.compare_all(ranges, results);
            }
            Step::Write(range) => {
                let bytes = dice.bytes(range.bytes);
                self.file.write_all_at(filled(&bytes), range.offset).await?;
                self.write_model(range.offset, &bytes);
            }
            Step::WriteDurable(range) => {
                let bytes = dice.bytes(range.bytes);
                self.file
                    .write_all_durable_at(filled(&bytes), range.offset)
                    .await?;
                self.write_model(range.offset, &bytes);
            }
            Step::WriteVectored(offset, parts) => {
                let parts: Vec<Vec<u8>> = parts.iter().map(|&part| dice.bytes(part)).collect();
                let bufs = parts.iter().map(|part| filled(part)).collect();
                self.file.write_vectored_all_at(bufs, *offset).await?;
                self.write_model(*offset, &parts.concat());
            }
            Step::CopyRange(range, to) => self.copy_range(*range, *to).await?,
            Step::SyncRange(range) => {
                let mode = SyncRangeMode::StartAndWait;
                self.file
                    .sync_range(range.offset, range.bytes, mode)
                    .await?;
            }
            Step::SetLen(bytes) => {
                self.file.set_len(*bytes).await?;
                self.model.resize(*bytes as usize, 0);
            }
            Step::Allocate(mode, range) => self.allocate(*mode, *range).await?,
            Step::SyncAll => self.file.sync_all().await?,
            Step::SyncData => self.file.sync_data().await?,
            Step::Reopen => {
                let file = open(self.engine, &self.path, self.direct).await?;
                let old = std::mem::replace(&mut self.file, file);
                assert_eq!(old.close().await?, annulus::fs::Closed::Now);
            }
            Step::Length => {}
        }
        let bytes = self.file.metadata().await?.len();
        assert_eq!(bytes, self.model.len() as u64, "the file's length");
        Ok(())
    }

    async fn read(&mut self, step: &Step) -> io::Result<()> {
        match *step {
            Step::ReadInto(range) => {
                let mut into = vec![0; range.bytes as usize];
                let bytes = self.file.read_into(&mut into, range.offset).await?;
                self.compare(range, bytes, &into);
            }
            Step::ReadExact(range) => {
                let whole = range.end() <= self.model.len() as u64;
                match self
                    .file
                    .read_exact_at(memory(range.bytes), range.offset)
                    .await
                {
                    Ok(buf) => self.compare(range, buf.len(), &buf),
                    Err(error) => {
                        let eof = error.error().kind() == io::ErrorKind::UnexpectedEof;
                        assert!(eof && !whole, "{range:?} of {}: {error}", self.model.len());
                    }
                }
            }
            Step::Read(range) => {
                let (bytes, buf) = self
                    .file
                    .read_at(vec![0; range.bytes as usize], range.offset)
                    .await?;
                self.compare(range, bytes, &buf);
            }
            _ => unreachable!("no single read"),
        }
        Ok(())
    }

    async fn read_vectored(&mut self, offset: u64, parts: &[u64]) -> io::Result<()> {
        let bufs = parts.iter().map(|&part| memory(part)).collect();
        let (bytes, bufs) = self.file.read_vectored_at(bufs, offset).await?;
        let got: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        self.compare(
            Range {
                offset,
                bytes: parts.iter().sum(),
            },
            bytes,
            &got,
        );
        Ok(())
    }

    #[track_caller]
    fn compare_all(&self, ranges: &[Range], results: Vec<annulus::BufResult<usize, Vec<u8>>>) {
        assert_eq!(results.len(), ranges.len());
        for (range, result) in ranges.iter().zip(results) {
            let (bytes, buf) = result.unwrap();
            self.compare(*range, bytes, &buf);
        }
    }

    /// Copies bytes within the file, not beyond its end, which the copy itself may move.
    async fn copy_range(&mut self, range: Range, to: u64) -> io::Result<()> {
        let from = self.expected(range).to_vec();
        let bytes = from.len() as u64;
        let copy = self.file.copy_range_to(range.offset, &self.file, to, bytes);
        let overlaps = to < range.offset + bytes && to + bytes > range.offset;
        match copy.await {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => assert!(overlaps),
            copied => {
                assert_eq!(copied?, bytes, "bytes of {range:?}");
                if bytes > 0 {
                    self.write_model(to, &from);
                }
            }
        }
        Ok(())
    }

    async fn allocate(&mut self, mode: AllocateMode, range: Range) -> io::Result<()> {
        match self.file.allocate(range.offset, range.bytes, mode).await {
            Ok(()) => {}
            // Not every file system supports it.
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(()),
            Err(error) => return Err(error),
        }
        let grows = matches!(mode, AllocateMode::Extend | AllocateMode::Zero);
        if grows && self.model.len() < range.end() as usize {
            self.model.resize(range.end() as usize, 0);
        }
        if matches!(mode, AllocateMode::PunchHole | AllocateMode::Zero) {
            let end = self.model.len().min(range.end() as usize);
            let start = end.min(range.offset as usize);
            self.model[start..end].fill(0);
        }
        Ok(())
    }
}

fn requests(ranges: &[Range]) -> impl Iterator<Item = (Vec<u8>, u64)> + Send + use<'_> {
    ranges
        .iter()
        .map(|range| (vec![0; range.bytes as usize], range.offset))
}

fn number(name: &str) -> Option<u64> {
    Some(std::env::var(name).ok()?.parse().unwrap())
}

fn seed() -> u64 {
    number("SEED").unwrap_or_else(|| {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_nanos() as u64
            % 1_000_000_000
    })
}

/// The most recent steps of a run.
type Last = Mutex<VecDeque<Step>>;

/// Runs the steps of a seed. Returns the expected contents, or `None` if the file cannot be opened this way.
async fn exercise(
    engine: &Engine,
    path: &Path,
    direct: bool,
    seed: u64,
    last: &Last,
) -> Option<Vec<u8>> {
    let file = match open(engine, path, direct).await {
        Ok(file) => file,
        Err(error) if direct => {
            skip(format_args!("no direct I/O in {}: {error}", path.display()));
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let mut subject = Subject {
        engine,
        path: path.to_owned(),
        direct,
        file,
        model: Vec::new(),
    };
    let unit = if direct { SECTOR } else { 1 };
    let mut author = Author {
        dice: Dice(seed),
        unit,
    };
    for _ in 0..number("OPS").unwrap_or(OPS) {
        let step = author.step();
        {
            let mut last = last.lock().unwrap();
            last.push_back(step.clone());
            if last.len() > LAST {
                last.pop_front();
            }
        }
        subject.take(&step, &mut author.dice).await.unwrap();
    }
    let whole = Range {
        offset: 0,
        bytes: FILE_BYTES_MAX,
    };
    let (bytes, buf) = subject.file.read_at(memory(whole.bytes), 0).await.unwrap();
    subject.compare(whole, bytes, &buf);
    assert_eq!(
        subject.file.close().await.unwrap(),
        annulus::fs::Closed::Now
    );
    Some(subject.model)
}

/// Runs `body`. If it panics, prints the command that repeats it, and the last steps.
fn reported(test: &str, seed: u64, body: impl FnOnce(&Last)) {
    let last = Last::default();
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| body(&last))) {
        let last = last
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let ops = number("OPS").unwrap_or(OPS);
        println!(
            "SEED={seed} OPS={ops} cargo test -p annulus --all-features --test fsx -- --exact {test}"
        );
        for step in last.iter() {
            println!("    {step:?}");
        }
        resume_unwind(panic);
    }
}

fn agrees_with_the_model(test: &str, builder: &EngineBuilder) {
    let seed = seed();
    println!("SEED={seed}");
    let engine = match builder.clone().build() {
        Ok(engine) => engine,
        Err(error) if error.allows_fallback() => return skip(error),
        Err(error) => panic!("{error}"),
    };
    // Next to the binary: the directory for temporary files is often in memory, without a disk.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for (name, direct) in [("buffered", false), ("direct", true)] {
        let path = dir.path().join(name);
        reported(test, seed, |last| {
            if let Some(model) = pollster::block_on(exercise(&engine, &path, direct, seed, last)) {
                assert!(
                    std::fs::read(&path).unwrap() == model,
                    "std reads something else"
                );
            }
        });
    }
    engine.shutdown();
    let metrics = engine.metrics();
    assert_eq!((metrics.stale, metrics.leaked), (0, 0));
}

fn uring(setup_mode: SetupMode) -> EngineBuilder {
    Engine::builder()
        .backend(Backend::Uring)
        .setup_mode(setup_mode)
}

#[test]
fn a_ring_with_deferred_task_work_agrees_with_the_model() {
    agrees_with_the_model(
        "a_ring_with_deferred_task_work_agrees_with_the_model",
        &uring(SetupMode::Deferred),
    );
}

#[test]
fn a_ring_with_cooperative_task_work_agrees_with_the_model() {
    agrees_with_the_model(
        "a_ring_with_cooperative_task_work_agrees_with_the_model",
        &uring(SetupMode::Cooperative),
    );
}

#[test]
fn two_plain_rings_agree_with_the_model() {
    agrees_with_the_model(
        "two_plain_rings_agree_with_the_model",
        &uring(SetupMode::Plain).drivers(2),
    );
}

#[test]
fn a_tiny_ring_agrees_with_the_model() {
    let tiny = uring(SetupMode::Cooperative)
        .ring_entries(2)
        .max_in_flight(2)
        .max_in_flight_bytes(8 << 10);
    agrees_with_the_model("a_tiny_ring_agrees_with_the_model", &tiny);
}

#[test]
fn blocking_threads_agree_with_the_model() {
    let blocking = Engine::builder()
        .backend(Backend::Fallback)
        .blocking_threads(4);
    agrees_with_the_model("blocking_threads_agree_with_the_model", &blocking);
}

#[cfg(feature = "test-util")]
#[test]
fn a_simulated_kernel_agrees_with_the_model() {
    use annulus::sim::{Sim, SimConfig};
    let seed = seed();
    println!("SEED={seed}");
    reported("a_simulated_kernel_agrees_with_the_model", seed, |last| {
        let sim = Sim::new(SimConfig::new(seed));
        let path = Path::new("/data");
        let model = sim.run(async |engine| exercise(&engine, path, false, seed, last).await);
        assert!(
            sim.contents(path).unwrap() == model.unwrap(),
            "the disk holds something else"
        );
        assert_eq!(sim.open_descriptors(), 0);
    });
}
