//! `annulus::tokio::fs` beside `tokio::fs`: the same code with both, in alternating rounds; run by `bench/tokio-fs`.
//!
//! ```text
//! tokio_fs DIR ROUNDS [threads] [cold] [CASE]     CASE: a part of a case's name
//! ```
//!
//! - `threads`: without io_uring.
//! - `cold`: the files are not in the page cache when a round begins. Names and metadata are dropped, too, which needs
//!   root. Fewer operations, and each reads another part.
//!
//! The table has the median time of an operation with each, the ratio inside a round (the median and the extremes), and
//! the same ratio of the processor time of the process. A ratio above 1 means that Annulus is faster. The last columns
//! have how often a thread of the process waits for each operation, which hardly depends on the machine's load.
#![allow(unsafe_code)]

use std::error::Error;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use annulus::{Backend, Engine};

type Work = Pin<Box<dyn Future<Output = std::io::Result<()>> + Send>>;

/// A case: its name, the number of operations of a task, the number of tasks, and the work of a task.
struct Case {
    name: &'static str,
    operations: u32,
    tasks: u32,
    ours: fn(Arc<Files>, u32) -> Work,
    theirs: fn(Arc<Files>, u32) -> Work,
}

const PAGE: usize = 4096;
/// The size of the file that is read in parts, bytes.
const LARGE_BYTES: usize = 64 << 20;
/// The number of files of 4 KiB, which are also the entries of a directory.
const SMALL: u32 = 10_000;

/// The number of files of 64 KiB.
const MEDIUM: u32 = 256;
/// The part of the large file that a task reads as a stream, bytes.
const PART_BYTES: u64 = 512 << 10;

/// The files of all cases.
struct Files {
    dir: PathBuf,
    large: PathBuf,
    lines: PathBuf,
    big: PathBuf,
    /// The number of operations that have taken their file or place in a round.
    taken: AtomicU32,
}

impl Files {
    fn create(dir: &Path) -> std::io::Result<Files> {
        let files = Files {
            dir: dir.to_owned(),
            large: dir.join("large"),
            lines: dir.join("lines"),
            big: dir.join("big"),
            taken: AtomicU32::new(0),
        };
        std::fs::write(&files.large, vec![7; LARGE_BYTES])?;
        std::fs::write(
            &files.lines,
            "a line of forty bytes, with its newline\n".repeat(100_000),
        )?;
        std::fs::create_dir(dir.join("medium"))?;
        (0..MEDIUM).try_for_each(|nth| std::fs::write(files.medium(nth), vec![7; 64 << 10]))?;
        std::fs::write(&files.big, vec![7; 16 << 20])?;
        std::fs::create_dir(dir.join("small"))?;
        (0..SMALL).try_for_each(|nth| std::fs::write(files.small(nth), [7; PAGE]))?;
        Ok(files)
    }

    fn small(&self, nth: u32) -> PathBuf {
        self.dir.join("small").join(format!("{:05}", nth % SMALL))
    }

    fn medium(&self, nth: u32) -> PathBuf {
        self.dir.join("medium").join(format!("{:03}", nth % MEDIUM))
    }

