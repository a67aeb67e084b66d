//! Reads of 4 KiB from a cached file, beside `services-fs`: time and CPU time per read.
//!
//! `cargo run --release --manifest-path bench/Cargo.toml -p annulus-opendal --example compare_fs [FOLDER]`

use std::error::Error;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use opendal::{Operator, services};

const BYTES: u64 = 64 << 20;
const BLOCK: u64 = 4096;
const ROUNDS: usize = 7;
/// Reads of a run, of all tasks.
const READS: u64 = 40_000;

fn cpu_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("the usage of the process");
    let time = |time: nix::sys::time::TimeVal| {
        let micros = time.tv_sec() * 1_000_000 + time.tv_usec();
        Duration::from_micros(micros.unsigned_abs())
    };
    time(usage.user_time()) + time(usage.system_time())
}

/// Returns the time and the CPU time of a read, µs.
async fn run(operator: &Operator, tasks: u64) -> Result<[f64; 2], Box<dyn Error>> {
    let (started, cpu) = (Instant::now(), cpu_time());
    let mut running = tokio::task::JoinSet::new();
    for task in 0..tasks {
        let reader = operator.reader("data").await?;
        running.spawn(async move {
            let mut random = fastrand::Rng::with_seed(task);
            for _ in 0..READS / tasks {
                let offset = random.u64(..BYTES / BLOCK) * BLOCK;
                let read = reader.read(offset..offset + BLOCK).await?;
                assert_eq!(read.len() as u64, BLOCK);
            }
            Ok::<_, opendal::Error>(())
        });
    }
    while let Some(task) = running.join_next().await {
        task??;
    }
    let reads = (READS / tasks * tasks) as f64;
    Ok([started.elapsed(), cpu_time() - cpu].map(|time| time.as_secs_f64() * 1e6 / reads))
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    let folder = tempfile::tempdir_in(folder)?;
    let root = folder
        .path()
        .to_str()
        .ok_or("the folder's name is no text")?;
    let theirs = Operator::new(services::Fs::default().root(root))?;
    let ours = Operator::new(annulus_opendal::Fs::default().root(root))?;
    ours.write("data", vec![7; usize::try_from(BYTES)?]).await?;
    println!("{}", annulus::tokio::fs::engine().backend());
    println!(
        "| tasks | services-fs: µs (CPU µs) | ours: µs (CPU µs) | time | CPU time |\n|--:|--:|--:|--:|--:|"
    );
    for tasks in [1, 64] {
        let mut rounds = Vec::new();
        for round in 0..=ROUNDS {
            // In turns; the first round warms up.
            let both = match round % 2 {
                0 => (run(&theirs, tasks).await?, run(&ours, tasks).await?),
                _ => {
                    let ours = run(&ours, tasks).await?;
                    (run(&theirs, tasks).await?, ours)
                }
            };
            rounds.push(both);
        }
        let rounds = &rounds[1..];
        let of = |of: fn(&([f64; 2], [f64; 2])) -> f64| median(rounds.iter().map(of));
        println!(
            "| {tasks} | {:.2} ({:.2}) | {:.2} ({:.2}) | {:.2} | {:.2} |",
            of(|round| round.0[0]),
            of(|round| round.0[1]),
            of(|round| round.1[0]),
            of(|round| round.1[1]),
            of(|round| round.1[0] / round.0[0]),
            of(|round| round.1[1] / round.0[1]),
        );
    }
    Ok(())
}
