//! The results of each method.

use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use annulus::{Backend, Engine};
use annulus_pool::{PagePool, PoolFile};
use annulus_testing::faulty_fs::{Call, Fault, FaultyFs};
use annulus_testing::skip::{root_or_skip, skip};

use crate::{OnDisk, PAGE, opened, pool};

#[tokio::test]
async fn each_method_returns_the_bytes_of_the_file() {
    let on_disk = OnDisk::new(20 * PAGE + 100);
    let (pool, file) = opened(&on_disk, 64).await;
    assert_eq!(
        (file.len(), file.page_count()),
        ((20 * PAGE + 100) as u64, 21)
    );

    assert!(file.try_page(3).is_none());
    assert_eq!(&*file.page(3).await.unwrap(), on_disk.page(3));
    assert_eq!(&*file.try_page(3).unwrap(), on_disk.page(3));
    assert_eq!(file.with(3, |bytes| bytes == on_disk.page(3)), Some(true));
    assert_eq!(file.with(4, |_| ()), None);
    // Shorter than the others.
    assert_eq!(&*file.page(20).await.unwrap(), on_disk.page(20));

    let numbers = [20, 0, 3, 7, 7, 19];
    for (page, number) in file.pages(&numbers).await.unwrap().iter().zip(numbers) {
        assert_eq!(&**page, on_disk.page(number));
    }
    let (from, to) = (5 * PAGE - 10, 20 * PAGE + 100);
    let mut bytes = vec![0; to - from];
    assert!(!file.try_read_exact_at(&mut bytes, from as u64).unwrap());
    file.read_exact_at(&mut bytes, from as u64).await.unwrap();
    assert_eq!(bytes, on_disk.bytes[from..to]);
    bytes.fill(0);
    assert!(file.try_read_exact_at(&mut bytes, from as u64).unwrap());
    assert_eq!(bytes, on_disk.bytes[from..to]);

    let stats = pool.stats();
    assert_eq!(
        (stats.resident, stats.held, stats.evicted),
        (stats.loads as usize, 0, 0)
    );
    // Each page once: 3, 20, 0, 7, 19, and those of the range.
    assert_eq!(stats.loads, 19);
}

/// Counts wakes, and wakes a thread.
struct Counted {
    wakes: AtomicUsize,
    thread: Thread,
}

impl Wake for Counted {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Ordering::SeqCst);
        self.thread.unpark();
    }
}

#[test]
fn a_task_that_reads_a_page_is_woken_once_for_each_time_that_it_is_pending() {
    let on_disk = OnDisk::new(100 * PAGE);
    for backend in [Backend::Uring, Backend::Fallback] {
        let Ok(engine) = Engine::builder().backend(backend).build() else {
            skip("no io_uring");
            continue;
        };
        let file = pollster::block_on(pool(&engine, 64).open(&on_disk.path)).unwrap();
        let counted = Arc::new(Counted {
            wakes: AtomicUsize::new(0),
            thread: std::thread::current(),
        });
        let waker = Waker::from(Arc::clone(&counted));
        let mut pending = 0;
        for number in 0..100 {
            let mut reading = pin!(file.page(number));
            let page = loop {
                match reading.as_mut().poll(&mut Context::from_waker(&waker)) {
                    Poll::Ready(page) => break page.unwrap(),
                    Poll::Pending => pending += 1,
                }
                while counted.wakes.load(Ordering::SeqCst) < pending {
                    std::thread::park();
                }
            };
            assert_eq!(&*page, on_disk.page(number));
        }
        assert_eq!(counted.wakes.load(Ordering::SeqCst), pending, "{backend:?}");
    }
}

