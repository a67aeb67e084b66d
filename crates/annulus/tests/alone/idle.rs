//! An idle engine sleeps: none of its threads is scheduled or uses the processor.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use annulus::engine::SqPoll;
use annulus::{Backend, Engine, EngineBuilder};
use annulus_testing::child_process::in_child;
use annulus_testing::skip::skip;

/// The time for which an idle engine is observed.
const LOOK: Duration = Duration::from_secs(1);
/// The maximum number of context switches of all threads together that counts as idle.
const SWITCHES_MAX: u64 = 2;
/// Spare threads may end in the first seconds; only a thread that never sleeps reaches this deadline.
const DEADLINE: Duration = Duration::from_secs(120);

/// The activity of a thread so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Done {
    name: String,
    switches: u64,
    ticks: u64,
}

/// Returns the activity of all other threads of this process.
fn others() -> BTreeMap<u32, Done> {
    let me = fs::read_link("/proc/thread-self").unwrap();
    let me: u32 = me.file_name().unwrap().to_str().unwrap().parse().unwrap();
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let ids = tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap());
    ids.filter(|&id| id != me)
        .filter_map(|id| Some((id, done(id)?)))
        .collect()
}

/// Returns the activity of a thread; `None` if it has ended.
fn done(id: u32) -> Option<Done> {
    let status = fs::read_to_string(format!("/proc/self/task/{id}/status")).ok()?;
    let switches = status.lines().filter(|line| line.contains("ctxt_switches"));
    let switches = switches
        .map(|line| line.rsplit('\t').next().unwrap().parse::<u64>().unwrap())
        .sum();
    let stat = fs::read_to_string(format!("/proc/self/task/{id}/stat")).ok()?;
    // "1 (name) S …"; utime and stime are the 14th and 15th fields, and the 12th and 13th after the name.
    let (name, rest) = stat.rsplit_once(')')?;
    let ticks = rest
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse::<u64>().unwrap())
        .sum();
    let name = name.split_once('(')?.1.to_owned();
    Some(Done {
        name,
        switches,
        ticks,
    })
}

/// Cached and uncached reads, writes and syncs, so that every kind of thread has worked.
async fn traffic(engine: &Engine) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("data");
    let file = engine.create(&path).await.unwrap();
    file.write_all_at(vec![1; 1 << 20], 0).await.unwrap();
    file.sync_all().await.unwrap();
    let file = engine.open(&path).await.unwrap();
    file.advise(0, 0, annulus::fs::Advice::DontNeed)
        .await
        .unwrap();
    for _ in 0..4 {
        for result in file
            .read_many_at((0..256).map(|page| (vec![0; 4096], page * 4096)))
            .await
        {
            result.unwrap();
        }
        engine.nop().await.unwrap();
    }
    engine.read_dir(dir.path()).await.unwrap();
    engine.sleep(Duration::from_millis(5)).await.unwrap();
    assert_eq!(file.close().await.unwrap(), annulus::fs::Closed::Now);
}

fn sleeps_when_idle(builder: EngineBuilder) {
    let engine = match builder.build() {
        Ok(engine) => engine,
        Err(error) => return skip(error),
    };
    pollster::block_on(traffic(&engine));
    let until = Instant::now() + DEADLINE;
    loop {
        let before = others();
        thread::sleep(LOOK);
        let after = others();
        let switches =
            |all: &BTreeMap<u32, Done>| all.values().map(|one| one.switches).sum::<u64>();
        let ticks = |all: &BTreeMap<u32, Done>| all.values().map(|one| one.ticks).sum::<u64>();
        let same = before.keys().eq(after.keys());
        if same
            && switches(&after) - switches(&before) <= SWITCHES_MAX
            && ticks(&after) == ticks(&before)
        {
            println!("asleep: {after:?}");
            break;
        }
        assert!(
            Instant::now() < until,
            "not asleep within {DEADLINE:?}: {before:?}, a second later {after:?}"
        );
    }
    // The engine still works.
    pollster::block_on(engine.nop()).unwrap();
}

#[test]
fn an_idle_ring_sleeps() {
    in_child("idle::an_idle_ring_sleeps", || {
        sleeps_when_idle(Engine::builder().backend(Backend::Uring))
    });
}

#[test]
fn idle_blocking_threads_sleep() {
    in_child("idle::idle_blocking_threads_sleep", || {
        sleeps_when_idle(Engine::builder().backend(Backend::Fallback))
    });
}

/// The kernel's polling thread belongs to this process, so it is observed with the others.
#[test]
fn a_submission_poller_sleeps_when_it_has_no_work() {
    in_child(
        "idle::a_submission_poller_sleeps_when_it_has_no_work",
        || {
            let builder = Engine::builder().backend(Backend::Uring).iopoll(true);
            sleeps_when_idle(builder.sqpoll(SqPoll::new()));
        },
    );
}
