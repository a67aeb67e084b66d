//! Tests of the worker without I/O: the operations, their times and the counts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use annulus_baselines::{Op, Worker};

use super::BenchWorker;
use crate::bench::file::order::{Order, OrderSpec};
use crate::bench::file::shared::Shared;
use crate::bench::file::verify::Verify;
use crate::bench::file::work::{Check, Lengths, Pick, Work};

/// Returns random reads of a file with this number of blocks.
fn work(blocks: u64) -> Work {
    of_files(1, blocks)
}

fn of_files(files: usize, blocks: u64) -> Work {
    Work {
        write_percent: 0,
        lengths: [Lengths::Fixed(4096), Lengths::Fixed(4096)],
        block_bytes: 4096,
        block_bytes_max: 4096,
        files,
        offset_bytes: 8192,
        file_bytes: blocks * 4096,
        pick: Pick::Order(Order::new(OrderSpec {
            blocks: blocks * files as u64,
            seed: 5,
            random: true,
            endless: true,
            workers: 1,
        })),
        bytes_max: u64::MAX,
        ops_max: u64::MAX,
        ramp: Duration::ZERO,
        runtime: None,
        once: true,
        rate: [0; 2],
        seed: 5,
        check: Check::Length,
        timeline: false,
        thread_cpu: false,
    }
}

fn worker(work: Work) -> BenchWorker {
    let shared = Arc::new(Shared::new(Instant::now(), work));
    shared.start(shared.now_ns());
    BenchWorker::new(shared, 0)
}

/// Runs the worker to its end and completes each operation immediately with the correct result.
fn all(worker: &mut BenchWorker) -> Vec<Op> {
    let mut ops = Vec::new();
    while let Some(op) = worker.next() {
        let mut bytes = vec![0; op.bytes as usize];
        worker.fill(&op, &mut bytes);
        worker.finish(op, Ok(bytes.len()), &bytes[..]);
        ops.push(op);
    }
    ops
}

#[test]
fn a_random_job_uses_every_block_of_every_file_once_and_ends() {
    let mut worker = worker(Work {
        bytes_max: 3 * 100 * 4096,
        ..of_files(3, 100)
    });
    let mut offsets: Vec<(u32, u64)> = all(&mut worker)
        .iter()
        .map(|op| (op.file, op.offset))
        .collect();
    offsets.sort_unstable();
    let expected: Vec<(u32, u64)> = (0..3)
        .flat_map(|file| (0..100).map(move |block| (file, 8192 + block * 4096)))
        .collect();
    assert_eq!(offsets, expected);
    let [reads, _] = worker.into_tally().directions;
    assert_eq!((reads.ops(), reads.bytes), (300, 300 * 4096));
}

#[test]
fn a_sequential_job_wraps_around_until_its_io_size() {
    let mut worker = worker(Work {
        pick: Pick::InTurn,
        ops_max: 25,
        ..work(10)
    });
    let offsets: Vec<u64> = all(&mut worker)
        .iter()
        .map(|op| (op.offset - 8192) / 4096)
        .collect();
    let expected: Vec<u64> = (0..25).map(|index| index % 10).collect();
    assert_eq!(offsets, expected);
}

#[test]
fn lengths_follow_their_shares_and_stay_within_the_file() {
    let mut worker = worker(Work {
        write_percent: 30,
        lengths: [
            Lengths::Split(vec![(4096, 60), (65536, 40)]),
            Lengths::Range(4096, 16384),
        ],
        block_bytes_max: 65536,
        pick: Pick::Anywhere,
        ops_max: 20_000,
        ..work(64)
    });
    let ops = all(&mut worker);
    let share = |of: &dyn Fn(&&Op) -> bool, among: &dyn Fn(&&Op) -> bool| {
        let count = ops.iter().filter(among).filter(of).count();
        count as f64 / ops.iter().filter(among).count() as f64
    };
    let reads = share(&|op| !op.write, &|_| true);
    let long = share(&|op| op.bytes == 65536, &|op| !op.write);
    assert!(
        (0.68..0.72).contains(&reads) && (0.38..0.42).contains(&long),
        "{reads} {long}"
    );
    for op in &ops {
        assert!(
            op.offset >= 8192 && op.offset + u64::from(op.bytes) <= 8192 + 64 * 4096,
            "{op:?}"
        );
        assert!(
            op.offset.is_multiple_of(4096) && op.bytes.is_multiple_of(4096),
            "{op:?}"
        );
        assert!(!op.write || op.bytes <= 16384, "{op:?}");
    }
}

#[test]
fn at_a_rate_later_returns_the_time_to_wait() {
    // The next block is due a hundred seconds after the first.
    let mut worker = worker(Work {
        rate: [41, 41],
        ..work(10)
    });
    let op = worker.next().unwrap();
    assert!(worker.next().is_none());
    let pause = worker.later().unwrap();
    assert!(
        pause > Duration::from_secs(90) && pause < Duration::from_secs(101),
        "{pause:?}"
    );
    worker.finish(op, Ok(4096), &[0; 4096][..]);
}

#[test]
fn a_job_whose_time_is_over_requests_no_operation() {
    let mut worker = worker(Work {
        runtime: Some(Duration::from_secs(3600)),
        rate: [1, 1],
        ..work(10)
    });
    assert!(worker.next().is_some());
    assert!(worker.next().is_none());
    assert!(worker.later().is_some());
    worker.shared.stop();
    assert!(worker.next().is_none());
    assert_eq!(worker.later(), None);
}

#[test]
fn written_blocks_are_read_back_and_a_changed_byte_is_detected() {
    let writing = || Work {
        write_percent: 100,
        check: Check::Verify(Verify::Crc32c, Vec::new()),
        ops_max: 7,
        ..work(10)
    };
    let mut writer = worker(writing());
    let mut written_at: Vec<u64> = all(&mut writer).iter().map(|op| op.offset).collect();
    written_at.sort_unstable();
    let mut reader = worker(Work {
        write_percent: 0,
        pick: Pick::Written(writer.into_tally().written.unwrap()),
        ops_max: u64::MAX,
        ..writing()
    });
    let mut read_at = Vec::new();
    while let Some(op) = reader.next() {
        let mut bytes = vec![0; op.bytes as usize];
        reader.fill(&op, &mut bytes);
        if read_at.len() == 3 {
            bytes[1000] ^= 1;
        }
        reader.finish(op, Ok(4096), &bytes[..]);
        read_at.push(op.offset);
    }
    assert_eq!(read_at, written_at);
    let tally = reader.into_tally();
    assert_eq!((tally.verified, tally.wrong), (7, 1));
    assert!(
        tally
            .first_failure
            .unwrap()
            .contains("does not match its checksum")
    );
}

#[test]
fn short_results_and_errors_are_distinguished() {
    let mut worker = worker(work(10));
    let op = worker.next().unwrap();
    worker.finish(op, Ok(512), &[0; 512][..]);
    let op = worker.next().unwrap();
    worker.finish(op, Err(std::io::Error::from_raw_os_error(5)), &[][..]);
    let tally = worker.into_tally();
    assert_eq!((tally.wrong, tally.errors), (1, 1));
    assert!(
        tally
            .first_failure
            .unwrap()
            .contains("512 bytes instead of 4096")
    );
}
