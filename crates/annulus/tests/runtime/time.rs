//! Timers.

use std::io::Write;
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use std::cell::{Cell, RefCell};

use annulus::{runtime, time};

use crate::ways::{each_way, listener};

/// Runs sleeps concurrently. Returns two times between which each began, and the order in which they ended.
async fn sleep_side_by_side(times_ms: [u64; 5]) -> (Vec<[Instant; 2]>, Vec<u64>) {
    let (begun, order) = <(Rc<RefCell<Vec<_>>>, Rc<RefCell<Vec<_>>>)>::default();
    let tasks = times_ms.map(|ms| {
        let (begun, order) = (Rc::clone(&begun), Rc::clone(&order));
        runtime::spawn(async move {
            let before = Instant::now();
            let sleep = time::sleep(Duration::from_millis(ms));
            begun.borrow_mut().push([before, Instant::now()]);
            sleep.await;
            assert!(before.elapsed() >= Duration::from_millis(ms));
            order.borrow_mut().push(ms);
        })
    });
    for task in tasks {
        task.await.unwrap();
    }
    (begun.take(), order.take())
}

#[test]
fn sleeps_end_in_their_order_and_none_too_early() {
    /// The minimum difference of two sleeps' ends, if they begin together.
    const APART: Duration = Duration::from_millis(5);
    each_way(|builder| {
        let ended = builder.block_on(async {
            loop {
                let (begun, order) = sleep_side_by_side([30, 0, 20, 10, 5]).await;
                // If the thread was preempted between two starts, a shorter sleep may end after a longer one.
                if begun[4][1] - begun[0][0] < APART {
                    return order;
                }
            }
        });
        assert_eq!(ended.unwrap(), [0, 5, 10, 20, 30]);
    });
}

