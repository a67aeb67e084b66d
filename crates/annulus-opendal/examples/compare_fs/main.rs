//! Reads, writes and listings beside `services-fs`: time and CPU time, each in turns. Standard error has every run.
//!
//! `cargo run --release --manifest-path bench/Cargo.toml -p annulus-opendal --example compare_fs [FOLDER [ROUNDS]]`

use std::error::Error;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::TryStreamExt as _;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::resource::{UsageWho, getrusage};
use opendal::{Operator, services};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const BYTES: u64 = 1 << 30;
const BLOCK: u64 = 4096;
const CHUNK: usize = 4 << 20;
const FILES: u64 = 1000;
/// Concurrent ranges of one call.
const RANGES: u64 = 64;

#[derive(Clone, Copy)]
enum Load {
    /// Random blocks, by a number of tasks with a reader each.
    Blocks { tasks: u64, reads: u64 },
    /// `Reader::fetch` of random blocks.
    Ranges { calls: u64 },
    /// The whole file in chunks, one after another.
    Stream,
    /// New files of a length.
    Write { files: u64, bytes: usize },
    /// A folder of `FILES` files.
    List { times: u64 },
}

/// Name, what the time is of, whether the file is read from the drive, and the load.
const LOADS: [(&str, &str, bool, Load); 11] = [
    (
        "4 KiB, 1 task",
        "read",
        false,
        Load::Blocks {
            tasks: 1,
            reads: 40_000,
        },
    ),
    (
        "4 KiB, 64 tasks",
        "read",
        false,
        Load::Blocks {
            tasks: 64,
            reads: 40_000,
        },
    ),
    (
        "4 KiB, 1 task, cold",
        "read",
        true,
        Load::Blocks {
            tasks: 1,
            reads: 2_000,
        },
    ),
    (
        "4 KiB, 64 tasks, cold",
        "read",
        true,
        Load::Blocks {
            tasks: 64,
            reads: 20_000,
        },
    ),
    (
        "64 ranges of 4 KiB",
        "range",
        false,
        Load::Ranges { calls: 500 },
    ),
    (
        "64 ranges of 4 KiB, cold",
        "range",
        true,
        Load::Ranges { calls: 200 },
    ),
    ("1 GiB in chunks of 4 MiB", "MiB", false, Load::Stream),
    ("1 GiB in chunks of 4 MiB, cold", "MiB", true, Load::Stream),
    (
        "files of 4 KiB written",
        "file",
        false,
        Load::Write {
            files: FILES,
            bytes: 4096,
        },
    ),
    (
        "files of 64 MiB written",
        "file",
        false,
        Load::Write {
            files: 4,
            bytes: 64 << 20,
        },
    ),
    (
        "1,000 files listed",
        "file",
        false,
        Load::List { times: 20 },
    ),
];

fn cpu_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("the usage of the process");
    let time = |time: nix::sys::time::TimeVal| {
        let micros = time.tv_sec() * 1_000_000 + time.tv_usec();
        Duration::from_micros(micros.unsigned_abs())
    };
    time(usage.user_time()) + time(usage.system_time())
}

fn random_block(random: &mut fastrand::Rng) -> std::ops::Range<u64> {
    let offset = random.u64(..BYTES / BLOCK) * BLOCK;
    offset..offset + BLOCK
}

/// Runs a load, and returns how often it did what its time is of.
async fn run(operator: &Operator, load: Load) -> Result<u64> {
    match load {
        Load::Blocks { tasks, reads } => {
            let mut running = tokio::task::JoinSet::new();
            for task in 0..tasks {
                let reader = operator.reader("data").await?;
                running.spawn(async move {
                    let mut random = fastrand::Rng::with_seed(task);
                    for _ in 0..reads / tasks {
                        let read = reader.read(random_block(&mut random)).await?;
                        assert_eq!(read.len() as u64, BLOCK);
                    }
                    Ok::<_, opendal::Error>(())
                });
            }
            while let Some(task) = running.join_next().await {
                task??;
            }
            Ok(reads / tasks * tasks)
        }
        Load::Ranges { calls } => {
            let reader = operator
                .reader_with("data")
                .concurrent(RANGES as usize)
                .await?;
            let mut random = fastrand::Rng::with_seed(1);
            for _ in 0..calls {
                let ranges = (0..RANGES).map(|_| random_block(&mut random)).collect();
                let read = reader.fetch(ranges).await?;
                assert_eq!(
                    read.iter().map(|part| part.len() as u64).sum::<u64>(),
                    RANGES * BLOCK
                );
            }
            Ok(calls * RANGES)
        }
        Load::Stream => {
            let mut stream = operator
                .reader_with("data")
                .chunk(CHUNK)
                .await?
                .into_stream(..)
                .await?;
            let mut bytes = 0;
            while let Some(chunk) = stream.try_next().await? {
                bytes += chunk.len() as u64;
            }
            assert_eq!(bytes, BYTES);
            Ok(bytes >> 20)
        }
        Load::Write { files, bytes } => {
            let content = opendal::Buffer::from(vec![7; bytes]);
            for file in 0..files {
                operator
                    .write(&format!("written/{file}"), content.clone())
                    .await?;
            }
            Ok(files)
        }
        Load::List { times } => {
            for _ in 0..times {
                let listed = operator.list("many/").await?;
                assert!(listed.len() as u64 >= FILES);
            }
            Ok(times * FILES)
        }
    }
}

