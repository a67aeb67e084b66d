//! Arenas: buffers that the rings have registered, on every backend. Backends without rings use them as ordinary
//! memory.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use annulus::buf::{Arena, BufferLayout, HugePages};
use annulus::{Engine, IoBuf, OpenOptions, SetupError};
use annulus_testing::memory_map::{is_mapped, until_unmapped};
use annulus_testing::skip;

use crate::fixtures::{Fixture, bytes, for_each_backend, for_each_backend_with, uncache};
use crate::wait::eventually_on;

const PAGE: usize = 4096;

fn arena(engine: &Engine, count: usize, bytes: usize) -> Arena {
    let layout = BufferLayout::new(count, bytes);
    engine.register_buffers(layout).unwrap()
}

/// Returns whether the rings have registered all of the arena; prints a skip if the kernel, or the user's limit of
/// locked memory, does not allow it.
fn is_registered(fixture: &Fixture, arena: &Arena) -> bool {
    let registered = arena.registered();
    if let Some(
        SetupError::TooOld { .. }
        | SetupError::Memlock {
            have_bytes: Some(_),
            ..
        },
    ) = registered.reason.as_deref()
    {
        skip::skip(arena);
        return false;
    }
    let rings = fixture.engine.backend().to_string().starts_with("io_uring");
    assert_eq!(registered.is_whole(), rings, "{arena}");
    let ending = if rings {
        ", registered"
    } else {
        "registered: "
    };
    assert!(arena.to_string().contains(ending), "{arena}");
    rings
}

#[test]
fn only_transfers_of_an_arenas_buffers_use_the_registration() {
    for_each_backend(async |fixture| {
        let contents = bytes(1, 16 * PAGE);
        let file = fixture.file("f", &contents).await;
        uncache(&file).await;
        let arena = arena(&fixture.engine, 4, 4 * PAGE);
        let registered = is_registered(fixture, &arena);
        let fixed = |n: u64| if registered { n } else { 0 };
        let metrics = || fixture.engine.metrics().fixed;

        let mut buf = arena.take().await;
        assert_eq!((buf.len(), buf.as_ptr().addr() % PAGE), (4 * PAGE, 0));
        buf.copy_from_slice(&bytes(2, 4 * PAGE));
        let buf = file.write_all_at(buf, 0).await.unwrap();
        assert_eq!(metrics(), fixed(1));
        let durable = file.write_all_durable_at(buf, 4 * PAGE as u64).await;
        // On a real file it is a system call on a blocking thread, which does not use the registration.
        let by_ring = u64::from(!fixture.is_real());
        assert_eq!(metrics(), fixed(1 + by_ring));
        // A part is recognised as well; the rest of the buffer is unchanged.
        let slice = durable.unwrap().subslice(100..612);
        let slice = file.write_all_at(slice, 50).await.unwrap();
        assert_eq!(metrics(), fixed(2 + by_ring));
        let mut expected = contents.clone();
        expected[..4 * PAGE].copy_from_slice(&bytes(2, 4 * PAGE));
        expected[4 * PAGE..8 * PAGE].copy_from_slice(&bytes(2, 4 * PAGE));
        expected[50..562].copy_from_slice(&bytes(2, 4 * PAGE)[100..612]);
        assert_eq!(fixture.contents("f").unwrap(), expected);

        uncache(&file).await;
        let mut buf = slice.into_inner();
        buf.fill(0);
        let before = fixture.engine.metrics();
        let buf = file.read_exact_at(buf, 8 * PAGE as u64).await.unwrap();
        assert_eq!(buf[..], expected[8 * PAGE..12 * PAGE]);
        let after = fixture.engine.metrics();
        let by_driver = u64::from(after.fast_path == before.fast_path);
        assert_eq!(after.fixed - before.fixed, fixed(by_driver));

        let before = metrics();
        file.write_all_at(vec![3; 2 * PAGE], 0).await.unwrap();
        file.sync_all().await.unwrap();
        assert_eq!(metrics(), before);
        assert_eq!(fixture.contents("f").unwrap()[..2 * PAGE], [3; 2 * PAGE]);
    });
}

