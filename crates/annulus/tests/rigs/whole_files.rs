//! Copies, listings and small files, beside std, `cp` and `tokio::fs`; run by `bench/whole-files`.
//!
//! ```text
//! whole_files DIR ROUNDS [BYTES ENTRIES FILES]      by default 1 GiB, 100,000 and 10,000
//! ```
//!
//! The variants of a case run alternately. The table has the median time of each, and the ratio to the first inside a
//! round: the median and the extremes. A ratio above 1 means that the first is faster.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use annulus::Engine;

type Outcome<T> = Result<T, Box<dyn Error>>;
type Variant<'a> = (&'static str, Box<dyn Fn(&Path) -> Outcome<()> + 'a>);

/// The number of tasks that write small files.
const TASKS: usize = 64;
const SMALL_BYTES: usize = 1024;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (dir, rounds) = match &arguments[..] {
        [dir, rounds, ..] => (Path::new(dir), rounds.parse()?),
        _ => return Err("usage: whole_files DIR ROUNDS [BYTES ENTRIES FILES]".into()),
    };
    let number = |at: usize, usual: usize| -> Outcome<usize> {
        arguments
            .get(at)
            .map_or(Ok(usual), |text| Ok(text.parse()?))
    };
    let (bytes, entries, files) = (number(2, 1 << 30)?, number(3, 100_000)?, number(4, 10_000)?);
    let (dir, engine) = (tempfile::tempdir_in(dir)?, Engine::new()?);
    println!("{}", engine.backend());
    println!("| case | variant | median s | ratio to the first, extremes |");
    println!("|---|---|--:|--:|");

    copy(&engine, dir.path(), rounds, bytes)?;
    list(&engine, dir.path(), rounds, entries)?;
    write(&engine, dir.path(), rounds, files)
}

fn copy(engine: &Engine, dir: &Path, rounds: usize, bytes: usize) -> Outcome<()> {
    let from = dir.join("from");
    fs::write(&from, vec![7; bytes])?;
    fs::File::open(&from)?.sync_all()?;
    let copies: [Variant<'_>; 3] = [
        (
            "Annulus",
            Box::new(|to| Ok(pollster::block_on(engine.copy(&from, to)).map(drop)?)),
        ),
        ("std", Box::new(|to| Ok(fs::copy(&from, to).map(drop)?))),
        (
            "cp",
            Box::new(|to| match Command::new("cp").arg(&from).arg(to).status()? {
                status if status.success() => Ok(()),
                status => Err(format!("cp: {status}").into()),
            }),
        ),
    ];
    measure(&format!("copy of {bytes} bytes"), dir, rounds, &copies)?;
    fs::remove_file(&from)?;
    Ok(())
}

fn list(engine: &Engine, dir: &Path, rounds: usize, entries: usize) -> Outcome<()> {
    let listed = dir.join("listed");
    fs::create_dir(&listed)?;
    for number in 0..entries {
        fs::File::create(listed.join(format!("entry-{number:06}")))?;
    }
    let lists: [Variant<'_>; 2] = [
        (
            "Annulus",
            Box::new(|_| {
                pollster::block_on(async {
                    let (mut names, mut list) = (0, engine.read_dir(&listed));
                    while let Some(entry) = list.next().await {
                        names += usize::from(!entry?.name().is_empty());
                    }
                    complete(names, entries)
                })
            }),
        ),
        (
            "std",
            Box::new(|_| {
                let mut names = 0;
                for entry in fs::read_dir(&listed)? {
                    names += usize::from(!entry?.file_name().is_empty());
                }
                complete(names, entries)
            }),
        ),
    ];
    measure(
        &format!("listing of {entries} entries"),
        dir,
        rounds,
        &lists,
    )?;
    fs::remove_dir_all(&listed)?;
    Ok(())
}

fn write(engine: &Engine, dir: &Path, rounds: usize, files: usize) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let writes: [Variant<'_>; 4] = [
        (
            "Annulus",
            Box::new(|to| {
                let engine = engine.clone();
                runtime.block_on(in_tasks(to, files, move |path| {
                    let engine = engine.clone();
                    async move { engine.write(path, vec![7; SMALL_BYTES]).await }
                }))
            }),
        ),
        (
            "tokio::fs",
            Box::new(|to| {
                runtime.block_on(in_tasks(to, files, |path| {
                    tokio::fs::write(path, vec![7; SMALL_BYTES])
                }))
            }),
        ),
        ("std, one thread", Box::new(|to| in_threads(to, files, 1))),
        ("std, threads", Box::new(|to| in_threads(to, files, TASKS))),
    ];
    measure(&format!("{files} files of 1 KiB"), dir, rounds, &writes)
}

fn complete(found: usize, expected: usize) -> Outcome<()> {
    match found == expected {
        true => Ok(()),
        false => Err(format!("{found} of {expected} entries").into()),
    }
}

/// Writes files into the new directory `to`, in `TASKS` tasks.
async fn in_tasks<F>(
    to: &Path,
    files: usize,
    write: impl Fn(std::path::PathBuf) -> F + Clone + Send + 'static,
) -> Outcome<()>
where
    F: Future<Output = std::io::Result<()>> + Send + 'static,
{
    fs::create_dir(to)?;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let (to, write) = (to.to_owned(), write.clone());
        tasks.spawn(async move {
            for number in (task..files).step_by(TASKS) {
                write(to.join(format!("file-{number}"))).await?;
            }
            Ok::<(), std::io::Error>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

/// Writes files into the new directory `to`, in `threads` threads.
fn in_threads(to: &Path, files: usize, threads: usize) -> Outcome<()> {
    fs::create_dir(to)?;
    std::thread::scope(|scope| {
        let write = |thread| {
            (thread..files)
                .step_by(threads)
                .try_for_each(|n| fs::write(to.join(format!("file-{n}")), vec![7; SMALL_BYTES]))
        };
        let started: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || write(thread)))
            .collect();
        started
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap())
    })?;
    Ok(())
}

/// Runs the variants alternately, each with a new path, and prints their rows.
fn measure(case: &str, dir: &Path, rounds: usize, variants: &[Variant<'_>]) -> Outcome<()> {
    let mut times = vec![Vec::new(); variants.len()];
    for round in 0..rounds {
        // Each variant is the first in some rounds.
        for nth in 0..variants.len() {
            let variant = (round + nth) % variants.len();
            let to = dir.join(format!("to-{round}-{variant}"));
            let start = Instant::now();
            variants[variant].1(&to)?;
            times[variant].push(start.elapsed());
            // The next variant finds the disk idle.
            sync_disks();
            // Directories stay to the end: ext4 looks long for a free inode if many have just been freed.
            if to.is_file() {
                fs::remove_file(&to)?;
                sync_disks();
            }
        }
    }
    for ((name, _), own) in variants.iter().zip(&times) {
        let ratios = own.iter().zip(&times[0]);
        let ratios = sorted(ratios.map(|(own, first)| own.as_secs_f64() / first.as_secs_f64()));
        let seconds = sorted(own.iter().map(Duration::as_secs_f64));
        println!(
            "| {case} | {name} | {:.3} | {:.2}, {:.2} to {:.2} |",
            seconds[rounds / 2],
            ratios[rounds / 2],
            ratios[0],
            ratios[rounds - 1],
        );
    }
    Ok(())
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Writes everything to the disk.
fn sync_disks() {
    rustix::fs::sync();
}
