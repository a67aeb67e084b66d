//! Power failures: the simulated disk keeps the promises of `sync_all`, `sync_data` and durable writes, and no others.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use annulus::sim::{Errno, OpKind, Sim, SimConfig};
use annulus::{Engine, OpenOptions};

use crate::seeds::for_each_seed;

const RECORD_BYTES: usize = 700;

fn record(number: usize) -> Vec<u8> {
    vec![number as u8 + 1; RECORD_BYTES]
}

/// Appends records, and acknowledges each when it is durable.
async fn keep_log(
    engine: &Engine,
    durable_writes: bool,
    acknowledged: &Cell<usize>,
) -> io::Result<()> {
    let log = engine
        .open_with(OpenOptions::new().write(true), "/log")
        .await?;
    for number in 0..40 {
        let at = (number * RECORD_BYTES) as u64;
        if durable_writes {
            log.write_all_durable_at(record(number), at).await?;
        } else {
            log.write_all_at(record(number), at).await?;
            log.sync_data().await?;
        }
        acknowledged.set(number + 1);
    }
    Ok(())
}

#[test]
fn data_acknowledged_as_durable_survives_a_crash_at_any_point() {
    for_each_seed(100, |seed| {
        for durable_writes in [false, true] {
            let config = SimConfig::new(seed)
                .delays(Duration::from_micros(100))
                .short_transfers(200)
                .write_back(300)
                .errors(&[OpKind::Write, OpKind::Sync], Errno::Eintr, 50);
            let sim = Sim::new(config);
            sim.put("/log", "").unwrap();
            let acknowledged = Cell::new(0);
            let ended = sim.run_until_crash(seed, async |engine| {
                keep_log(&engine, durable_writes, &acknowledged)
                    .await
                    .unwrap();
            });
            assert!(ended.is_none() || acknowledged.get() == 40);
            let log = sim.contents("/log").unwrap();
            for number in 0..acknowledged.get() {
                let found = log.get(number * RECORD_BYTES..(number + 1) * RECORD_BYTES);
                assert_eq!(found, Some(record(number).as_slice()), "record {number}");
            }
            assert_eq!(sim.open_descriptors(), 0);
        }
    });
}

#[test]
fn unsynced_data_is_sometimes_lost_and_sometimes_kept() {
    let seen = RefCell::new(BTreeSet::new());
    for_each_seed(40, |seed| {
        let sim = Sim::new(SimConfig::new(seed));
        sim.put("/f", "").unwrap();
        sim.run(async |engine| {
            let file = engine
                .open_with(OpenOptions::new().write(true), "/f")
                .await
                .unwrap();
            file.write_all_at(vec![1; 1024], 0).await.unwrap();
        });
        assert_eq!(
            sim.contents("/f").unwrap(),
            [1; 1024],
            "before the crash programs see it"
        );
        sim.crash();
        let contents = sim.contents("/f").unwrap();
        let whole = |sector: &[u8]| sector.iter().all(|&byte| byte == sector[0]);
        assert!(contents.chunks(512).all(whole));
        let written = contents.iter().filter(|&&byte| byte == 1).count();
        seen.borrow_mut().insert((contents.len(), written));
    });
    let seen = seen.into_inner();
    assert!(
        seen.contains(&(0, 0)) && seen.contains(&(1024, 1024)),
        "{seen:?}"
    );
    assert!(
        seen.contains(&(1024, 512)),
        "half of a write may survive: {seen:?}"
    );
}

#[test]
fn a_new_name_is_durable_only_after_a_sync_of_its_directory() {
    let lost = Cell::new(0);
    for_each_seed(40, |seed| {
        for sync_dir in [false, true] {
            let sim = Sim::new(SimConfig::new(seed));
            sim.run(async |engine| {
                let file = engine.create("/new").await.unwrap();
                file.write_all_at("contents", 0).await.unwrap();
                file.sync_all().await.unwrap();
                if sync_dir {
                    engine.open("/").await.unwrap().sync_all().await.unwrap();
                }
            });
            sim.crash();
            match sim.contents("/new") {
                Ok(contents) => assert_eq!(contents, b"contents"),
                Err(error) => {
                    assert_eq!((error.kind(), sync_dir), (io::ErrorKind::NotFound, false));
                    lost.set(lost.get() + 1);
                }
            }
        }
    });
    assert!(lost.get() > 0, "a name without a sync was lost never");
}

/// Writes another file, syncs it, and renames it: at any moment the file is the old or the new one.
#[test]
fn a_file_replaced_by_rename_is_whole_after_a_crash_at_any_point() {
    for_each_seed(100, |seed| {
        let sim = Sim::new(
            SimConfig::new(seed)
                .delays(Duration::from_micros(100))
                .write_back(300),
        );
        sim.put("/f", vec![1; 2000]).unwrap();
        let renamed = Cell::new(false);
        sim.run_until_crash(seed % 8, async |engine| {
            let new = engine.create("/f.new").await.unwrap();
            new.write_all_at(vec![2; 3000], 0).await.unwrap();
            new.sync_all().await.unwrap();
            engine.rename("/f.new", "/f").await.unwrap();
            engine.open("/").await.unwrap().sync_all().await.unwrap();
            renamed.set(true);
        });
        let contents = sim.contents("/f").unwrap();
        let (old, new) = (vec![1; 2000], vec![2; 3000]);
        assert!(
            contents == new || contents == old && !renamed.get(),
            "{} bytes",
            contents.len()
        );
    });
}

/// Linux drops data that a failed fsync did not write: the next fsync succeeds and proves nothing.
#[test]
fn a_later_sync_does_not_repair_a_failed_one() {
    let failed = Cell::new(0);
    for_each_seed(60, |seed| {
        let sim = Sim::new(SimConfig::new(seed).errors(&[OpKind::Sync], Errno::Eio, 500));
        sim.put("/f", vec![1; 512]).unwrap();
        let first = sim.run(async |engine| {
            let file = engine
                .open_with(OpenOptions::new().write(true), "/f")
                .await
                .unwrap();
            file.write_all_at(vec![2; 512], 0).await.unwrap();
            let first = file.sync_all().await;
            while file.sync_all().await.is_err() {}
            first
        });
        sim.crash();
        let expected = if first.is_ok() { 2 } else { 1 };
        assert_eq!(sim.contents("/f").unwrap(), [expected; 512]);
        failed.set(failed.get() + u32::from(first.is_err()));
    });
    assert!(failed.get() > 0);
}

#[test]
fn a_crash_leaves_no_future_pending_and_nothing_open() {
    for_each_seed(60, |seed| {
        let sim = Sim::new(SimConfig::chaos(seed));
        sim.put("/f", vec![1; 10_000]).unwrap();
        let ended = sim.run_until_crash(10 + seed, async |engine| {
            let Ok(file) = engine.open("/f").await else {
                return;
            };
            loop {
                let reads = (0..50).map(|at| (vec![0; 100], at * 200));
                file.read_many_at(reads).await;
            }
        });
        assert!(ended.is_none() || seed > 0);
        let report = sim.report();
        assert_eq!(
            (
                report.slots_in_use,
                report.metrics.leaked,
                report.metrics.stale
            ),
            (0, 0, 0)
        );
        assert_eq!(sim.open_descriptors(), 0);
        assert_eq!(sim.contents("/f").unwrap(), [1; 10_000]);
    });
}
