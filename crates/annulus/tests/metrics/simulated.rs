//! Rare behaviour of a kernel, on the simulated one.

use std::task::Poll;
use std::time::Duration;

use annulus::metrics::{self, snapshot};
use annulus::sim::{Errno, OpKind, Sim, SimConfig};

use crate::{alone, count, since};

#[test]
fn errors_are_counted_by_operation_and_number() {
    let _alone = alone();
    let sim = Sim::new(SimConfig::new(3).errors(&[OpKind::Read], Errno::Eio, 500));
    sim.put("/f", vec![1; 4096]).unwrap();
    sim.run(async |engine| {
        let before = snapshot();
        let file = engine.open("/f").await.unwrap();
        let mut failed = 0;
        for _ in 0..100 {
            failed += u64::from(file.read_at(vec![0; 16], 0).await.is_err());
        }
        let total = since(&before).total();
        assert!(failed > 10);
        assert_eq!(count(&total, "read_at"), (100, failed));
        assert_eq!(total.counters.failed, failed);
        let errors = total.errors.iter().map(|error| (error.errno, error.count));
        assert_eq!(errors.collect::<Vec<_>>(), [(Errno::Eio.number(), failed)]);
    });
}

#[test]
fn short_transfers_are_counted_and_timed_as_one_request() {
    let _alone = alone();
    let delays = Duration::from_micros(100);
    let sim = Sim::new(SimConfig::new(5).short_transfers(1000).delays(delays));
    sim.run(async |engine| {
        let file = engine.create("/f").await.unwrap();
        let _watch = metrics::watch();
        let before = snapshot();
        file.write_all_at(vec![7; 64 << 10], 0).await.unwrap();
        let total = since(&before).total();
        let counters = total.counters;
        assert!(
            counters.short > 0 && counters.short <= counters.resubmitted,
            "{counters:?}"
        );
        assert_eq!(count(&total, "write_at"), (1, 0));
        let write = total.operation("write_at").unwrap();
        assert_eq!(write.latency.count(), 1);
        // Measured on the clock of the simulation.
        assert!(write.device.sum_ns() > 0);
        assert!(write.latency.sum_ns() <= u64::try_from(sim.elapsed().as_nanos()).unwrap());
    });
}

#[test]
fn completions_that_do_not_fit_are_counted() {
    let _alone = alone();
    let sim = Sim::new(SimConfig::new(9).queues(16, 2));
    sim.put("/f", vec![1; 4096]).unwrap();
    sim.run(async |engine| {
        let file = engine.open("/f").await.unwrap();
        let before = snapshot();
        let reads = (0..200).map(|read| (vec![0; 16], read * 16));
        assert_eq!(file.read_many_at(reads).await.len(), 200);
        let total = since(&before).total();
        assert_eq!(count(&total, "read_at"), (200, 0));
        assert!(total.counters.cq_overflows > 0, "{:?}", total.counters);
    });
}

#[test]
fn a_timeout_is_counted_as_one_and_a_requested_cancel_is_no_error() {
    let _alone = alone();
    let sim = Sim::new(SimConfig::new(2).delays(Duration::from_secs(1)));
    sim.put("/f", vec![1; 4096]).unwrap();
    sim.run(async |engine| {
        let file = engine.open("/f").await.unwrap();
        let before = snapshot();
        let soon = Duration::from_nanos(10);
        let late = file.read_at(vec![0; 16], 0).timeout(soon).await;
        assert!(late.is_err());
        let mut read = Box::pin(file.read_at(vec![0; 16], 0));
        let begun =
            std::future::poll_fn(|context| Poll::Ready(read.as_mut().poll(context).is_pending()));
        assert!(begun.await);
        while since(&before).total().counters.submitted < 2 {
            engine.sleep(soon).await.unwrap();
        }
        drop(read);
        engine.sleep(Duration::from_secs(2)).await.unwrap();
        let total = since(&before).total();
        assert_eq!(count(&total, "read_at"), (2, 0), "{total:?}");
        let counters = total.counters;
        assert_eq!(
            (counters.timeouts, counters.cancelled, counters.cancels),
            (1, 1, 2)
        );
        assert_eq!(
            (counters.failed, counters.in_flight, total.errors.len()),
            (0, 0, 0)
        );
    });
}