/// Returns the time and the CPU time of a run, µs.
async fn measured(operator: &Operator, root: &Path, cold: bool, load: Load) -> Result<[f64; 2]> {
    if cold {
        posix_fadvise(
            File::open(root.join("data"))?,
            0,
            0,
            PosixFadviseAdvice::POSIX_FADV_DONTNEED,
        )?;
    }
    if let Load::Write { .. } = load {
        let _ = std::fs::remove_dir_all(root.join("written"));
    }
    let (started, cpu) = (Instant::now(), cpu_time());
    let times = run(operator, load).await? as f64;
    Ok([started.elapsed(), cpu_time() - cpu].map(|time| time.as_secs_f64() * 1e6 / times))
}

/// Median and extremes.
fn spread(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    [
        values[values.len() / 2],
        values[0],
        values[values.len() - 1],
    ]
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().unwrap_or_else(|| ".".to_owned());
    let rounds: usize = arguments.next().map_or(Ok(7), |rounds| rounds.parse())?;
    let folder = tempfile::tempdir_in(folder)?;
    let root = folder
        .path()
        .to_str()
        .ok_or("the folder's name is no text")?;
    let theirs = Operator::new(services::Fs::default().root(root))?;
    let ours = Operator::new(annulus_opendal::Fs::default().root(root))?;
    let mut data = ours.writer_with("data").chunk(CHUNK).await?;
    for chunk in 0..BYTES / CHUNK as u64 {
        data.write(vec![chunk as u8; CHUNK]).await?;
    }
    data.close().await?;
    File::open(folder.path().join("data"))?.sync_all()?;
    for file in 0..FILES {
        ours.write(&format!("many/{file}"), "content").await?;
    }
    println!(
        "{}; {rounds} rounds: median (extremes)",
        annulus::tokio::fs::engine().backend()
    );
    println!(
        "| load | services-fs: µs (CPU µs) | ours: µs (CPU µs) | time | CPU time |\n|---|--:|--:|--:|--:|"
    );
    eprintln!("load\tper\tround\tservice\ttime_us\tcpu_us");
    for (name, of_what, cold, load) in LOADS {
        let mut both = Vec::new();
        // In turns; the first round warms up.
        for round in 0..=rounds {
            let mut figures = [[0.0; 2]; 2];
            for turn in [round % 2, 1 - round % 2] {
                let operator = [&theirs, &ours][turn];
                figures[turn] = measured(operator, folder.path(), cold, load).await?;
                let [time, cpu] = figures[turn];
                let service = ["services-fs", "ours"][turn];
                eprintln!("{name}\t{of_what}\t{round}\t{service}\t{time:.3}\t{cpu:.3}");
            }
            both.push(figures);
        }
        let of = |of: fn(&[[f64; 2]; 2]) -> f64| spread(both[1..].iter().map(of));
        let [time, cpu] = [
            of(|pair| pair[1][0] / pair[0][0]),
            of(|pair| pair[1][1] / pair[0][1]),
        ];
        println!(
            "| {name}, a {of_what} | {:.2} ({:.2}) | {:.2} ({:.2}) | {:.2} ({:.2}–{:.2}) | {:.2} ({:.2}–{:.2}) |",
            of(|pair| pair[0][0])[0],
            of(|pair| pair[0][1])[0],
            of(|pair| pair[1][0])[0],
            of(|pair| pair[1][1])[0],
            time[0],
            time[1],
            time[2],
            cpu[0],
            cpu[1],
            cpu[2],
        );
    }
    Ok(())
}
