//! Reads of whole files: dropped at random times, with errors and short reads.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use annulus::Engine;
use annulus::sim::{Errno, OpKind, Sim, SimConfig, spawn};

use crate::buffers::Rng;
use crate::seeds::for_each_seed;

/// The lengths around that of the first buffer, and one that is empty.
const LENGTHS: [usize; 5] = [0, 700, 16_384, 16_385, 40_000];

fn contents(length: usize) -> Vec<u8> {
    annulus_testing::pattern::bytes(0, 0, length)
}

/// Awaits `future` for at most `time`, and then drops it.
async fn within<F: Future>(engine: &Engine, time: Duration, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut sleep = engine.sleep(time);
    std::future::poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        pin!(&mut sleep).poll(context).map(|_| None)
    })
    .await
}

async fn work(engine: Engine, mut rng: Rng) -> [u32; 3] {
    let (mut read, mut failed, mut dropped) = (0, 0, 0);
    for _ in 0..60 {
        let length = LENGTHS[rng.below(LENGTHS.len() as u64) as usize];
        let time = Duration::from_micros(rng.below(300));
        match within(&engine, time, engine.read(format!("/{length}"))).await {
            Some(Ok(bytes)) => {
                assert!(bytes == contents(length), "{length}");
                read += 1;
            }
            Some(Err(error)) => {
                assert_eq!(error.raw_os_error(), Some(Errno::Eio.number()), "{error}");
                failed += 1;
            }
            None => dropped += 1,
        }
    }
    [read, failed, dropped]
}

#[test]
fn whole_reads_are_right_or_fail_and_leave_nothing_when_they_are_dropped() {
    // Read, failed and dropped.
    let seen = Cell::new([0; 3]);
    for_each_seed(60, |seed| {
        let config = SimConfig::new(seed)
            .delays(Duration::from_micros(20))
            .reordering(500)
            .short_transfers(300)
            .uncancellable(200)
            .errors(&[OpKind::Open, OpKind::Read, OpKind::Close], Errno::Eio, 20);
        let sim = Sim::new(config);
        for length in LENGTHS {
            sim.put(format!("/{length}"), contents(length)).unwrap();
        }
        let counts = sim.run(async |engine| {
            let tasks: Vec<_> = (0..4)
                .map(|task| spawn(work(engine.clone(), Rng::new(seed << 4 | task))))
                .collect();
            let mut counts = [0; 3];
            for task in tasks {
                for (sum, count) in counts.iter_mut().zip(task.await) {
                    *sum += count;
                }
            }
            engine.sleep(Duration::from_secs(1)).await.unwrap();
            counts
        });
        let report = sim.report();
        assert_eq!((report.slots_in_use, sim.open_descriptors()), (0, 0));
        let sums = seen.get();
        seen.set([0, 1, 2].map(|at| sums[at] + counts[at]));
    });
    assert!(seen.get().iter().all(|&count| count > 0), "{seen:?}");
}
