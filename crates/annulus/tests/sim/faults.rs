//! Each fault of the kernel alone: it occurs, and the results are correct.

use std::rc::Rc;
use std::time::Duration;

use annulus::sim::{Errno, FaultCounts, OpKind, Sim, SimConfig, spawn};
use annulus::{Engine, File, OpenOptions};

use crate::buffers::{Census, Rng};
use crate::seeds::for_each_seed;

const BLOCK: usize = 600;
const BLOCKS: u64 = 40;

/// Writes, reads back and compares, in several tasks, with some timeouts and drops. Operations may
/// only fail with the injected error.
fn work(sim: &Sim, seed: u64, injected: Option<Errno>) {
    let census = Census::default();
    sim.put("/f", vec![0; BLOCK * BLOCKS as usize]).unwrap();
    let counted = census.clone();
    sim.run(async move |engine| {
        let tasks: Vec<_> = (0..4)
            .map(|task| {
                let worker = Worker {
                    engine: engine.clone(),
                    census: counted.clone(),
                    injected: injected.map(Errno::number),
                };
                spawn(worker.work(Rng::new(seed << 4 | task), task))
            })
            .collect();
        for task in tasks {
            task.await;
        }
    });
    let report = sim.report();
    assert_eq!(
        (
            report.slots_in_use,
            report.metrics.stale,
            report.metrics.leaked
        ),
        (0, 0, 0)
    );
    assert_eq!((census.alive(), sim.open_descriptors()), (0, 0));
}

struct Worker {
    engine: Engine,
    census: Census,
    injected: Option<i32>,
}

impl Worker {
    fn check(&self, error: &std::io::Error) {
        let timed_out = error.kind() == std::io::ErrorKind::TimedOut;
        assert!(
            timed_out || error.raw_os_error() == self.injected,
            "{error:?} comes from nowhere"
        );
    }

    async fn open(&self) -> File {
        let mut options = OpenOptions::new();
        loop {
            match self
                .engine
                .open_with(options.read(true).write(true), "/f")
                .await
            {
                Ok(file) => return file,
                Err(error) => self.check(&error),
            }
        }
    }

    async fn work(self, mut rng: Rng, task: u64) {
        let file = Rc::new(self.open().await);
        for round in 0..20 {
            // Each task uses every fourth block.
            let block = rng.below(BLOCKS / 4) * 4 + task;
            let at = block * BLOCK as u64;
            let contents = vec![(round * 4 + task) as u8 | 1; BLOCK];
            match file
                .write_all_at(self.census.buffer(contents.clone()), at)
                .await
            {
                Ok(_) => {}
                Err(error) => {
                    self.check(error.error());
                    continue;
                }
            }
            match file
                .read_exact_at(self.census.buffer(vec![0; BLOCK]), at)
                .await
            {
                Ok(read) => assert_eq!(read.bytes, contents, "block {block}"),
                Err(error) => self.check(error.error()),
            }
            let elsewhere = rng.below(BLOCKS) * BLOCK as u64;
            let read = file.read_at(self.census.buffer(vec![0; BLOCK]), elsewhere);
            if let Err(error) = read.timeout(Duration::from_micros(rng.below(100))).await {
                self.check(error.error());
            }
            let batch = (0..8).map(|part| (self.census.buffer(vec![0; 70]), at + part * 70));
            for (part, read) in (0..8).zip(file.read_many_at(batch).await) {
                match read {
                    Ok((n, buf)) => assert_eq!(buf.bytes[..n], contents[..n], "part {part}"),
                    Err(error) => self.check(error.error()),
                }
            }
            if let Err(error) = file.sync_data().await {
                self.check(&error);
            }
        }
    }
}

type Count = fn(&FaultCounts) -> u64;

/// Runs with several seeds, and checks that the fault occurred.
fn survives(configure: impl Fn(SimConfig) -> SimConfig, count: Count) {
    survives_errors(configure, None, count);
}

fn survives_errors(
    configure: impl Fn(SimConfig) -> SimConfig,
    injected: Option<Errno>,
    count: Count,
) {
    let met = crate::buffers::Tally::default();
    for_each_seed(10, |seed| {
        let sim = Sim::new(configure(SimConfig::new(seed)));
        work(&sim, seed, injected);
        met.add(count(&sim.counts()));
    });
    assert!(met.get() > 0, "the fault was never met");
}

const SHORT: Duration = Duration::from_micros(60);

#[test]
fn an_ideal_kernel_is_survived() {
    for_each_seed(10, |seed| {
        let sim = Sim::new(SimConfig::new(seed));
        work(&sim, seed, None);
        let counts = sim.counts();
        assert_eq!(
            (
                counts.delayed,
                counts.shortened,
                counts.errors,
                counts.overflowed,
                counts.enters_refused
            ),
            (0, 0, 0, 0, 0)
        );
    });
}