#[tokio::test]
async fn a_failing_file_system_fails_those_who_wait_and_no_one_else() {
    if !root_or_skip("a mount") {
        return;
    }
    let bytes = crate::contents(7, 9 * PAGE + 100);
    let fails = Arc::new(AtomicBool::new(false));
    let dir = tempfile::tempdir().unwrap();
    let plan = {
        let fails = Arc::clone(&fails);
        move |call| match call {
            Call::Read { offset, .. } if offset == 4096 && fails.load(Ordering::SeqCst) => {
                Fault::Error(libc::EIO)
            }
            _ => Fault::None,
        }
    };
    let mounted = match FaultyFs::mount(dir.path(), "data", bytes.clone(), plan) {
        Ok(mounted) => mounted,
        Err(error) => return skip(format_args!("no FUSE: {error}")),
    };
    let fallback = Engine::builder().backend(Backend::Fallback).build();
    for engine in [fallback.unwrap(), Engine::new().unwrap()] {
        let backend = engine.backend();
        let pool = pool(&engine, 16);
        let file = pool.open(dir.path().join("data")).await.unwrap();
        fails.store(true, Ordering::SeqCst);
        let all: Vec<_> = (0..12)
            .map(|nth| {
                let file = file.clone();
                tokio::spawn(async move { file.page(nth % 3).await.map(|page| page.to_vec()) })
            })
            .collect();
        for (nth, task) in all.into_iter().enumerate() {
            match (nth % 3, task.await.unwrap()) {
                (1, page) => {
                    let error = page.unwrap_err().to_string();
                    assert!(error.contains("os error 5"), "{backend:?}: {error}");
                }
                (number, page) => {
                    assert_eq!(page.unwrap(), bytes[number * PAGE..][..PAGE], "{backend:?}");
                }
            }
        }
        fails.store(false, Ordering::SeqCst);
        let mut read = vec![0; bytes.len()];
        file.read_exact_at(&mut read, 0).await.unwrap();
        assert!(read == bytes, "{backend:?}");
    }
    drop(mounted);
}

#[tokio::test]
async fn bad_numbers_and_ranges_are_errors() {
    let on_disk = OnDisk::new(PAGE + 1);
    let (pool, file) = opened(&on_disk, 4).await;
    let error = file.page(2).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(
        error.to_string().contains("the file has 2 pages"),
        "{error}"
    );
    assert!(file.try_page(2).is_none() && file.try_page(u64::MAX).is_none());
    for offset in [PAGE as u64, PAGE as u64 + 1, u64::MAX - 1] {
        let error = file.read_exact_at(&mut [0; 2], offset).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{error}");
    }
    assert_eq!(
        file.pages(&[0; 5]).await.unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
    file.prefetch(0..u64::MAX);
    file.invalidate(7..7);
    let other = crate::pool(&Engine::new().unwrap(), 1);
    assert_eq!(
        other.pages(&[(&file, 0)]).await.unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
    drop(pool);

    for (memory, page_bytes) in [(1 << 20, 0), (1 << 20, 1000), (4096, 4096), (0, 4096)] {
        let engine = Engine::new().unwrap();
        let builder = PagePool::builder(&engine)
            .memory(memory)
            .page_bytes(page_bytes);
        assert_eq!(builder.build().unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn pages_are_read_without_io_uring_and_by_threads_that_block() {
    let on_disk = OnDisk::new(9 * PAGE);
    let fallback = Engine::builder()
        .backend(Backend::Fallback)
        .build()
        .unwrap();
    for engine in [fallback, Engine::new().unwrap()] {
        let pool = pool(&engine, 4);
        let file = pollster::block_on(pool.open(&on_disk.path)).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for number in (0..9).chain(0..9) {
                        assert_eq!(&*file.page_blocking(number).unwrap(), on_disk.page(number));
                    }
                });
            }
        });
    }
}

#[tokio::test]
async fn a_prefetched_page_is_there_or_on_its_way() {
    let on_disk = OnDisk::new(64 * PAGE);
    // Enough frames for the whole file, because later pages may evict the first ones before they are read.
    let (pool, file) = opened(&on_disk, 128).await;
    file.prefetch(0..1 << 20);
    // An eighth of the frames at a time; a read that is done makes space for another one.
    let loads = pool.stats().loads;
    assert!((16..=64).contains(&loads), "{loads}");
    for number in 0..8 {
        while file.try_page(number).is_none() {
            tokio::task::yield_now().await;
        }
        assert_eq!(&*file.try_page(number).unwrap(), on_disk.page(number));
    }
    assert_eq!((pool.stats().loads, pool.stats().misses), (loads, 0));
}

