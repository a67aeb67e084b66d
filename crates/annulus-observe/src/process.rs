//! Snapshots of another process.
//!
//! Its counters are in a memfd that is found among its descriptors and read like a file. The file is not mapped, and
//! its contents are not trusted.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{Ordering, fence};

use annulus::metrics::layout::{
    self, FILE_NAME, HEAD_WORDS, HEADER_LEASE, HEADER_MOVES, HEADER_NAMES, HEADER_PROCESS,
    HEADER_RECORDS, HEADER_SAYS, HEADER_VERSION, HEADER_WORDS, MAGIC, RECORDS_MAX, WORDS,
};
use annulus::metrics::{Snapshot, Source, SourceKind};

/// The time for which a process records latencies after a snapshot of it was taken.
const LEASE_NS: u64 = 10_000_000_000;
/// The error of `/proc` for a process that has ended during the call.
const ESRCH: i32 = 3;
/// The number of attempts to read the sources, if one ends during each attempt.
const ATTEMPTS_MAX: u32 = 16;

/// Returns the metrics of another process that [shares](annulus::metrics::share) them.
///
/// The process may run in another container. It must belong to the same user, unless this process runs as root. It then
/// records latencies for the next 10 s, so a caller that takes snapshots more often gets all latencies.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// annulus::metrics::share()?; // In the observed process, when it starts.
///
/// let process = std::process::id(); // This example observes itself.
/// let snapshot = annulus_observe::snapshot_of(process)?;
/// for source in &snapshot.sources {
///     println!("{}: {} completions", source.kind.name(), source.counters.completed);
/// }
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// The message of each error header message to do. Fails with
///
/// - `NotFound` if there is no such process,
/// - `PermissionDenied` if this process may not read the other one,
/// - `Unsupported` if the process does not share its metrics,
/// - `InvalidData` if it was built with a version of Annulus that has another layout of counters.
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

/// Returns the start time of a process, in ticks of the clock since the start of the machine. `None` if the process has
/// ended, even if its parent has not waited for it.
///
/// The kernel reuses process IDs. Together with the start time, an ID denotes one process.
pub fn started_ticks(process: u32) -> Option<u64> {
    // A program's name may have any bytes.
    let stat = fs::read(format!("/proc/{process}/stat")).ok()?;
    started_ticks_in(&String::from_utf8_lossy(&stat))
}

fn started_ticks_in(stat: &str) -> Option<u64> {
    /// The index among the fields after the name. The name may contain any character, including brackets.
    const STARTED: usize = 19;
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    if matches!(fields.first(), Some(&("Z" | "X"))) {
        return None;
    }
    fields.get(STARTED)?.parse().ok()
}

fn ended(source: &Source) -> bool {
    source.kind == SourceKind::Ended
}

/// Checks that the process uses the layout of this program, and requests that it records latencies.
fn begin(process: u32, file: &File, now: u64) -> io::Result<()> {
    let header = words(file, 0, HEADER_SAYS)?;
    let differs = if header[HEADER_VERSION] != layout::VERSION {
        let (theirs, ours) = (header[HEADER_VERSION], layout::VERSION);
        Some(format!(
            "its metrics have layout {theirs}, and this program reads layout {ours}"
        ))
    } else if header[HEADER_WORDS] != WORDS as u64 || header[HEADER_NAMES] != layout::names() {
        Some("it counts other operations, calls or reasons than this program knows".to_owned())
    } else {
        None
    };
    if let Some(differs) = differs {
        let message = format!(
            "process {process} was built with another version of Annulus: {differs}; use the `annulus` tool of that \
             version"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    // This fails if the file is read-only. The process then records latencies only if another reader requests it.
    if header[HEADER_LEASE] < now + LEASE_NS {
        let lease = (now + LEASE_NS).to_ne_bytes();
        let _ = file.write_at(&lease, (HEADER_LEASE * size_of::<u64>()) as u64);
    }
    Ok(())
}

/// Reads all sources. A source that ends during the call is counted exactly once.
fn sources(file: &File) -> io::Result<Vec<Source>> {
    let mut attempts = 0;
    loop {
        let before = words(file, 0, HEADER_SAYS)?;
        fence(Ordering::Acquire);
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
        fence(Ordering::Acquire);
        let after = words(file, 0, HEADER_SAYS)?;
        attempts += 1;
        let whole = before[HEADER_MOVES] == after[HEADER_MOVES]
            && before[HEADER_MOVES].is_multiple_of(2)
            && before[HEADER_RECORDS] == after[HEADER_RECORDS];
        // A process that was killed while it moved counts leaves the word odd.
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

/// Opens the files that `process` shares: one of the program, and a second one of the preload library.
pub(crate) fn shared_files(process: u32) -> io::Result<Vec<File>> {
    let (mut files, mut inodes) = (Vec::new(), Vec::new());
    let folder = format!("/proc/{process}/fd");
    let entries = fs::read_dir(&folder).map_err(|error| explain(process, &error))?;
    let named = format!("/memfd:{FILE_NAME}");
    for entry in entries {
        let path = entry.map_err(|error| explain(process, &error))?.path();
        // The descriptor may have been closed since; it is skipped then.
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
        let Ok(header) = words(&file, 0, HEADER_SAYS) else {
            continue;
        };
        // A forked child has its parent's file as well.
        if header[0] == MAGIC && process_ids(process).contains(&header[HEADER_PROCESS]) {
            // The process may have several descriptors of the file.
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
    let message = format!(
        "process {process} shares no metrics: a server under `annulus run` shares them from its first ring on, \
         which an epoll set with eight connections gets; `annulus serve` and `annulus bench` always, and other \
         programs if they call annulus::metrics::share() when \
         they start"
    );
    Err(io::Error::new(io::ErrorKind::Unsupported, message))
}

fn explain(process: u32, error: &io::Error) -> io::Error {
    let message = match error.kind() {
        io::ErrorKind::NotFound => format!("there is no process {process}"),
        io::ErrorKind::PermissionDenied => format!(
            "no permission to read the metrics of process {process}: it belongs to another user, or forbids tracing; \
             try again as root (sudo)"
        ),
        _ => match error.raw_os_error() {
            Some(ESRCH) => {
                return explain(process, &io::ErrorKind::NotFound.into());
            }
            _ => format!("cannot read the metrics of process {process}: {error}"),
        },
    };
    let kind = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => error.kind(),
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, message)
}

/// Returns the IDs of the process in its PID namespaces.
fn process_ids(process: u32) -> Vec<u64> {
    // The name of the process in it may have any bytes.
    let status = fs::read(format!("/proc/{process}/status")).unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let pids = line.unwrap_or_default().split_whitespace();
    let mut pids: Vec<u64> = pids.filter_map(|pid| pid.parse().ok()).collect();
    pids.push(u64::from(process));
    pids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_parsed_after_any_name() {
        let stat = |name: &str, state: &str| {
            let fields: Vec<String> = (4..=30).map(|field| field.to_string()).collect();
            format!("7 ({name}) {state} {}", fields.join(" "))
        };
        assert_eq!(started_ticks_in(&stat("echo", "S")), Some(22));
        assert_eq!(started_ticks_in(&stat("a) S 1 (b", "R")), Some(22));
        assert_eq!(started_ticks_in(&stat("echo", "Z")), None);
        assert_eq!(started_ticks_in("7 (echo"), None);
        assert_eq!(started_ticks_in(""), None);
    }

    #[test]
    fn this_process_has_a_start_time_and_a_missing_one_has_none() {
        assert!(started_ticks(std::process::id()).is_some());
        assert_eq!(started_ticks(u32::MAX), None);
    }
}
