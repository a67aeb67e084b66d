//! Snapshots of another process. Its counters are in a file of memory, which is found among its descriptors and read
//! like any other file. It is not mapped, and its contents are not trusted.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use annulus::metrics::layout::{
    self, FILE_NAME, HEAD_WORDS, HEADER_LEASE, HEADER_MOVES, HEADER_NAMES, HEADER_PROCESS,
    HEADER_RECORDS, HEADER_SAYS, HEADER_VERSION, HEADER_WORDS, MAGIC, RECORDS_MAX, WORDS,
};
use annulus::metrics::{Snapshot, Source, SourceKind};

/// How long a process records latencies after a snapshot of it was taken.
const LEASE_NS: u64 = 10_000_000_000;
/// The error of `/proc` for a process that ends meanwhile.
const ESRCH: i32 = 3;
/// How many times the sources are read if each time one ends meanwhile.
const ATTEMPTS_MAX: u32 = 16;

/// Returns the counters of another process that [shares](annulus::metrics::share) them. The process may be in another
/// container. It must belong to the same user, unless this process is root's.
///
/// That process records latencies for the next 10 s. A caller that takes snapshots more often sees all of them.
///
/// # Errors
///
/// `NotFound`: there is no such process. `PermissionDenied`: it may not be looked at. `Unsupported`: it shares nothing.
/// `InvalidData`: it was built with a version of Annulus that counts in another layout. Each message says what to do.
pub fn snapshot_of(process: u32) -> io::Result<Snapshot> {
    let now = layout::now_ns();
    let mut all: Vec<Source> = Vec::new();
    for file in shared_files(process)? {
        begin(process, &file, now)?;
        for source in sources(&file)? {
            match all.iter_mut().find(|one| ended(one) && ended(&source)) {
                Some(one) => one.add(&source),
                None => all.push(source),
            }
        }
    }
    let mut snapshot = Snapshot::default();
    (snapshot.process, snapshot.at_ns) = (process, now);
    snapshot.sources = layout::in_order(all);
    snapshot.kernel_workers = layout::kernel_workers(&format!("/proc/{process}/task"));
    Ok(snapshot)
}

fn ended(source: &Source) -> bool {
    source.kind == SourceKind::Ended
}