#[tokio::test]
async fn pages_that_are_invalidated_or_whose_file_is_closed_leave_memory_but_not_their_guards() {
    let on_disk = OnDisk::new(8 * PAGE);
    let (pool, file) = opened(&on_disk, 16).await;
    let guards = file.pages(&[0, 1, 2, 3, 4, 5, 6, 7]).await.unwrap();
    file.invalidate(0..2 * PAGE as u64);
    assert!(file.try_page(0).is_none() && file.try_page(1).is_none());
    assert_eq!((pool.stats().resident, pool.stats().held), (6, 2));
    assert_eq!(&*file.page(1).await.unwrap(), on_disk.page(1));
    drop(file);
    assert_eq!((pool.stats().resident, pool.stats().held), (0, 9 - 1));
    for (page, number) in guards.iter().zip(0..) {
        assert_eq!(&**page, on_disk.page(number));
    }
    drop(guards);
    // Frames without guards are found when frames are needed.
    let file = pool.open(&on_disk.path).await.unwrap();
    for number in (0..8).chain(0..8).chain(0..8) {
        assert_eq!(&*file.page(number).await.unwrap(), on_disk.page(number));
    }
}

#[tokio::test]
async fn an_error_goes_to_those_who_wait_and_the_next_call_reads_again() {
    let on_disk = OnDisk::new(4 * PAGE);
    let engine = Engine::new().unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let pool = PagePool::builder(&engine).check(move |path, number, bytes| {
        assert!(path.ends_with("data") && bytes.len() == PAGE);
        match (number, counted.fetch_add(1, Ordering::Relaxed)) {
            (2, 0) => Err(std::io::Error::new(
                ErrorKind::InvalidData,
                "a wrong checksum",
            )),
            _ => Ok(()),
        }
    });
    let pool = pool.build().unwrap();
    let file = pool.open(&on_disk.path).await.unwrap();
    let (one, other) = tokio::join!(file.page(2), file.page(2));
    for error in [one.unwrap_err(), other.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        let text = error.to_string();
        assert!(
            text.contains("page 2 of ") && text.ends_with("a wrong checksum"),
            "{text}"
        );
    }
    assert_eq!(
        (
            pool.stats().loads,
            pool.stats().failed,
            pool.stats().resident
        ),
        (1, 1, 0)
    );
    assert_eq!(&*file.page(2).await.unwrap(), on_disk.page(2));
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_file_that_has_become_shorter_is_an_error() {
    let on_disk = OnDisk::new(4 * PAGE + 50);
    let (_pool, file) = opened(&on_disk, 16).await;
    let kept = file.page(0).await.unwrap();
    std::fs::File::options()
        .write(true)
        .open(&on_disk.path)
        .unwrap()
        .set_len(4 * PAGE as u64 + 10)
        .unwrap();
    assert_eq!(
        file.page(4).await.unwrap_err().kind(),
        ErrorKind::UnexpectedEof
    );
    std::fs::File::options()
        .write(true)
        .open(&on_disk.path)
        .unwrap()
        .set_len(0)
        .unwrap();
    for number in 1..5 {
        let error = file.page(number).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{error}");
    }
    assert_eq!(&*kept, on_disk.page(0));
}

#[tokio::test]
async fn larger_pages_and_file_systems_in_memory() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("data");
    let bytes = crate::contents(7, 300_000);
    std::fs::write(&path, &bytes).unwrap();
    let engine = Engine::new().unwrap();
    let pool = PagePool::builder(&engine)
        .page_bytes(65_536)
        .build()
        .unwrap();
    let file = pool.open(&path).await.unwrap();
    assert_eq!((file.page_count(), pool.page_bytes()), (5, 65_536));
    let mut all = vec![0; bytes.len()];
    file.read_exact_at(&mut all, 0).await.unwrap();
    assert!(all == bytes);
}

#[test]
fn a_waker_that_panics_does_not_keep_others_from_being_woken() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker that panics");
        }
    }

    let on_disk = OnDisk::new(PAGE);
    let file = pollster::block_on(pool(&Engine::new().unwrap(), 4).open(&on_disk.path)).unwrap();
    let (panics, mut waits) = (Waker::from(Arc::new(Panics)), pin!(file.page(0)));
    let mut context = Context::from_waker(&panics);
    assert!(waits.as_mut().poll(&mut context).is_pending());
    assert_eq!(&*file.page_blocking(0).unwrap(), on_disk.page(0));
    assert!(waits.as_mut().poll(&mut context).is_ready());
}