#[test]
fn buffers_that_are_kept_lie_in_their_order_and_stay_registered() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", &bytes(4, 8 * PAGE)).await;
        let arena = arena(&fixture.engine, 8, PAGE + 1);
        let registered = is_registered(fixture, &arena);
        let mut kept: Vec<_> = (0..8).map(|_| arena.try_take().unwrap()).collect();
        kept.sort_by_key(|buf| buf.index());
        for pass in 0..3 {
            uncache(&file).await;
            let before = fixture.engine.metrics();
            for at in 0..8 {
                let buf = kept.remove(0);
                kept.push(
                    file.read_exact_at(buf, at * (PAGE as u64 - 1))
                        .await
                        .unwrap(),
                );
            }
            let after = fixture.engine.metrics();
            let by_driver = 8 - (after.fast_path - before.fast_path);
            let fixed = if registered { by_driver } else { 0 };
            assert_eq!(after.fixed - before.fixed, fixed, "pass {pass}");
        }
        let first = kept[0].as_ptr().addr();
        for (number, buf) in kept.iter().enumerate() {
            let distance = buf.as_ptr().addr() - first;
            assert_eq!((buf.index(), distance), (number, number * 2 * PAGE));
        }
    });
}

#[test]
fn direct_reads_into_an_arena_return_the_contents_of_the_file() {
    for_each_backend(async |fixture| {
        let contents = bytes(3, 64 * PAGE);
        let file = fixture.file("f", &contents).await;
        file.sync_all().await.unwrap();
        let arena = arena(&fixture.engine, 8, 2 * PAGE);
        let mut options = OpenOptions::new();
        options.read(true).direct(true);
        let path = fixture.path("f");
        let Ok(file) = fixture.engine.open_with(&options, path).await else {
            skip::skip("the temporary directory's file system has no direct I/O");
            return;
        };
        for round in 0..4 {
            let reads =
                (0..8).map(|n| (arena.try_take().unwrap(), (round * 8 + n) * 2 * PAGE as u64));
            let reads: Vec<_> = reads.collect();
            for (n, result) in file.read_many_at(reads).await.into_iter().enumerate() {
                let (count, buf) = result.unwrap();
                let at = (round as usize * 8 + n) * 2 * PAGE;
                assert_eq!((count, &buf[..]), (2 * PAGE, &contents[at..at + 2 * PAGE]));
            }
            assert_eq!(arena.free(), 8);
        }
        let fixed = fixture.engine.metrics().fixed;
        assert_eq!(fixed > 0, is_registered(fixture, &arena));
    });
}

#[test]
fn several_arenas_are_created_and_dropped_while_two_drivers_run() {
    for_each_backend_with(
        |builder| builder.drivers(2),
        async |fixture| {
            let contents = bytes(4, 32 * PAGE);
            let file = fixture.file("f", &contents).await;
            let mut fixed = 0;
            for round in 0..20 {
                let arenas: Vec<_> = (1..4)
                    .map(|n| arena(&fixture.engine, 4, n * PAGE))
                    .collect();
                for (n, arena) in arenas.iter().enumerate() {
                    let registered = is_registered(fixture, arena);
                    if registered {
                        // A ring of this thread, if it has one, is counted as well.
                        assert!(arena.registered().rings >= 2, "{arena}");
                    }
                    let mut buf = arena.take().await;
                    let from = (round + n) * PAGE;
                    let part = &contents[from..from + buf.len()];
                    buf.copy_from_slice(part);
                    let buf = file.write_all_at(buf, from as u64).await.unwrap();
                    fixed += u64::from(registered);
                    assert_eq!(buf[..], *part);
                }
            }
            assert_eq!(fixture.engine.metrics().fixed, fixed);
            assert_eq!(fixture.contents("f").unwrap(), contents);
            // Other memory at the address of a dropped arena is not taken for the arena.
            for n in 0..20 {
                let buf = annulus::buf::AlignedBuf::with_len(4 << 20, PAGE);
                file.write_all_at(buf, n * (4 << 20)).await.unwrap();
            }
            assert_eq!(fixture.engine.metrics().fixed, fixed);
        },
    );
}

/// Returns the address and the size of an arena's memory.
fn memory(arena: &Arena) -> (usize, usize) {
    let first = arena.try_take().unwrap();
    let layout = arena.layout();
    (first.as_ptr().addr(), layout.count * layout.bytes)
}

/// Large enough that no other mapping of the test replaces it completely.
const LARGE: usize = 16 << 20;

