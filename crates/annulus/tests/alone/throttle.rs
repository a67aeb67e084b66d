//! The end of an engine with reads in flight on a slow disk: after it, either no memory changes any more, or the memory
//! that may still change is never freed. The disk is slowed down for a single child process, by a control group.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use annulus::{Backend, Engine, EngineBuilder, IoBuf, IoBufMut, OpenOptions};
use annulus_testing::child_process::in_child;
use annulus_testing::skip::{root_or_skip, skip};

const READS_PER_SECOND: u32 = 12;
const READS: usize = 64;
const READ_BYTES: usize = 4096;
/// The time for which the memory is observed.
const WATCH: Duration = Duration::from_secs(3);
const DEADLINE: Duration = Duration::from_secs(60);
/// If this process did not run for seconds, every read may complete before the end begins; then the test tries again.
const ATTEMPTS: usize = 10;
/// The value of bytes that no read has written.
const BLANK: u8 = 0xee;
const FILE: u8 = 0x5a;

/// A control group for this process. The process leaves it at the end, and the group is removed.
struct Slow {
    group: PathBuf,
    parent: PathBuf,
}

impl Slow {
    /// Slows reads of the disk under `path` for this process. Returns `None` after a skip.
    fn disk_under(path: &Path) -> Option<Slow> {
        match Slow::try_disk_under(path) {
            Ok(slow) => Some(slow),
            Err(reason) => {
                skip(format_args!("no disk can be made slow here: {reason}"));
                None
            }
        }
    }

    fn try_disk_under(path: &Path) -> Result<Slow, String> {
        let disk = disk_under(path)?;
        let mounts = fs::read_to_string("/proc/mounts").map_err(|error| error.to_string())?;
        let mounted = |kind: &str, option: &str| {
            let mut mounts = mounts
                .lines()
                .map(|line| line.split(' ').collect::<Vec<_>>());
            let has = |mount: &Vec<&str>| {
                mount[2] == kind && mount[3].split(',').any(|one| one == option)
            };
            mounts.find(has).map(|mount| PathBuf::from(mount[1]))
        };
        let (parent, file, limit) = match (mounted("cgroup", "blkio"), mounted("cgroup2", "rw")) {
            (Some(parent), _) => (
                parent,
                "blkio.throttle.read_iops_device",
                format!("{disk} {READS_PER_SECOND}"),
            ),
            (None, Some(parent)) => (parent, "io.max", format!("{disk} riops={READS_PER_SECOND}")),
            (None, None) => return Err("no control groups are mounted".to_owned()),
        };
        let group = parent.join(format!("annulus-{}", std::process::id()));
        let failed = |what: &str, error: io::Error| format!("{what}: {error}");
        fs::create_dir(&group).map_err(|error| failed("a control group", error))?;
        let slow = Slow { group, parent };
        if file == "io.max" {
            // If the controller is not delegated yet. The next write shows whether this worked.
            let _ = fs::write(slow.parent.join("cgroup.subtree_control"), "+io");
        }
        fs::write(slow.group.join(file), limit).map_err(|error| failed(file, error))?;
        let me = std::process::id().to_string();
        fs::write(slow.group.join("cgroup.procs"), me)
            .map_err(|error| failed("joining it", error))?;
        Ok(slow)
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        let _ = fs::write(
            self.parent.join("cgroup.procs"),
            std::process::id().to_string(),
        );
        // The group is busy until the last thread has left.
        for _ in 0..6000 {
            match fs::remove_dir(&self.group) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    thread::sleep(Duration::from_millis(10))
                }
                _ => return,
            }
        }
    }
}

/// Returns the major and minor number of the whole disk that holds a file.
fn disk_under(path: &Path) -> Result<String, String> {
    let device = fs::metadata(path).map_err(|error| error.to_string())?.dev();
    let number = format!("{}:{}", libc::major(device), libc::minor(device));
    let known = PathBuf::from(format!("/sys/dev/block/{number}"));
    if !known.exists() {
        return Err(format!(
            "the file system beside the test binary is on no disk of its own ({number})"
        ));
    }
    let of = if known.join("partition").exists() {
        "../dev"
    } else {
        "dev"
    };
    let known = fs::canonicalize(known).map_err(|error| error.to_string())?;
    let number = fs::read_to_string(known.join(of)).map_err(|error| error.to_string())?;
    Ok(number.trim().to_owned())
}

/// Memory that is never freed, so that a late write is noticed and does no harm.
#[derive(Clone, Copy)]
struct Arena(*mut u8);

// SAFETY: the library writes to the part of a buffer while it is lent; other code reads each byte volatile.
unsafe impl Send for Arena {}