/// Checks that the layout is that of this program, and has the process record latencies.
fn begin(process: u32, file: &File, now: u64) -> io::Result<()> {
    let says = words(file, 0, HEADER_SAYS)?;
    let differs = if says[HEADER_VERSION] != layout::VERSION {
        let (theirs, ours) = (says[HEADER_VERSION], layout::VERSION);
        Some(format!(
            "in layout {theirs}, and this program reads layout {ours}"
        ))
    } else if says[HEADER_WORDS] != WORDS as u64 || says[HEADER_NAMES] != layout::names() {
        Some("other operations, calls or reasons than this program knows".to_owned())
    } else {
        None
    };
    if let Some(differs) = differs {
        let what = format!(
            "process {process} was built with another version of Annulus: it counts {differs}; look at it with \
             the `annulus` of that version"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    // This fails if the file may only be read. Then the process records latencies only if another reader requests it.
    if says[HEADER_LEASE] < now + LEASE_NS {
        let lease = (now + LEASE_NS).to_ne_bytes();
        let _ = file.write_at(&lease, (HEADER_LEASE * size_of::<u64>()) as u64);
    }
    Ok(())
}

/// Reads all sources. One that ends meanwhile is counted exactly once.
fn sources(file: &File) -> io::Result<Vec<Source>> {
    let mut attempts = 0;
    loop {
        let before = words(file, 0, HEADER_SAYS)?;
        let indices = usize::try_from(before[HEADER_RECORDS])
            .map_or(RECORDS_MAX, |count| count.min(RECORDS_MAX));
        let mut sources = Vec::new();
        for index in 0..indices {
            let offset = layout::offset_of(index);
            let head = words(file, offset, HEAD_WORDS)?;
            let fetch = |from: usize, count: usize| {
                words(file, offset + (from * size_of::<u64>()) as u64, count).ok()
            };
            sources.extend(layout::read(&head, fetch));
        }
        let after = words(file, 0, HEADER_SAYS)?;
        attempts += 1;
        let whole = before[HEADER_MOVES] == after[HEADER_MOVES]
            && before[HEADER_MOVES].is_multiple_of(2)
            && before[HEADER_RECORDS] == after[HEADER_RECORDS];
        // A process that was killed while it moved counts leaves that word odd.
        if whole || attempts >= ATTEMPTS_MAX {
            return Ok(sources);
        }
    }
}

/// Returns whether a word of the header is not 0.
pub(crate) fn is_set(file: &File, word: usize) -> io::Result<bool> {
    let offset = (word * size_of::<u64>()) as u64;
    Ok(words(file, offset, 1)?[0] != 0)
}

fn words(file: &File, offset: u64, count: usize) -> io::Result<Vec<u64>> {
    let mut bytes = vec![0; count * size_of::<u64>()];
    file.read_exact_at(&mut bytes, offset)?;
    let (words, _) = bytes.as_chunks();
    Ok(words.iter().map(|word| u64::from_ne_bytes(*word)).collect())
}

/// Opens the files that `process` shares. A program with Annulus in it has one, and under the preload library a second.
pub(crate) fn shared_files(process: u32) -> io::Result<Vec<File>> {
    let (mut files, mut inodes) = (Vec::new(), Vec::new());
    let folder = format!("/proc/{process}/fd");
    let entries = fs::read_dir(&folder).map_err(|error| explain(process, &error))?;
    let named = format!("/memfd:{FILE_NAME}");
    for entry in entries {
        let path = entry.map_err(|error| explain(process, &error))?.path();
        // A descriptor that was closed meanwhile is skipped.
        let is_named = fs::read_link(&path).is_ok_and(|target| {
            let target = target.to_string_lossy().into_owned();
            target.strip_suffix(" (deleted)").unwrap_or(&target) == named
        });
        if !is_named {
            continue;
        }
        let opened = File::options().read(true).write(true).open(&path);
        let file = opened
            .or_else(|_| File::open(&path))
            .map_err(|error| explain(process, &error))?;
        let Ok(says) = words(&file, 0, HEADER_SAYS) else {
            continue;
        };
        // A child of a fork has its parent's file as well.
        if says[0] == MAGIC && pids_of(process).contains(&says[HEADER_PROCESS]) {
            // The file may have several descriptors.
            let inode = file.metadata()?.ino();
            if !inodes.contains(&inode) {
                inodes.push(inode);
                files.push(file);
            }
        }
    }
    if !files.is_empty() {
        return Ok(files);
    }
    let what = format!(
        "process {process} shares no metrics: it is no program with Annulus in it, or one that does not call \
         annulus::metrics::share() when it starts; `annulus serve` and `annulus bench` do, and a program under \
         `annulus run` once it has a ring"
    );
    Err(io::Error::new(io::ErrorKind::Unsupported, what))
}

fn explain(process: u32, error: &io::Error) -> io::Error {
    let what = match error.kind() {
        io::ErrorKind::NotFound => format!("there is no process {process}"),
        io::ErrorKind::PermissionDenied => format!(
            "process {process} may not be looked at: it is another user's, or does not let itself be traced; \
             look at it as root (sudo)"
        ),
        _ => match error.raw_os_error() {
            Some(ESRCH) => {
                return explain(process, &io::ErrorKind::NotFound.into());
            }
            _ => format!("process {process} could not be looked at: {error}"),
        },
    };
    let kind = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => error.kind(),
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, what)
}

/// Returns the numbers of the process in its namespaces.
fn pids_of(process: u32) -> Vec<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let pids = line.unwrap_or_default().split_whitespace();
    let mut pids: Vec<u64> = pids.filter_map(|pid| pid.parse().ok()).collect();
    pids.push(u64::from(process));
    pids
}