#[test]
fn idle_rings_give_back_the_memory_of_a_dropped_arena() {
    for_each_backend_with(
        |builder| builder.drivers(2),
        async |fixture| {
            for used in [false, true] {
                let arena = arena(&fixture.engine, 16, LARGE / 16);
                is_registered(fixture, &arena);
                let (from, bytes) = memory(&arena);
                if used {
                    let file = fixture.file("f", &contents(8)).await;
                    uncache(&file).await;
                    // On all drivers.
                    for _ in 0..64 {
                        file.read_at(arena.take().await, 0).await.unwrap();
                    }
                }
                assert!(is_mapped(from, bytes));
                let last = arena.try_take().unwrap();
                drop(arena);
                assert!(is_mapped(from, bytes), "a lease keeps it");
                drop(last);
                if fixture.is_real() {
                    // This thread waits outside of all rings, and submits nothing to them.
                    until_unmapped(from, bytes);
                } else {
                    let what = "the memory is given back while time passes";
                    eventually_on(fixture, what, || !is_mapped(from, bytes)).await;
                }
            }
        },
    );
}

fn contents(pages: usize) -> Vec<u8> {
    bytes(8, pages * PAGE)
}

#[test]
fn a_lease_of_a_dropped_read_is_given_back_even_after_its_arena_is_gone() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", &bytes(5, 64 * PAGE)).await;
        let arena = arena(&fixture.engine, 16, 4 * PAGE);
        for _ in 0..20 {
            uncache(&file).await;
            let mut reads = Vec::new();
            for n in 0..16 {
                let mut read =
                    Box::pin(file.read_at(arena.try_take().unwrap(), n * 4 * PAGE as u64));
                let _ = read.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                reads.push(read);
            }
            drop(reads);
            let last = Mutex::new(Vec::new());
            eventually_on(fixture, "all leases are given back", || {
                let mut last = last.lock().unwrap();
                last.extend(arena.try_take());
                last.len() == 16
            })
            .await;
        }
        uncache(&file).await;
        let reads: Vec<_> = (0..16)
            .map(|n| (arena.try_take().unwrap(), n * 4 * PAGE as u64))
            .collect();
        let mut reads = file.read_many_at(reads);
        drop(arena);
        let first = reads.next().await.unwrap().result.unwrap();
        assert_eq!(first.0, 4 * PAGE);
    });
}

#[cfg(feature = "test-util")]
#[test]
fn a_lease_in_use_by_the_kernel_is_given_back_at_the_final_completion() {
    use annulus::sim::{Sim, SimConfig};
    use std::time::Duration;

    let late = Duration::from_secs(20);
    let sim = Sim::new(SimConfig::new(1).late(1000, late));
    sim.put("/f", bytes(3, 10_000)).unwrap();
    sim.run(async |engine| {
        let file = engine.open("/f").await.unwrap();
        let arena = arena(&engine, 1, 100);
        assert!(
            arena
                .to_string()
                .ends_with("not registered: there is no ring")
        );
        let timed_out = file.read_at(arena.take().await, 0).timeout(late / 1000);
        assert!(timed_out.await.unwrap_err().into_buf().is_none());
        assert_eq!(arena.free(), 0, "the kernel still has it");
        engine.sleep(3 * late).await.unwrap();
        let mut dropped = Box::pin(file.read_at(arena.try_take().unwrap(), 0));
        let mut context = Context::from_waker(Waker::noop());
        assert!(dropped.as_mut().poll(&mut context).is_pending());
        engine.sleep(late / 1000).await.unwrap();
        drop(dropped);
        engine.sleep(late / 1000).await.unwrap();
        assert_eq!(arena.free(), 0, "the kernel still has it");
        engine.sleep(3 * late).await.unwrap();
        assert_eq!(arena.free(), 1);
    });
}