impl Arena {
    fn new() -> Arena {
        let layout = Layout::from_size_align(READS * READ_BYTES, 4096).unwrap();
        // SAFETY: the size is not zero.
        let base = unsafe { alloc(layout) };
        assert!(!base.is_null());
        // SAFETY: just allocated, of that size.
        unsafe { base.write_bytes(BLANK, READS * READ_BYTES) };
        Arena(base)
    }

    fn look(self) -> Vec<u8> {
        (0..READS).flat_map(|number| self.look_at(number)).collect()
    }

    /// Returns the contents of one buffer.
    fn look_at(self, number: usize) -> Vec<u8> {
        let part = number * READ_BYTES..(number + 1) * READ_BYTES;
        // SAFETY: inside the block, which is never freed and was initialised completely.
        part.map(|at| unsafe { self.0.add(at).read_volatile() })
            .collect()
    }
}

/// The history of one buffer.
#[derive(Default)]
struct Fate {
    drops: AtomicUsize,
    /// The sum of the buffer's bytes when it was dropped.
    sum: AtomicU64,
}

/// A buffer in the arena.
struct Counted {
    arena: Arena,
    number: usize,
    fates: Arc<Vec<Fate>>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let fate = &self.fates[self.number];
        fate.sum
            .store(sum(&self.arena.look_at(self.number)), SeqCst);
        fate.drops.fetch_add(1, SeqCst);
    }
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().map(|&byte| u64::from(byte)).sum()
}

/// Returns the number of drops of each buffer.
fn dropped(fates: &[Fate]) -> Vec<usize> {
    fates.iter().map(|fate| fate.drops.load(SeqCst)).collect()
}

/// Checks that no buffer was dropped twice, or written after its drop.
#[track_caller]
fn assert_dropped_for_good(arena: Arena, fates: &[Fate]) {
    for (number, fate) in fates.iter().enumerate() {
        match fate.drops.load(SeqCst) {
            0 => {}
            1 => {
                let now = sum(&arena.look_at(number));
                let then = fate.sum.load(SeqCst);
                assert_eq!(now, then, "buffer {number} changed after its drop");
            }
            drops => panic!("buffer {number} was dropped {drops} times"),
        }
    }
}

// SAFETY: a part of the arena, which is never freed; no other buffer uses the same part.
unsafe impl IoBuf for Counted {
    fn stable_ptr(&self) -> *const u8 {
        // SAFETY: inside the block.
        unsafe { self.arena.0.add(self.number * READ_BYTES) }
    }

    fn init_bytes(&self) -> usize {
        READ_BYTES
    }
}

// SAFETY: a part of the arena, which is never freed; no other buffer uses the same part.
unsafe impl IoBufMut for Counted {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.stable_ptr().cast_mut()
    }

    fn lent_bytes(&self) -> usize {
        READ_BYTES
    }

    unsafe fn set_init(&mut self, _: usize) {}
}

/// Reads in flight on the slow disk, whose futures are dropped.
struct InFlight {
    engine: Engine,
    arena: Arena,
    fates: Arc<Vec<Fate>>,
    _slow: Slow,
    _dir: tempfile::TempDir,
}

impl InFlight {
    /// Starts the reads. Returns `None` after a skip.
    fn new(builder: EngineBuilder) -> Option<InFlight> {
        let engine = match builder.build() {
            Ok(engine) => engine,
            Err(error) => return skip_none(error),
        };
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = dir.path().join("data");
        fs::write(&path, vec![FILE; READS * READ_BYTES]).unwrap();
        fs::File::open(&path).unwrap().sync_all().unwrap();
        let mut options = OpenOptions::new();
        let file =
            match pollster::block_on(engine.open_with(options.read(true).direct(true), &path)) {
                Ok(file) => file,
                Err(error) => {
                    return skip_none(format_args!(
                        "no direct I/O beside the test binary: {error}"
                    ));
                }
            };
        let slow = Slow::disk_under(&path)?;
        let arena = Arena::new();
        let fates: Arc<Vec<Fate>> = Arc::new((0..READS).map(|_| Fate::default()).collect());
        let before = engine.metrics();
        let buffer = |number| Counted {
            arena,
            number,
            fates: Arc::clone(&fates),
        };
        let mut reads: Vec<_> = (0..READS)
            .map(|number| file.read_at(buffer(number), (number * READ_BYTES) as u64))
            .collect();
        for read in &mut reads {
            let polled = Future::poll(Pin::new(read), &mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending());
        }
        let until = Instant::now() + DEADLINE;
        while engine.metrics().submitted - before.submitted < READS as u64 {
            assert!(
                Instant::now() < until,
                "not submitted within {DEADLINE:?}: {:?}",
                engine.metrics()
            );
            thread::sleep(Duration::from_millis(1));
        }
        drop(reads);
        drop(file);
        Some(InFlight {
            engine,
            arena,
            fates,
            _slow: slow,
            _dir: dir,
        })
    }
}