#[test]
fn delays_are_survived() {
    survives(|config| config.delays(SHORT), |counts| counts.delayed);
}

#[test]
fn late_completions_that_no_cancel_stops_are_survived() {
    survives(
        |config| config.late(300, Duration::from_millis(50)),
        |counts| counts.late,
    );
}

#[test]
fn reordered_completions_are_survived() {
    survives(
        |config| config.delays(SHORT).reordering(700),
        |counts| counts.reordered,
    );
}

#[test]
fn short_transfers_are_survived() {
    survives(
        |config| config.short_transfers(500),
        |counts| counts.shortened,
    );
}

#[test]
fn buffers_written_to_before_the_completion_are_survived() {
    survives(
        |config| config.delays(SHORT).scribbles(700),
        |counts| counts.scribbled,
    );
}

#[test]
fn cancels_that_find_nothing_are_survived() {
    survives(
        |config| config.delays(SHORT).uncancellable(700),
        |counts| counts.cancels_missed,
    );
}

#[test]
fn cancels_that_come_too_late_are_survived() {
    survives(
        |config| config.delays(SHORT).slow_cancels(700),
        |counts| counts.cancels_too_late,
    );
}

#[test]
fn cancels_that_complete_before_or_after_their_operation_are_survived() {
    survives(
        |config| config.delays(SHORT).slow_cancels(300),
        |counts| counts.cancelled_before,
    );
    survives(
        |config| config.delays(SHORT).slow_cancels(300),
        |counts| counts.cancelled_after,
    );
}

#[test]
fn refused_enters_are_survived() {
    survives(
        |config| config.delays(SHORT).refused_enters(300),
        |counts| counts.enters_refused,
    );
}

#[test]
fn enters_that_fail_halfway_are_survived() {
    survives(
        |config| config.delays(SHORT).broken_enters(300),
        |counts| counts.enters_broken,
    );
}

#[test]
fn short_submits_are_survived() {
    survives(
        |config| config.delays(SHORT).short_submits(500),
        |counts| counts.submits_short,
    );
}

#[test]
fn tiny_queues_are_survived() {
    let tiny = |config: SimConfig| config.queues(2, 1);
    survives(tiny, |counts| counts.overflowed);
    survives(tiny, |counts| counts.pushes_refused);
}

#[test]
fn writing_back_is_survived() {
    survives(
        |config| config.write_back(500),
        |counts| counts.written_back,
    );
}

#[test]
fn every_errno_of_every_kind_of_operation_is_survived() {
    for errno in [
        Errno::Eio,
        Errno::Eintr,
        Errno::Eagain,
        Errno::Enospc,
        Errno::Enomem,
    ] {
        survives_errors(
            |config| config.errors(&OpKind::ALL, errno, 100),
            Some(errno),
            |counts| counts.errors,
        );
    }
}

#[test]
fn a_shortage_of_memory_is_retried_twice_and_is_then_the_result() {
    let sim = Sim::new(SimConfig::new(1).errors(&[OpKind::Nop], Errno::Enomem, 1000));
    sim.run(async |engine| {
        let error = engine.nop().await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::Enomem.number()));
    });
    assert_eq!(sim.counts().errors, 3);
}

#[test]
fn a_full_disk_and_a_file_too_long_return_their_errors() {
    let sim = Sim::new(
        SimConfig::new(1)
            .capacity_bytes(10_000)
            .file_bytes_max(8000)
            .open_files_max(2),
    );
    sim.run(async |engine| {
        let file = engine.create("/f").await.unwrap();
        let errno = |error: annulus::BufError<_>| error.error().raw_os_error();
        assert_eq!(
            file.write_all_at(vec![1; 100], 8000)
                .await
                .map_err(errno)
                .err(),
            Some(Some(EFBIG))
        );
        assert_eq!(file.write_at(vec![1; 100], 7950).await.unwrap().0, 50);
        assert_eq!(
            file.set_len(8001).await.unwrap_err().raw_os_error(),
            Some(EFBIG)
        );
        file.write_all_at(vec![1; 8000], 0).await.unwrap();
        let other = engine.create("/g").await.unwrap();
        let (n, _) = other.write_at(vec![2; 8000], 0).await.unwrap();
        assert_eq!(n, 10_000 / 512 * 512 - 8192, "what fits");
        assert_eq!(
            other
                .write_at(vec![2; 8000], n as u64)
                .await
                .map_err(errno)
                .err(),
            Some(Some(ENOSPC))
        );
        assert_eq!(
            engine.open("/f").await.unwrap_err().raw_os_error(),
            Some(EMFILE)
        );
        drop(file);
        engine.remove_file("/f").await.unwrap();
        other.write_all_at(vec![2; 8000], 0).await.unwrap();
    });
}

const EMFILE: i32 = 24;
const EFBIG: i32 = 27;
const ENOSPC: i32 = 28;