    /// Returns the number of an operation among those of all tasks.
    fn next(&self) -> u32 {
        self.taken.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes all files out of the page cache, and the names and metadata out of the kernel's memory.
    fn drop_from_cache(&self) -> std::io::Result<()> {
        let small = (0..SMALL).map(|nth| self.small(nth));
        let medium = (0..MEDIUM).map(|nth| self.medium(nth));
        let others = [&self.large, &self.lines, &self.big].map(PathBuf::clone);
        for path in small.chain(medium).chain(others) {
            let file = std::fs::File::open(path)?;
            // SAFETY: the descriptor is open.
            let res =
                unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
            if res != 0 {
                return Err(std::io::Error::from_raw_os_error(res));
            }
        }
        std::fs::write("/proc/sys/vm/drop_caches", "2")
    }
}

/// The work with one of the two modules.
macro_rules! work {
    ($module:ident, $($fs:ident)::+) => {
        mod $module {
            use std::io::SeekFrom;
            use std::sync::Arc;

            use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncSeekExt, AsyncWriteExt, BufReader};

            use super::{Files, LARGE_BYTES, PAGE, PART_BYTES, Work};
            use $($fs)::+ as fs;

            pub(super) fn pages(files: Arc<Files>, operations: u32) -> Work {
                Box::pin(async move {
                    let mut file = fs::File::open(&files.large).await?;
                    let mut page = [0; PAGE];
                    for _ in 0..operations {
                        let at = u64::from(files.next()) * 7919 * PAGE as u64 % LARGE_BYTES as u64;
                        file.seek(SeekFrom::Start(at)).await?;
                        file.read_exact(&mut page).await?;
                    }
                    Ok(())
                })
            }

            pub(super) fn read_small(files: Arc<Files>, operations: u32) -> Work {
                Box::pin(async move {
                    for _ in 0..operations {
                        fs::read(files.small(files.next() * 61)).await?;
                    }
                    Ok(())
                })
            }

            pub(super) fn read_medium(files: Arc<Files>, operations: u32) -> Work {
                Box::pin(async move {
                    for _ in 0..operations {
                        fs::read(files.medium(files.next() * 61)).await?;
                    }
                    Ok(())
                })
            }

            pub(super) fn open_and_read(files: Arc<Files>, operations: u32) -> Work {
                Box::pin(async move {
                    for _ in 0..operations {
                        let mut file = fs::File::open(files.small(files.next() * 61)).await?;
                        file.read_exact(&mut [0; PAGE]).await?;
                    }
                    Ok(())
                })
            }

            pub(super) fn read_big(files: Arc<Files>, operations: u32) -> Work {
                Box::pin(async move {
                    for _ in 0..operations {
                        fs::read(&files.big).await?;
                    }
                    Ok(())
                })
            }

            pub(super) fn write_small(files: Arc<Files>, operations: u32) -> Work {
                Box::pin(async move {
                    for _ in 0..operations {
                        fs::write(files.small(files.next()), [7; PAGE]).await?;
                    }
                    Ok(())
                })
            }

            pub(super) fn stream_8k(files: Arc<Files>, operations: u32) -> Work {
                Box::pin(stream(files, operations, 8 << 10))
            }

            pub(super) fn stream_128k(files: Arc<Files>, operations: u32) -> Work {
                Box::pin(stream(files, operations, 128 << 10))
            }

            async fn stream(files: Arc<Files>, operations: u32, bytes: usize) -> std::io::Result<()> {
                let mut file = fs::File::open(&files.large).await?;
                let at = u64::from(files.next()) * PART_BYTES;
                file.seek(SeekFrom::Start(at)).await?;
                let mut buf = vec![0; bytes];
                for _ in 0..operations {
                    file.read_exact(&mut buf).await?;
                }
                Ok(())
            }

            pub(super) fn append(files: Arc<Files>, operations: u32) -> Work {
                Box::pin(async move {
                    let mut file = fs::File::create(files.dir.join("appended")).await?;
                    for _ in 0..operations {
                        file.write_all(&[7; 8 << 10]).await?;
                    }
                    file.flush().await
                })
            }

            pub(super) fn log(files: Arc<Files>, operations: u32) -> Work {
                Box::pin(async move {
                    let mut file = fs::File::create(files.dir.join("log")).await?;
                    for _ in 0..operations {
                        file.write_all(&[7; 100]).await?;
                        file.flush().await?;
                    }
                    Ok(())
                })
            }

            pub(super) fn lines(files: Arc<Files>, _: u32) -> Work {
                Box::pin(async move {
                    let mut lines = BufReader::new(fs::File::open(&files.lines).await?).lines();
                    while lines.next_line().await?.is_some() {}
                    Ok(())
                })
            }

            pub(super) fn list(files: Arc<Files>, _: u32) -> Work {
                Box::pin(async move {
                    let mut entries = fs::read_dir(files.dir.join("small")).await?;
                    while entries.next_entry().await?.is_some() {}
                    Ok(())
                })
            }

            pub(super) fn metadata(files: Arc<Files>, operations: u32) -> Work {
                Box::pin(async move {
                    for _ in 0..operations {
                        fs::metadata(files.small(files.next() * 61)).await?;
                    }
                    Ok(())
                })
            }

            pub(super) fn copy_medium(files: Arc<Files>, operations: u32) -> Work {
                Box::pin(async move {
                    for _ in 0..operations {
                        let from = files.medium(files.next() * 61);
                        fs::copy(from, files.dir.join("copy")).await?;
                    }
                    Ok(())
                })
            }

            pub(super) fn rename(files: Arc<Files>, operations: u32) -> Work {
                Box::pin(async move {
                    let (one, other) = (files.dir.join("one"), files.dir.join("other"));
                    fs::write(&one, "").await?;
                    for _ in 0..operations / 2 {
                        fs::rename(&one, &other).await?;
                        fs::rename(&other, &one).await?;
                    }
                    fs::remove_file(&one).await
                })
            }
        }
    };
}

