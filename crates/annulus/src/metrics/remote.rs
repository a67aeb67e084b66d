//! Looking at another process: its counters lie in a file of memory, found among its descriptors and read
//! like any other. Nothing of it is mapped, and nothing that stands in it is relied on.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use super::record::{self, HEAD_WORDS, WORDS};
use super::registry::{
    FILE_NAME, HEADER_LEASE, HEADER_MOVES, HEADER_NAMES, HEADER_PROCESS, HEADER_RECORDS,
    HEADER_SAYS, HEADER_VERSION, HEADER_WORDS, MAGIC, RECORDS_MAX, offset_of,
};
use super::snapshot::{Snapshot, Source, SourceKind};
use crate::narrow::to_usize;
use crate::sys::call::now_ns;

/// How long a process goes on recording latencies after somebody has looked at it.
const LEASE_NS: u64 = 10_000_000_000;
/// How often a look is repeated that met the end of a source.
const LOOKS_MAX: u32 = 16;

pub(super) fn snapshot(process: u32) -> io::Result<Snapshot> {
    let now = now_ns();
    let mut all: Vec<Source> = Vec::new();
    for file in find(process)? {
        look(process, &file, now)?;
        for source in sources(&file)? {
            match all.iter_mut().find(|one| ended(one) && ended(&source)) {
                Some(one) => one.add(&source),
                None => all.push(source),
            }
        }
    }
    Ok(Snapshot {
        process,
        at_ns: now,
        sources: super::in_order(all),
        kernel_workers: super::kernel_workers(&format!("/proc/{process}/task")),
    })
}

fn ended(source: &Source) -> bool {
    source.kind == SourceKind::Ended
}

/// Whether the file can be read, and that somebody does.
fn look(process: u32, file: &File, now: u64) -> io::Result<()> {
    let says = words(file, 0, HEADER_SAYS)?;
    let differs = if says[HEADER_VERSION] != record::VERSION {
        let (theirs, ours) = (says[HEADER_VERSION], record::VERSION);
        Some(format!(
            "in layout {theirs}, and this program reads layout {ours}"
        ))
    } else if says[HEADER_WORDS] != WORDS as u64 || says[HEADER_NAMES] != record::names() {
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
    // Of a file that may only be read: then it records what it would have recorded anyway.
    if says[HEADER_LEASE] < now + LEASE_NS {
        let lease = (now + LEASE_NS).to_ne_bytes();
        let _ = file.write_at(&lease, (HEADER_LEASE * size_of::<u64>()) as u64);
    }
    Ok(())
}

/// A source that ends meanwhile is not counted twice, and not lost.
fn sources(file: &File) -> io::Result<Vec<Source>> {
    let mut looks = 0;
    loop {
        let before = words(file, 0, HEADER_SAYS)?;
        let indices = to_usize(before[HEADER_RECORDS]).min(RECORDS_MAX);
        let mut sources = Vec::new();
        for index in 0..indices {
            let offset = offset_of(index);
            let head = words(file, offset, HEAD_WORDS)?;
            let fetch = |from: usize, count: usize| {
                words(file, offset + (from * size_of::<u64>()) as u64, count).ok()
            };
            sources.extend(record::read(&head, fetch));
        }
        let after = words(file, 0, HEADER_SAYS)?;
        looks += 1;
        let whole = before[HEADER_MOVES] == after[HEADER_MOVES]
            && before[HEADER_MOVES].is_multiple_of(2)
            && before[HEADER_RECORDS] == after[HEADER_RECORDS];
        // One that was killed in the middle of it will not come to the end of it.
        if whole || looks >= LOOKS_MAX {
            return Ok(sources);
        }
    }
}

/// Whether that word of the header is not 0.
pub(super) fn has(file: &File, word: usize) -> io::Result<bool> {
    let offset = (word * size_of::<u64>()) as u64;
    Ok(words(file, offset, 1)?[0] != 0)
}

fn words(file: &File, offset: u64, count: usize) -> io::Result<Vec<u64>> {
    let mut bytes = vec![0; count * size_of::<u64>()];
    file.read_exact_at(&mut bytes, offset)?;
    let (words, _) = bytes.as_chunks();
    Ok(words.iter().map(|word| u64::from_ne_bytes(*word)).collect())
}

/// The files of `process`, opened: a program with Annulus in it has one, and under the preload library a second.
pub(super) fn find(process: u32) -> io::Result<Vec<File>> {
    let (mut files, mut inodes) = (Vec::new(), Vec::new());
    let folder = format!("/proc/{process}/fd");
    let entries = fs::read_dir(&folder).map_err(|error| explain(process, &error))?;
    let named = format!("/memfd:{FILE_NAME}");
    for entry in entries {
        let path = entry.map_err(|error| explain(process, &error))?.path();
        // One that has been closed meanwhile is none.
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
        // A child of a fork has its parent's.
        if says[0] == MAGIC && names(process).contains(&says[HEADER_PROCESS]) {
            // It may have several descriptors.
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
            // The process went meanwhile.
            Some(crate::sys::errno::ESRCH) => {
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

/// What the process calls itself: it may run in a namespace of its own.
fn names(process: u32) -> Vec<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let names = line.unwrap_or_default().split_whitespace();
    let mut names: Vec<u64> = names.filter_map(|name| name.parse().ok()).collect();
    names.push(u64::from(process));
    names
}