/// Counts its wake-ups.
#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn tasks_that_wait_for_a_buffer_are_served_in_order_and_may_give_up() {
    for_each_backend(async |fixture| {
        let arena = arena(&fixture.engine, 1, 100);
        let bell = Arc::new(Bell::default());
        let waker = Waker::from(Arc::clone(&bell));
        let mut context = Context::from_waker(&waker);
        let held = arena.take().await;
        assert!(arena.try_take().is_none());
        let mut waits: Vec<_> = (0..4).map(|_| Box::pin(arena.take())).collect();
        for wait in &mut waits {
            assert!(wait.as_mut().poll(&mut context).is_pending());
        }
        // The second task gives up while it waits, the first one after it was given the buffer.
        drop(waits.remove(1));
        drop(held);
        assert_eq!(bell.0.load(SeqCst), 1);
        assert!(arena.try_take().is_none(), "a newcomer overtakes nobody");
        assert!(pin!(arena.take()).poll(&mut context).is_pending());
        assert!(waits[1].as_mut().poll(&mut context).is_pending());
        drop(waits.remove(0));
        assert_eq!(bell.0.load(SeqCst), 2);
        let Poll::Ready(buf) = waits[0].as_mut().poll(&mut context) else {
            panic!("the one behind got it");
        };
        assert!(waits[1].as_mut().poll(&mut context).is_pending());
        drop(buf);
        assert!(waits[1].as_mut().poll(&mut context).is_ready());
        assert_eq!(arena.free(), 1);
    });
}

#[test]
fn threads_that_share_a_few_buffers_all_get_their_turn() {
    for_each_backend(async |fixture| {
        let arena = arena(&fixture.engine, 2, 8);
        thread::scope(|scope| {
            for id in 0..4_u64 {
                let arena = arena.clone();
                scope.spawn(move || {
                    for round in 0..500 {
                        let mut buf = pollster::block_on(arena.take());
                        let mark = (id << 32 | round).to_ne_bytes();
                        buf.copy_from_slice(&mark);
                        thread::yield_now();
                        assert_eq!(buf[..], mark, "a buffer has one user");
                    }
                });
            }
        });
        assert_eq!(arena.free(), 2);
    });
}

#[test]
fn a_lease_may_be_shortened_and_keeps_its_place() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", &bytes(6, 3 * PAGE)).await;
        let arena = arena(&fixture.engine, 3, 5000);
        assert_eq!(arena.layout().bytes, 5000);
        let mut buf = arena.take().await;
        assert_eq!((buf.index(), buf.capacity(), buf.len()), (0, 5000, 5000));
        assert!(buf.iter().all(|&byte| byte == 0));
        buf.set_len(10);
        let (count, mut buf) = file.read_at(buf, 7).await.unwrap();
        assert_eq!((count, &buf[..]), (10, &bytes(6, 3 * PAGE)[7..17]));
        buf.set_len(5000);
        assert!(buf[10..].iter().all(|&byte| byte == 0));
        drop(buf);
        assert_eq!(arena.take().await.len(), 5000);
    });
}

#[test]
fn invalid_layouts_are_refused_with_the_reason() {
    for_each_backend(async |fixture| {
        for (count, bytes, says) in [
            (0, 4096, "at least 1"),
            (1, 0, "at least 1"),
            (usize::MAX, 4096, "at most 1,073,741,824 buffers"),
            (1, usize::MAX, "at most 1 GiB"),
            (1 << 20, 1 << 30, "at most 1 TiB"),
            (1 << 28, 4097, "at most 1 TiB"),
        ] {
            let layout = BufferLayout::new(count, bytes);
            let error = fixture.engine.register_buffers(layout).unwrap_err();
            let message = error.to_string();
            assert!(matches!(error, SetupError::Config(_)), "{error:?}");
            assert!(
                message.contains(says) && message.contains("buffers of"),
                "{message}"
            );
        }
    });
}

#[test]
fn an_arena_of_any_pages_works_and_reports_which_it_has() {
    for_each_backend(async |fixture| {
        let contents = bytes(7, 3 << 20);
        let file = fixture.file("f", &contents).await;
        uncache(&file).await;
        for huge_pages in [
            HugePages::SystemDefault,
            HugePages::Transparent,
            HugePages::Reserved,
        ] {
            let layout = BufferLayout::new(3, 1 << 20).huge_pages(huge_pages);
            let arena = fixture.engine.register_buffers(layout).unwrap();
            let message = arena.to_string();
            println!("{huge_pages:?}: {message}");
            assert!(message.starts_with("3 buffers of 1 MiB in "), "{message}");
            assert!(message.contains(&arena.pages().to_string()), "{message}");
            for n in 0..3 {
                let buf = file.read_exact_at(arena.take().await, n << 20).await;
                let at = (n as usize) << 20;
                assert_eq!(buf.unwrap()[..], contents[at..at + (1 << 20)]);
            }
        }
    });
}
