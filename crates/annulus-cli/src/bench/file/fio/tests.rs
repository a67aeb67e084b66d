//! Tests of a job's worker without I/O: the operations, their times and the counts.

use std::sync::Arc;
use std::time::Duration;

use annulus_baselines::{Op, Worker};

use super::options::{Kind, Verify};
use super::report::{OWN, Run};
use super::value::Lengths;
use super::worker::{Clock, JobWorker, Work};

fn work(blocks: u64) -> Work {
    Work {
        kind: Kind::Read,
        random: true,
        read_percent: 50,
        lengths: [Lengths::Fixed(4096), Lengths::Fixed(4096)],
        block_least: 4096,
        block_most: 4096,
        uniform: true,
        files: 1,
        offset: 8192,
        bytes: blocks * 4096,
        repeats_blocks: false,
        bytes_most: u64::MAX,
        ios_most: u64::MAX,
        ramp: Duration::ZERO,
        runtime: None,
        rate: [0; 2],
        seed: 5,
        verify: None,
        read_back: None,
    }
}

fn worker(work: Work) -> JobWorker {
    let clock = Arc::new(Clock::new());
    clock.go();
    JobWorker::new(clock, Arc::new(work))
}

/// Runs the worker to its end and completes each operation immediately with the correct result.
fn all(worker: &mut JobWorker) -> Vec<Op> {
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
        files: 3,
        bytes_most: 3 * 100 * 4096,
        ..work(100)
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
    let (tally, _) = worker.into_parts();
    assert_eq!((tally.read.ios, tally.read.bytes), (300, 300 * 4096));
}

#[test]
fn a_sequential_job_wraps_around_until_its_io_size() {
    let mut worker = worker(Work {
        random: false,
        ios_most: 25,
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
        kind: Kind::Mixed,
        read_percent: 70,
        lengths: [
            Lengths::Split(vec![(4096, 60), (65536, 40)]),
            Lengths::Range(4096, 16384),
        ],
        block_most: 65536,
        uniform: false,
        ios_most: 20_000,
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
    worker.run_out();
    assert!(worker.next().is_none());
    assert_eq!(worker.later(), None);
}

#[test]
fn written_blocks_are_read_back_and_a_changed_byte_is_detected() {
    let writing = Work {
        kind: Kind::Write,
        verify: Some((Verify::Crc32c, Vec::new())),
        ios_most: 7,
        ..work(10)
    };
    let mut writer = worker(writing.clone());
    let mut written_at: Vec<u64> = all(&mut writer).iter().map(|op| op.offset).collect();
    written_at.sort_unstable();
    let (_, written) = writer.into_parts();
    let mut reader = worker(Work {
        kind: Kind::Read,
        read_back: Some(Arc::new(written.unwrap())),
        ..writing
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
    let (tally, _) = reader.into_parts();
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
    let (tally, _) = worker.into_parts();
    assert_eq!((tally.wrong, tally.errors), (1, 1));
    assert!(
        tally
            .first_failure
            .unwrap()
            .contains("512 bytes instead of 4096")
    );
}

#[test]
fn a_pass_beside_other_work_is_warned_of() {
    let run = |repeat, variant: &str, others_busy| Run {
        repeat,
        position: 0,
        variant: variant.into(),
        job: "a".into(),
        job_index: 0,
        others_busy,
        stolen: 0.0,
        sample: None,
        reason: None,
        failed: false,
    };
    let quiet = run(1, OWN, 0.1);
    assert_eq!(super::disturbed(std::slice::from_ref(&quiet), 1), None);
    let warning = super::disturbed(&[quiet, run(1, "annulus", 0.9)], 1).unwrap();
    let start = "1 of 2 runs were disturbed (worst: annulus, all jobs, repeat 1: other processes or the kernel used 0.9";
    assert!(warning.starts_with(start), "{warning}");
    assert!(warning.ends_with("or use --repeat 3"), "{warning}");
}
