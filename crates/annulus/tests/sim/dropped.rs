//! Futures that are dropped before their completion, at every point of an operation's life.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use annulus::sim::{EventKind, OpKind, Sim, SimConfig, spawn};

use crate::buffers::Census;
use crate::seeds::for_each_seed;

/// A future that another task may drop.
struct Shared<F>(Rc<RefCell<Option<Pin<Box<F>>>>>);

impl<F: Future> Future for Shared<F> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.0.borrow_mut().as_mut() {
            Some(future) => future.as_mut().poll(context).map(Some),
            None => Poll::Ready(None),
        }
    }
}

/// Each part of a transfer has a random length and takes some time.
fn in_parts(seed: u64) -> SimConfig {
    SimConfig::new(seed)
        .delays(Duration::from_micros(20))
        .short_transfers(1000)
}

/// 1. A part of a transfer completes; the driver would submit the rest.
/// 2. The future is dropped.
/// 3. The driver notices the drop and must not submit the rest: the cancel would have come too early.
#[test]
fn a_transfer_dropped_between_two_parts_is_not_submitted_again() {
    for_each_seed(50, |seed| {
        let sim = Sim::new(in_parts(seed));
        let started_late = sim.run(async |engine| {
            let file = engine.create("/f").await.unwrap();
            let census = Census::default();
            let (theirs, buffer) = (file.clone(), census.buffer(vec![7; 64 << 10]));
            let write = async move { theirs.write_all_at(buffer, 0).await.is_ok() };
            let write = Rc::new(RefCell::new(Some(Box::pin(write))));
            let task = spawn(Shared(Rc::clone(&write)));
            engine.sleep(Duration::from_micros(seed * 7)).await.unwrap();
            write.borrow_mut().take();
            let dropped_at = sim.trace().len();
            engine.sleep(Duration::from_secs(1)).await.unwrap();
            drop(task);
            assert_eq!(census.alive(), 0);
            let after = sim.trace().split_off(dropped_at);
            after
                .iter()
                .filter(|event| event.what == EventKind::Started && event.kind == OpKind::Write)
                .count()
        });
        assert_eq!(started_late, 0, "parts were started after the drop");
    });
}

/// The kernel can cancel everything here, so no buffer needs to stay with it.
#[test]
fn a_timeout_between_two_parts_of_a_transfer_gives_the_buffer_back() {
    for_each_seed(50, |seed| {
        let sim = Sim::new(in_parts(seed));
        sim.run(async |engine| {
            let file = engine.create("/f").await.unwrap();
            for at in 0..20 {
                let timeout = Duration::from_micros(at * 11);
                let Err(error) = file
                    .write_all_at(vec![7; 64 << 10], 0)
                    .timeout(timeout)
                    .await
                else {
                    continue;
                };
                assert_eq!(error.error().kind(), std::io::ErrorKind::TimedOut);
                assert!(
                    error.into_buf().is_some(),
                    "the buffer was kept, after {timeout:?}"
                );
            }
        });
        assert!(sim.report().metrics.timeouts > 0);
    });
}