#[test]
fn a_hundred_thousand_timers_all_fire() {
    const TIMERS: u64 = 100_000;
    each_way(|builder| {
        let ended = builder.block_on(async {
            let gone_off = Rc::new(Cell::new(0));
            let mut tasks = Vec::new();
            for number in 0..TIMERS {
                let gone_off = Rc::clone(&gone_off);
                tasks.push(runtime::spawn(async move {
                    // In a scattered order: 7919 is a prime.
                    let us = number * 7919 % 50_000;
                    time::sleep(Duration::from_micros(us)).await;
                    gone_off.set(gone_off.get() + 1);
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
            gone_off.get()
        });
        assert_eq!(ended.unwrap(), TIMERS);
    });
}

#[test]
fn dropped_timers_wake_no_task() {
    each_way(|builder| {
        let ended = builder.block_on(async {
            let before = runtime::handle().metrics(0).polls;
            for _ in 0..1000 {
                let gave_up = time::timeout(Duration::from_millis(1), runtime::yield_now());
                // On a busy machine the time may be up before the second poll.
                let _ = gave_up.await;
                drop(time::sleep(Duration::from_millis(1)));
            }
            time::sleep(Duration::from_millis(30)).await;
            runtime::handle().metrics(0).polls - before
        });
        // One poll per yield, one for the sleep, and a few others, but none per dropped timer.
        let polls = ended.unwrap();
        assert!(polls < 1500, "{polls} polls for 1001 waits");
    });
}

#[test]
fn a_timeout_returns_the_value_or_an_error() {
    each_way(|builder| {
        let ended = builder.block_on(async {
            let never = std::future::pending::<()>();
            let error = time::timeout(Duration::from_millis(2), never)
                .await
                .unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
            let long = Duration::from_secs(3600);
            assert_eq!(time::timeout(long, async { 1 }).await.unwrap(), 1);
            time::timeout(Duration::MAX, async { 2 }).await.unwrap()
        });
        assert_eq!(ended.unwrap(), 2);
    });
}

#[test]
fn an_interval_keeps_its_period_and_skips_missed_ticks() {
    each_way(|builder| {
        let ended = builder.block_on(async {
            let period = Duration::from_millis(10);
            let mut interval = time::interval(period);
            let from = Instant::now();
            interval.tick().await;
            // Dropped before it is due: the tick is not lost.
            let early = time::timeout(Duration::ZERO, interval.tick()).await;
            assert!(early.is_err() || from.elapsed() >= period);
            interval.tick().await;
            assert!(from.elapsed() >= period);
            thread::sleep(Duration::from_millis(55));
            let ticks_from = Instant::now();
            interval.tick().await;
            interval.tick().await;
            interval.tick().await;
            // One tick was due; the four missed ones are skipped.
            assert!(ticks_from.elapsed() >= period);
        });
        ended.unwrap();
    });
}

#[test]
fn a_receive_that_times_out_loses_nothing() {
    const BYTES: usize = 20_000;
    each_way(|builder| {
        let ended = builder.block_on(async {
            let (listener, address) = listener();
            let sender = thread::spawn(move || {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.set_nodelay(true).unwrap();
                let bytes: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
                for (number, part) in bytes.chunks(37).enumerate() {
                    stream.write_all(part).unwrap();
                    if number % 8 == 0 {
                        thread::sleep(Duration::from_micros(150));
                    }
                }
            });
            let stream = listener.accept().await.unwrap();
            let (mut received, mut given_up) = (Vec::new(), 0);
            loop {
                // The two kinds of receive alternate; both are dropped at their timeout.
                let wait = Duration::from_micros(given_up % 120);
                let part = if given_up % 2 == 0 {
                    let mut chunks = stream.recv_multishot();
                    let chunk = time::timeout(wait, chunks.next()).await;
                    chunk.map(|chunk| chunk.map(|chunk| chunk.unwrap().to_vec()))
                } else {
                    let got = time::timeout(wait, stream.recv(vec![0; 64])).await;
                    got.map(|got| {
                        let (bytes, mut buffer) = got.unwrap();
                        buffer.truncate(bytes);
                        Some(buffer).filter(|buffer| !buffer.is_empty())
                    })
                };
                match part {
                    Ok(Some(part)) => received.extend(part),
                    Ok(None) => break,
                    Err(_) => given_up += 1,
                }
            }
            sender.join().unwrap();
            received
        });
        let received = ended.unwrap();
        assert_eq!(received.len(), BYTES);
        let wrong = (0..BYTES).find(|&at| received[at] != (at % 251) as u8);
        assert_eq!(wrong, None);
    });
}

#[test]
fn a_sleep_may_be_polled_on_one_core_and_completed_on_another() {
    each_way(|builder| {
        let ended = builder.cores(2).run(|core| async move {
            if core.index() == 0 {
                let mut sleep = Box::pin(time::sleep(Duration::from_millis(1)));
                let begun = Instant::now();
                std::future::poll_fn(|context| {
                    let _ = sleep.as_mut().poll(context);
                    Poll::Ready(())
                })
                .await;
                let there = runtime::handle().spawn_on(1, move || async move {
                    sleep.await;
                    begun.elapsed()
                });
                assert!(there.await? >= Duration::from_millis(1));
                runtime::handle().shutdown();
            }
            runtime::stopping().await;
            Ok(())
        });
        ended.unwrap();
    });
}

#[test]
fn a_sleep_that_another_thread_drops_releases_its_waker() {
    struct Nothing;

    impl Wake for Nothing {
        fn wake(self: Arc<Self>) {}
    }

    each_way(|builder| {
        let ended = builder.block_on(async {
            let nothing = Arc::new(Nothing);
            let mut sleep = Box::pin(time::sleep(Duration::from_secs(86_400)));
            let waker = Waker::from(Arc::clone(&nothing));
            let polled = sleep.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
            drop(waker);
            assert_eq!(Arc::strong_count(&nothing), 2);
            thread::spawn(move || drop(sleep)).join().unwrap();
            while Arc::strong_count(&nothing) > 1 {
                time::sleep(Duration::from_millis(1)).await;
            }
        });
        ended.unwrap();
    });
}