/// Those who need a frame end the loads that no one awaits, also those whose check panics.
#[test]
fn a_check_that_panics_fails_its_page_and_no_other_one() {
    let on_disk = OnDisk::new(3 * PAGE);
    let checked = Arc::new(AtomicUsize::new(0));
    let calls = Arc::clone(&checked);
    let pool = PagePool::builder(&Engine::new().unwrap())
        .memory(PAGE + 96)
        .check(move |_, number, _| {
            if number == 0 {
                calls.fetch_add(1, Ordering::Relaxed);
                panic!("a check that panics");
            }
            Ok(())
        });
    let pool = pool.build().unwrap();
    let file = pollster::block_on(pool.open(&on_disk.path)).unwrap();
    let error = file.page_blocking(0).unwrap_err().to_string();
    assert!(error.ends_with("the check panicked"), "{error}");
    while checked.load(Ordering::Relaxed) < 2 {
        file.prefetch(0..1);
        assert_eq!(&*file.page_blocking(1).unwrap(), on_disk.page(1));
        file.invalidate(0..u64::MAX);
    }
}

#[test]
fn calls_after_an_invalidation_read_again_beside_reads_in_flight() {
    let on_disk = OnDisk::new(2 * PAGE);
    // In place: a read may be in flight, which must not find a shorter file.
    let written = std::fs::File::options()
        .write(true)
        .open(&on_disk.path)
        .unwrap();
    let change = |byte| written.write_all_at(&vec![byte; 2 * PAGE], 0).unwrap();
    let file = pollster::block_on(pool(&Engine::new().unwrap(), 8).open(&on_disk.path)).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    for byte in 1..50 {
        change(byte);
        file.prefetch(0..1);
        let mut waits = pin!(file.page(1));
        let polled = waits.as_mut().poll(&mut context);
        // Usually the reads are done before the change, and no one has looked.
        std::thread::sleep(std::time::Duration::from_millis(1));
        change(byte + 1);
        file.invalidate(0..2 * PAGE as u64);
        for number in 0..2 {
            assert_eq!(file.page_blocking(number).unwrap()[0], byte + 1, "{number}");
        }
        if polled.is_pending() {
            let page = pollster::block_on(waits).unwrap();
            assert!(page[0] == byte || page[0] == byte + 1);
        }
        assert_eq!(file.page_blocking(1).unwrap()[0], byte + 1);
        file.invalidate(0..2 * PAGE as u64);
    }
}

#[test]
fn a_waker_is_dropped_while_no_lock_is_held() {
    struct Looks(PoolFile);
    impl Wake for Looks {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for Looks {
        fn drop(&mut self) {
            let _ = self.0.try_page(0);
        }
    }

    let on_disk = OnDisk::new(PAGE);
    let file = pollster::block_on(pool(&Engine::new().unwrap(), 4).open(&on_disk.path)).unwrap();
    let waker = Waker::from(Arc::new(Looks(file.clone())));
    let mut waits = Box::pin(file.page(0));
    assert!(
        waits
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    drop(waker);
    // The page is being read, and this has the last waker.
    drop(waits);
    assert_eq!(&*file.page_blocking(0).unwrap(), on_disk.page(0));
}

#[cfg(feature = "bytes")]
#[tokio::test]
async fn a_range_without_a_copy_has_the_bytes_and_lets_go_of_pages() {
    use bytes::Buf;

    let on_disk = OnDisk::new(9 * PAGE + 5);
    let (pool, file) = opened(&on_disk, 16).await;
    let whole = 0..on_disk.bytes.len();
    for range in [
        whole,
        10..11,
        PAGE..PAGE,
        PAGE - 1..PAGE,
        PAGE..2 * PAGE,
        4000..9 * PAGE + 1,
    ] {
        let bytes = || file.bytes(range.start as u64..range.end as u64);
        let mut slices = [std::io::IoSlice::new(&[]); 16];
        let chain = bytes().await.unwrap();
        let filled = chain.chunks_vectored(&mut slices);
        let joined: Vec<u8> = slices[..filled]
            .iter()
            .flat_map(|slice| slice.to_vec())
            .collect();
        assert!(joined == on_disk.bytes[range.clone()]);
        let mut copied = vec![0; range.len()];
        bytes().await.unwrap().copy_to_slice(&mut copied);
        assert!(copied == on_disk.bytes[range.clone()]);
    }
    let end = on_disk.bytes.len() as u64;
    assert_eq!(
        file.bytes(0..end + 1).await.unwrap_err().kind(),
        ErrorKind::UnexpectedEof
    );
    let mut chain = file.bytes(0..end).await.unwrap();
    file.invalidate(0..end);
    assert_eq!(pool.stats().held, 10);
    chain.advance(3 * PAGE);
    file.invalidate(0..end);
    assert_eq!(pool.stats().held, 10 - 3);
}
