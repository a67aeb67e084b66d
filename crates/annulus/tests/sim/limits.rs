//! The limits of a driver's operations in the kernel, their order, and merged reads.

use std::time::Duration;

use annulus::Engine;
use annulus::fs::Merge;
use annulus::sim::{Event, EventKind, OpKind, Sim, SimConfig, spawn};

use crate::seeds::for_each_seed;

/// Returns a simulation with a file of `bytes` bytes that depend on their offset.
fn machine(config: SimConfig, bytes: usize) -> Sim {
    let sim = Sim::new(config);
    sim.put(
        "/f",
        (0..bytes).map(|at| (at / 512) as u8).collect::<Vec<u8>>(),
    )
    .unwrap();
    sim
}

fn started_reads(sim: &Sim) -> Vec<Event> {
    let is_read = |event: &Event| event.what == EventKind::Started && event.kind == OpKind::Read;
    sim.trace().into_iter().filter(is_read).collect()
}

#[test]
fn no_more_operations_are_in_flight_than_allowed() {
    for_each_seed(20, |seed| {
        let config = SimConfig::chaos(seed).queues(8, 16);
        let sim = machine(config, 512 * 300);
        let builder = Engine::builder().max_in_flight(7);
        sim.run_with(&builder, async |engine| {
            let Ok(file) = engine.open("/f").await else {
                return;
            };
            let lone: Vec<_> = (0..20)
                .map(|at| {
                    let file = file.clone();
                    spawn(async move { file.read_exact_at(vec![0; 512], at * 512).await.is_ok() })
                })
                .collect();
            let all = file
                .read_many_at((0..300).map(|at| (vec![0; 512], at * 512)))
                .await;
            assert_eq!(all.len(), 300);
            for task in lone {
                task.await;
            }
        });
        let most = sim.high_water().operations;
        assert!(most <= 7, "{most} operations in flight");
        assert!(
            most == 7 || started_reads(&sim).len() < 100,
            "the limit is made use of"
        );
    });
}

#[test]
fn no_more_bytes_are_in_flight_than_allowed_but_a_larger_operation_runs_alone() {
    for_each_seed(20, |seed| {
        let sim = machine(
            SimConfig::new(seed).delays(Duration::from_micros(100)),
            100_000,
        );
        let builder = Engine::builder().max_in_flight_bytes(10_000);
        sim.run_with(&builder, async |engine| {
            let file = engine.open("/f").await.unwrap();
            let reads = (0..100).map(|at| (vec![0; 1 + (at * 37) as usize % 5000], at * 900));
            for read in file.read_many_at(reads).await {
                read.unwrap();
            }
        });
        let high = sim.high_water();
        assert!(high.bytes <= 10_000, "{high:?}");
        assert!(high.operations > 1 && high.bytes > 5000, "{high:?}");
        sim.run_with(&builder, async |engine| {
            let file = engine.open("/f").await.unwrap();
            let (large, small) = (file.clone(), file.clone());
            let large = spawn(async move { large.read_exact_at(vec![0; 60_000], 0).await.is_ok() });
            let small = spawn(async move { small.read_exact_at(vec![0; 100], 0).await.is_ok() });
            assert!(large.await && small.await);
        });
        assert_eq!(sim.high_water().bytes, 60_000, "alone");
    });
}

/// Operations of a batch and single ones alternate: a batch of ten thousand does not delay a single read by thousands.
#[test]
fn a_lone_read_is_not_kept_waiting_by_a_batch_of_ten_thousand() {
    for_each_seed(10, |seed| {
        const LONE: u64 = 512 * 9_999;
        let sim = machine(
            SimConfig::new(seed).delays(Duration::from_micros(100)),
            512 * 10_000,
        );
        let builder = Engine::builder().max_in_flight(16);
        sim.run_with(&builder, async |engine| {
            let file = engine.open("/f").await.unwrap();
            let theirs = file.clone();
            let batch = spawn(async move {
                let reads = (0..10_000).map(|at| (vec![0; 16], at * 512 % LONE));
                theirs
                    .read_many_at(reads)
                    .await
                    .into_iter()
                    .filter(|read| read.is_ok())
                    .count()
            });
            engine
                .sleep(Duration::from_micros(500 + seed * 50))
                .await
                .unwrap();
            let before = started_reads(&sim).len();
            file.read_exact_at(vec![0; 16], LONE).await.unwrap();
            let reads = started_reads(&sim);
            let overtaken = reads.iter().position(|read| read.offset == LONE).unwrap() - before;
            assert!(overtaken < 200, "{overtaken} reads of the batch came first");
            assert_eq!(batch.await, 10_000);
        });
    });
}

#[test]
fn operations_are_issued_in_the_order_of_submission() {
    for_each_seed(10, |seed| {
        let config = SimConfig::new(seed)
            .delays(Duration::from_micros(100))
            .reordering(500)
            .queues(4, 64);
        let sim = machine(config, 512 * 100);
        sim.run(async |engine| {
            let file = engine.open("/f").await.unwrap();
            file.read_many_at((0..100).map(|at| (vec![0; 512], at * 512)))
                .await;
        });
        let offsets: Vec<u64> = started_reads(&sim).iter().map(|read| read.offset).collect();
        assert!(offsets.is_sorted(), "{offsets:?}");
    });
}

#[test]
fn neighbouring_ranges_become_one_transfer_and_short_transfers_are_made_whole() {
    for_each_seed(50, |seed| {
        for short in [0, 500] {
            let sim = machine(SimConfig::new(seed).short_transfers(short), 512 * 64);
            sim.run(async |engine| {
                let file = engine.open("/f").await.unwrap();
                // In descending order, with a gap in the middle; the last one is beyond the end.
                let blocks = (0..16)
                    .chain(40..65)
                    .rev()
                    .map(|block| (vec![0xee; 512], block * 512));
                let merged = file.read_many_at(blocks).merge(Merge::new(0, 1 << 20));
                assert_eq!(merged.transfers(), 2);
                for (block, result) in (0..16).chain(40..65).rev().zip(merged.await) {
                    let (n, buf) = result.unwrap();
                    assert_eq!(n, if block == 64 { 0 } else { 512 }, "block {block}");
                    assert!(
                        buf[..n].iter().all(|&byte| byte == block as u8),
                        "block {block}"
                    );
                }
            });
            let transfers = started_reads(&sim);
            assert!(
                if short == 0 {
                    transfers.len() == 3
                } else {
                    transfers.len() >= 3
                },
                "{transfers:?}"
            );
        }
    });
}
