//! No heap allocation per operation in the steady state, because buffers and slots are reused.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::iter;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use annulus::buf::{AlignedBuf, Arena, BufferLayout};
use annulus::{Backend, Engine, File, IoBuf, IoBufMut, OpenOptions};
use annulus_testing::child_process::in_child;
use annulus_testing::skip::skip;

/// Counts the allocations of all threads.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system allocator with the caller's arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, SeqCst);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, SeqCst);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, base: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, SeqCst);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.realloc(base, layout, bytes) }
    }

    unsafe fn dealloc(&self, base: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.dealloc(base, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const PAGE: usize = 4096;
const PAGES: u64 = 64;
/// The number of operations per round. The first rounds warm up, and a spare thread may be started in a later one. A
/// round without any allocation proves that operations need none.
const OPERATIONS: u64 = 1000;
const ROUNDS: usize = 10;
/// The number of reads of the stream in flight at a time.
const DEPTH: usize = 32;

/// Runs rounds of operations until one of them allocates nothing.
async fn assert_frugal(what: &str, engine: &Engine, mut round: impl AsyncFnMut()) {
    let mut counts = [0; ROUNDS];
    for count in &mut counts {
        let before = ALLOCATIONS.load(SeqCst);
        round().await;
        *count = ALLOCATIONS.load(SeqCst) - before;
        if *count == 0 {
            return;
        }
    }
    panic!(
        "{what} on {}: allocations in each {OPERATIONS} operations: {counts:?}",
        engine.backend()
    );
}

fn offset(operation: u64) -> u64 {
    operation * 7 % PAGES * PAGE as u64
}

async fn reads<B: IoBufMut>(file: &File, kept: &mut Option<B>) {
    for operation in 0..OPERATIONS {
        let buf = kept.take().unwrap();
        let (bytes, buf) = file.read_at(buf, offset(operation)).await.unwrap();
        assert_eq!(bytes, PAGE);
        *kept = Some(buf);
    }
}

async fn writes<B: IoBufMut>(file: &File, kept: &mut Option<B>) {
    for operation in 0..OPERATIONS {
        let buf = kept.take().unwrap();
        let (bytes, buf) = file.write_at(buf, offset(operation)).await.unwrap();
        assert_eq!(bytes, PAGE);
        *kept = Some(buf);
    }
}

/// A stream that is kept full: the buffer of every result is pushed again.
async fn stream(engine: &Engine, file: &File) {
    let mut many = file.read_many_at(iter::empty());
    for operation in 0..DEPTH as u64 {
        many.push(AlignedBuf::with_len(PAGE, PAGE), offset(operation));
    }
    assert_frugal("read_many_at with push", engine, async || {
        for operation in 0..OPERATIONS {
            let (bytes, buf) = many.next().await.unwrap().result.unwrap();
            assert_eq!(bytes, PAGE);
            many.push(buf, offset(operation));
        }
    })
    .await;
}

/// Takes and gives back a buffer for each read, alternately the whole buffer and a part of it.
async fn leases(file: &File, arena: &Arena) {
    for operation in 0..OPERATIONS {
        let buf = arena.take().await;
        let (read, len) = if operation % 2 == 0 {
            let result = file.read_at(buf, offset(operation)).await.unwrap();
            (result.0, result.1.len())
        } else {
            let part = buf.subslice(512..PAGE);
            let result = file.read_at(part, offset(operation)).await.unwrap();
            (result.0, result.1.len())
        };
        assert_eq!(read, len);
    }
}

async fn open(engine: &Engine, path: &Path, direct: bool) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    engine
        .open_with(options.read(true).write(true).direct(direct), path)
        .await
}

async fn every_operation(engine: &Engine, path: &Path) {
    let file = open(engine, path, false).await.unwrap();
    let mut vec = Some(vec![7; PAGE]);
    let mut aligned = Some(AlignedBuf::with_len(PAGE, PAGE));
    let before = engine.metrics();
    assert_frugal("a cached read_at", engine, async || {
        reads(&file, &mut vec).await
    })
    .await;
    assert_frugal("a buffered write_at", engine, async || {
        writes(&file, &mut vec).await
    })
    .await;
    stream(engine, &file).await;
    let arena = engine.register_buffers(BufferLayout::new(2, PAGE));
    let arena = arena.unwrap();
    let after = engine.metrics();
    assert!(
        after.fast_path - before.fast_path >= OPERATIONS,
        "the page cache answered"
    );
    match open(engine, path, true).await {
        Err(error) => skip(format_args!(
            "no direct I/O beside the test binary: {error}"
        )),
        Ok(direct) => {
            assert_frugal("a direct read_at", engine, async || {
                reads(&direct, &mut aligned).await
            })
            .await;
            assert_frugal("a direct write_at", engine, async || {
                writes(&direct, &mut aligned).await
            })
            .await;
            stream(engine, &direct).await;
            assert_frugal("a direct read_at into an arena", engine, async || {
                leases(&direct, &arena).await
            })
            .await;
            let driven = engine.metrics().submitted - after.submitted;
            assert!(driven >= 3 * OPERATIONS, "a driver did {driven}");
        }
    }
}

fn allocates_nothing(backend: Backend) {
    let engine = match Engine::builder().backend(backend).build() {
        Ok(engine) => engine,
        Err(error) => return skip(error),
    };
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("data");
    std::fs::write(&path, vec![1; PAGES as usize * PAGE]).unwrap();
    assert!(ALLOCATIONS.load(SeqCst) > 0, "allocations are counted");
    pollster::block_on(every_operation(&engine, &path));
}

#[test]
fn a_ring_in_steady_state_allocates_nothing() {
    in_child("alloc::a_ring_in_steady_state_allocates_nothing", || {
        allocates_nothing(Backend::Uring)
    });
}

#[test]
fn blocking_threads_in_steady_state_allocate_nothing() {
    in_child(
        "alloc::blocking_threads_in_steady_state_allocate_nothing",
        || allocates_nothing(Backend::Fallback),
    );
}
