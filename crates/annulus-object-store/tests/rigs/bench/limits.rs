//! Other programs and the drive itself, with the same loads.

use std::fs::{File, OpenOptions};
use std::io::{self, Error};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

const PAGE: u64 = 4096;
/// The threads that read. The device has as many requests at a time.
const THREADS: usize = 32;
/// The longest read, bytes.
const READ_BYTES: u64 = 1 << 20;

/// Runs `cat` on a file.
pub(crate) fn cat(file: &Path) -> io::Result<()> {
    let null = Stdio::from(OpenOptions::new().write(true).open("/dev/null")?);
    let status = Command::new("cat").arg(file).stdout(null).status()?;
    match status.success() {
        true => Ok(()),
        false => Err(Error::other("`cat` failed")),
    }
}

/// Returns the parts of the file that contain the ranges, as whole pages of at most a read.
fn parts(ranges: impl IntoIterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut ranges: Vec<_> = ranges.into_iter().collect();
    ranges.sort_by_key(|range| range.start);
    let mut whole: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        let range = range.start / PAGE * PAGE..range.end.next_multiple_of(PAGE);
        match whole.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => whole.push(range),
        }
    }
    let part = |whole: Range<u64>| {
        let end = whole.end;
        let starts = (whole.start..end).step_by(READ_BYTES as usize);
        starts.map(move |start| start..end.min(start + READ_BYTES))
    };
    whole.into_iter().flat_map(part).collect()
}

/// Reads ranges past the page cache.
pub(crate) fn read(path: &Path, ranges: impl IntoIterator<Item = Range<u64>>) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let options = options.read(true);
    let file = options.custom_flags(nix::libc::O_DIRECT).open(path)?;
    let (parts, next) = (parts(ranges), AtomicUsize::new(0));
    let work = || {
        let mut memory = vec![0; (READ_BYTES + PAGE) as usize];
        let start = memory.as_ptr().align_offset(PAGE as usize);
        while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
            let bytes = (part.end - part.start) as usize;
            file.read_exact_at(&mut memory[start..start + bytes], part.start)?;
        }
        Ok(())
    };
    in_threads((0..THREADS).map(|_| work))
}

/// Reads cached ranges into one buffer, a system call for each: the copy without memory for the results.
pub(crate) fn copy(path: &Path, ranges: impl IntoIterator<Item = Range<u64>>) -> io::Result<()> {
    let (file, mut memory) = (File::open(path)?, vec![0; READ_BYTES as usize]);
    for range in ranges {
        let bytes = (range.end - range.start) as usize;
        file.read_exact_at(&mut memory[..bytes], range.start)?;
    }
    Ok(())
}

/// Creates files of a page that are on the drive.
pub(crate) fn files(folder: &Path, count: usize) -> io::Result<Vec<File>> {
    let folder = folder.join("drive");
    std::fs::create_dir_all(&folder)?;
    let file = |number: usize| {
        let file = File::create(folder.join(number.to_string()))?;
        file.write_all_at(&[1; PAGE as usize], 0)?;
        file.sync_all()?;
        Ok(file)
    };
    (0..count).map(file).collect()
}

/// Writes a page of a file and waits until it is on the drive, `writes` times in total, with a thread for each file.
pub(crate) fn write(files: Vec<File>, writes: usize) -> io::Result<()> {
    let next = AtomicUsize::new(0);
    in_threads(files.iter().map(|file| {
        || {
            while next.fetch_add(1, Ordering::Relaxed) < writes {
                file.write_all_at(&[7; PAGE as usize], 0)?;
                file.sync_data()?;
            }
            Ok(())
        }
    }))
}

fn in_threads<F: FnOnce() -> io::Result<()> + Send>(
    work: impl Iterator<Item = F>,
) -> io::Result<()> {
    thread::scope(|scope| {
        let threads: Vec<_> = work.map(|work| scope.spawn(work)).collect();
        let panicked = |_| Err(Error::other("a thread panicked"));
        let mut ends = threads.into_iter().map(|thread| thread.join());
        ends.try_for_each(|end| end.unwrap_or_else(panicked))
    })
}