fn skip_none<T>(reason: impl std::fmt::Display) -> Option<T> {
    skip(reason);
    None
}

/// Checks that each read has happened completely, or not at all.
#[track_caller]
fn assert_whole(memory: &[u8]) {
    for (number, part) in memory.chunks(READ_BYTES).enumerate() {
        let whole = [BLANK, FILE]
            .iter()
            .any(|byte| part.iter().all(|at| at == byte));
        assert!(whole, "read {number} is torn");
    }
}

/// Starts reads and ends their engine with `end`, until reads were in flight at the end.
fn with_reads_in_flight(builder: &EngineBuilder, end: impl Fn(InFlight) -> bool) {
    if !root_or_skip("making a disk slow") {
        return;
    }
    for attempt in 1..=ATTEMPTS {
        let Some(in_flight) = InFlight::new(builder.clone()) else {
            return;
        };
        if end(in_flight) {
            return;
        }
        println!("attempt {attempt}: every read completed before the end");
    }
    panic!("the disk is not slow: nothing was in flight in {ATTEMPTS} attempts");
}

/// Drops an engine with a long drain timeout. Returns whether reads were in flight.
fn end_waits_for_the_disk(in_flight: InFlight) -> bool {
    let InFlight {
        engine,
        arena,
        fates,
        _slow: slow,
        ..
    } = in_flight;
    let (before, start) = (arena.look(), Instant::now());
    drop(engine);
    let after = arena.look();
    println!("the end took {:?}", start.elapsed());
    assert_eq!(dropped(&fates), [1; READS]);
    assert_whole(&after);
    thread::sleep(WATCH);
    assert_dropped_for_good(arena, &fates);
    assert!(
        arena.look() == after,
        "the kernel wrote to memory after the end of its engine"
    );
    drop(slow);
    before != after
}

/// Ends an engine with a short drain timeout. A ring never gives the buffers back; a blocking thread does so when its
/// read has ended. Returns whether reads were in flight.
fn end_leaves_what_the_disk_keeps(in_flight: InFlight, is_ring: bool) -> bool {
    let InFlight {
        engine,
        arena,
        fates,
        _slow: slow,
        ..
    } = in_flight;
    let start = Instant::now();
    engine.shutdown();
    let leaked = engine.metrics().leaked as usize;
    let at_the_end = dropped(&fates);
    println!("{leaked} leaked after {:?}", start.elapsed());
    if is_ring {
        assert_eq!(at_the_end.iter().sum::<usize>(), READS - leaked);
    }
    drop(engine);
    let before = arena.look();
    thread::sleep(WATCH);
    let after = arena.look();
    assert_dropped_for_good(arena, &fates);
    if is_ring {
        assert_eq!(dropped(&fates), at_the_end);
    }
    drop(slow);
    leaked > 0 && before != after
}

/// Returns a builder with a drain timeout that no disk needs.
fn patient(backend: Backend) -> EngineBuilder {
    Engine::builder()
        .backend(backend)
        .drain_timeout(10 * DEADLINE)
}

/// Returns a builder with a drain timeout that is too short for the reads.
fn impatient(backend: Backend) -> EngineBuilder {
    Engine::builder()
        .backend(backend)
        .drain_timeout(Duration::from_millis(100))
}

#[test]
fn no_memory_changes_after_the_end_of_a_ring_with_reads_in_flight() {
    in_child(
        "throttle::no_memory_changes_after_the_end_of_a_ring_with_reads_in_flight",
        || {
            let patient = patient(Backend::Uring);
            with_reads_in_flight(&patient, end_waits_for_the_disk);
        },
    );
}

#[test]
fn no_memory_changes_after_the_end_of_blocking_threads_with_reads_in_flight() {
    in_child(
        "throttle::no_memory_changes_after_the_end_of_blocking_threads_with_reads_in_flight",
        || {
            let patient = patient(Backend::Fallback);
            with_reads_in_flight(&patient, end_waits_for_the_disk);
        },
    );
}

#[test]
fn a_ring_that_drains_too_long_leaks_what_is_in_flight_and_frees_nothing() {
    in_child(
        "throttle::a_ring_that_drains_too_long_leaks_what_is_in_flight_and_frees_nothing",
        || {
            with_reads_in_flight(&impatient(Backend::Uring), |in_flight| {
                end_leaves_what_the_disk_keeps(in_flight, true)
            });
        },
    );
}

#[test]
fn blocking_threads_that_drain_too_long_keep_their_buffers_until_their_reads_end() {
    in_child(
        "throttle::blocking_threads_that_drain_too_long_keep_their_buffers_until_their_reads_end",
        || {
            with_reads_in_flight(&impatient(Backend::Fallback), |in_flight| {
                end_leaves_what_the_disk_keeps(in_flight, false)
            });
        },
    );
}