work!(ours, annulus::tokio::fs);
work!(theirs, tokio::fs);

macro_rules! cases {
    ($($name:literal: $work:ident, $operations:literal operations, $tasks:literal tasks;)*) => {
        [$(Case {
            name: $name,
            operations: $operations,
            tasks: $tasks,
            ours: ours::$work,
            theirs: theirs::$work,
        }),*]
    };
}

/// The cases of files that are not in the page cache.
const COLD: [Case; 18] = cases! {
    "cold: seek and read of 4 KiB": pages, 400 operations, 1 tasks;
    "cold: seek and read of 4 KiB": pages, 32 operations, 64 tasks;
    "cold: whole file of 4 KiB": read_small, 400 operations, 1 tasks;
    "cold: whole file of 4 KiB": read_small, 32 operations, 64 tasks;
    "cold: whole file of 64 KiB": read_medium, 256 operations, 1 tasks;
    "cold: whole file of 64 KiB": read_medium, 4 operations, 64 tasks;
    "cold: whole file of 16 MiB": read_big, 1 operations, 1 tasks;
    "cold: open and read of 4 KiB": open_and_read, 400 operations, 1 tasks;
    "cold: open and read of 4 KiB": open_and_read, 32 operations, 64 tasks;
    "cold: AsyncRead by 8 KiB": stream_8k, 4000 operations, 1 tasks;
    "cold: AsyncRead by 8 KiB": stream_8k, 64 operations, 64 tasks;
    "cold: AsyncRead by 128 KiB": stream_128k, 400 operations, 1 tasks;
    "cold: AsyncRead by 128 KiB": stream_128k, 4 operations, 64 tasks;
    "cold: lines of 4 MB": lines, 1 operations, 1 tasks;
    "cold: metadata": metadata, 2000 operations, 1 tasks;
    "cold: metadata": metadata, 60 operations, 64 tasks;
    "cold: read_dir of 10,000": list, 1 operations, 1 tasks;
    "cold: copy of 64 KiB": copy_medium, 256 operations, 1 tasks;
};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (dir, rounds): (_, u32) = match &arguments[..] {
        [dir, rounds, ..] => (Path::new(dir), rounds.parse()?),
        _ => return Err("usage: tokio_fs DIR ROUNDS [threads] [cold] [CASE]".into()),
    };
    let mut options = arguments[2..].to_vec();
    let mut takes = |word: &str| {
        let before = options.len();
        options.retain(|option| option != word);
        options.len() < before
    };
    let (without_rings, is_cold) = (takes("threads"), takes("cold"));
    let part = options.first();
    if without_rings {
        let engine = Engine::builder().backend(Backend::Fallback);
        annulus::tokio::fs::set_engine(engine.build()?)?;
    }
    let dir = tempfile::tempdir_in(dir)?;
    let files = Arc::new(Files::create(&dir.path().canonicalize()?)?);
    // Pages that wait for their write stay in the cache.
    // SAFETY: has no arguments.
    unsafe { libc::sync() };
    println!("{}", annulus::tokio::fs::engine().backend());
    println!(
        "| case | tasks | Annulus, µs | Tokio, µs | ratio | extremes | CPU ratio | extremes | waits of Annulus | of Tokio |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    let cached = cases! {
        "seek and read of 4 KiB": pages, 4000 operations, 1 tasks;
        "seek and read of 4 KiB": pages, 100 operations, 64 tasks;
        "whole file of 4 KiB": read_small, 2000 operations, 1 tasks;
        "whole file of 4 KiB": read_small, 50 operations, 64 tasks;
        "whole file of 64 KiB": read_medium, 1000 operations, 1 tasks;
        "whole file of 64 KiB": read_medium, 20 operations, 64 tasks;
        "whole file of 16 MiB": read_big, 10 operations, 1 tasks;
        "AsyncRead by 8 KiB": stream_8k, 8000 operations, 1 tasks;
        "AsyncRead by 8 KiB": stream_8k, 200 operations, 64 tasks;
        "AsyncRead by 128 KiB": stream_128k, 500 operations, 1 tasks;
        "AsyncRead by 128 KiB": stream_128k, 20 operations, 64 tasks;
        "lines of 4 MB": lines, 1 operations, 1 tasks;
        "AsyncWrite by 8 KiB": append, 2000 operations, 1 tasks;
        "line of 100 bytes, flushed": log, 1000 operations, 1 tasks;
        "write of a file of 4 KiB": write_small, 1000 operations, 1 tasks;
        "write of a file of 4 KiB": write_small, 20 operations, 64 tasks;
        "metadata": metadata, 10000 operations, 1 tasks;
        "metadata": metadata, 200 operations, 64 tasks;
        "read_dir of 10,000": list, 1 operations, 1 tasks;
        "copy of 64 KiB": copy_medium, 300 operations, 1 tasks;
        "rename": rename, 1000 operations, 1 tasks;
    };
    let cases = if is_cold { &COLD[..] } else { &cached };
    for case in cases {
        if part.is_none_or(|part| case.name.contains(part)) {
            report(case, &files, rounds, is_cold)?;
        }
    }
    Ok(())
}

/// The time of an operation and the processor time of the process for it, µs, and the waits of its threads.
type Costs = [f64; 3];

/// Returns the time and the processor time of the process, µs, and how often its threads have waited.
fn now() -> Costs {
    let [now, cpu] = [libc::CLOCK_MONOTONIC, libc::CLOCK_PROCESS_CPUTIME_ID].map(|clock| {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: `time` outlives the call.
        unsafe { libc::clock_gettime(clock, &raw mut time) };
        time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
    });
    // SAFETY: all-zero bytes are a valid `rusage`.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` outlives the call.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    [now, cpu, usage.ru_nvcsw as f64]
}

/// Runs the tasks of a case.
fn run(
    case: &Case,
    files: &Arc<Files>,
    work: fn(Arc<Files>, u32) -> Work,
    is_cold: bool,
) -> std::io::Result<Costs> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        // The first operations of a runtime start its threads and rings.
        tokio::spawn(work(Arc::clone(files), case.operations.min(10))).await??;
        files.taken.store(0, Ordering::Relaxed);
        if is_cold {
            files.drop_from_cache()?;
        }
        let begun = now();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..case.tasks {
            tasks.spawn(work(Arc::clone(files), case.operations));
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        let (ended, operations) = (now(), f64::from(case.operations * case.tasks));
        Ok([0, 1, 2].map(|cost| (ended[cost] - begun[cost]) / operations))
    })
}

fn report(case: &Case, files: &Arc<Files>, rounds: u32, is_cold: bool) -> std::io::Result<()> {
    let mut columns = [const { Vec::new() }; 6];
    for round in 0..rounds {
        let mut works = [case.ours, case.theirs];
        // Each is first in every other round.
        works.rotate_left((round % 2) as usize);
        let [one, other] = works;
        let mut costs = [
            run(case, files, one, is_cold)?,
            run(case, files, other, is_cold)?,
        ];
        costs.rotate_left((round % 2) as usize);
        let [ours, theirs] = costs;
        let ratios = [theirs[0] / ours[0], theirs[1] / ours[1]];
        let row = [ours[0], theirs[0], ratios[0], ratios[1], ours[2], theirs[2]];
        (columns.iter_mut().zip(row)).for_each(|(column, value)| column.push(value));
    }
    columns
        .iter_mut()
        .for_each(|column| column.sort_by(f64::total_cmp));
    let median = |column: usize| columns[column][columns[column].len() / 2];
    let extremes = |column: usize| {
        let column = &columns[column];
        format!("{:.2}–{:.2}", column[0], column[column.len() - 1])
    };
    println!(
        "| {} | {} | {:.1} | {:.1} | {:.2} | {} | {:.2} | {} | {:.2} | {:.2} |",
        case.name,
        case.tasks,
        median(0),
        median(1),
        median(2),
        extremes(2),
        median(3),
        extremes(3),
        median(4),
        median(5),
    );
    Ok(())
}
