//! Functions that combine several operations on paths, with the meaning of those in `std::fs`.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::{File, OpenOptions, PathIn, paths};
use crate::buf::IoBuf;
use crate::driver::{DriverHandle, Operation, Submitter, coop_budget};
use crate::op::{FileRead, ReadFile};
use crate::sys::engine_error::EngineError;
use crate::sys::errno::ESPIPE;
use crate::sys::mount;

/// Reads a whole file. Small cached files of local file systems are one operation; see [`ReadFile`].
pub(crate) async fn read(submitter: &Arc<Submitter>, path: PathIn<'_>) -> io::Result<Vec<u8>> {
    let mut read = read_local(submitter, path).await?;
    // Until the end of the function.
    let cold = matches!(read, FileRead::Refused).then(|| ColdRead::begin(submitter));
    if cold.as_ref().is_some_and(|cold| cold.is_for_thread) {
        let job = Operation::new(submitter, ReadFile::by_thread(path.target()?)).await;
        let has_no_thread = |error| matches!(error, EngineError::NoThread { .. });
        read = match job {
            // The ring may need none.
            Err(error) if EngineError::of(&error).is_some_and(has_no_thread) => FileRead::Refused,
            job => job?,
        };
    }
    let (file, bytes) = match read {
        FileRead::Whole(bytes) => return Ok(bytes),
        FileRead::Part(opened, bytes) => (File::new(opened, Arc::clone(submitter))?, bytes),
        FileRead::Refused => {
            let mut options = OpenOptions::new();
            let opening = options.read(true).open_by_driver(submitter, path);
            (opening.await?, Vec::new())
        }
    };
    read_rest(submitter, file, bytes).await
}

/// Counts a task among those that read whole files whose paths are not cached, while it exists.
///
/// A blocking thread opens, queries and reads such a file in one job, with one hand-off. If enough others read at the
/// same time, a ring is faster: it has the requests of many files in one enter.
struct ColdRead<'a> {
    submitter: &'a Submitter,
    is_for_thread: bool,
}

impl<'a> ColdRead<'a> {
    fn begin(submitter: &'a Submitter) -> ColdRead<'a> {
        let others = submitter.cold_reads.fetch_add(1, Relaxed);
        // In a child of a fork the engine refuses, but might start new blocking threads.
        let may_block = submitter.closer.is_none() && submitter.serves();
        ColdRead {
            submitter,
            is_for_thread: may_block && (others < COLD_MIN || !submitter.has_rings()),
        }
    }
}

impl Drop for ColdRead<'_> {
    fn drop(&mut self) {
        self.submitter.cold_reads.fetch_sub(1, Relaxed);
    }
}

/// Reads a file if the lookup of its path starts on a local mount, and ends there without blocking.
///
/// The calling thread makes the calls if it has no ring, or if no other task of it reads a file at the same time.
/// Otherwise its ring does: one enter then has the requests of many files.
async fn read_local(submitter: &Submitter, path: PathIn<'_>) -> io::Result<FileRead> {
    let at = path.target()?;
    let closer = submitter.closer.clone();
    let is_real = closer.is_none();
    let mount = is_real.then(|| mount::local_start(at.dir_path())).flatten();
    if is_real && mount.is_none() || !submitter.serves() {
        return Ok(FileRead::Refused);
    }
    let counted = Counted::together(submitter).await;
    let here = counted.is_none() && is_real;
    let read = Operation::new(submitter, ReadFile::local(at, mount, here, closer)).await;
    if here {
        // The operation counts once in the budget, but makes more calls than a cached read.
        coop_budget::count(CALLS - 1, 0);
    }
    read
}

/// The number of calls for a cached file.
const CALLS: u32 = 4;

/// The number of other tasks from which on a ring is cheaper than system calls.
const TOGETHER_MIN: u32 = 3;

/// The number of other tasks from which on a ring reads files whose paths are not cached.
const COLD_MIN: usize = 3;

/// Counts a task among those that read whole files through the ring of their thread, while it exists.
struct Counted<'a>(&'a DriverHandle);

impl<'a> Counted<'a> {
    /// Counts the calling task if enough others of its thread read files. `None` if not, or if the thread has no ring.
    ///
    /// A task that has used up its budget yields, and counts meanwhile. The tasks of a thread so learn of each other.
    async fn together(submitter: &'a Submitter) -> Option<Counted<'a>> {
        let driver = submitter.own_driver()?;
        let has_others = driver.whole_reads() >= TOGETHER_MIN;
        if !has_others && coop_budget::may_go_on() {
            return None;
        }
        driver.begin_whole_read();
        let counted = Counted(driver);
        if has_others {
            return Some(counted);
        }
        let yielded_ns = submitter.now_ns();
        coop_budget::reset();
        coop_budget::yield_now().await;
        coop_budget::resume(yielded_ns, submitter.now_ns());
        (driver.whole_reads() > TOGETHER_MIN).then_some(counted)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.end_whole_read();
    }
}

/// Reads the rest of an open file, whose first bytes are in `buf`.
async fn read_rest(submitter: &Submitter, file: File, mut buf: Vec<u8>) -> io::Result<Vec<u8>> {
    let bytes = file.metadata().await?.len();
    let bytes = usize::try_from(bytes).map_err(|_| ErrorKind::OutOfMemory)?;
    if bytes > buf.len() {
        // Into new memory, and the first bytes again: a vector that has some already would have to be zeroed behind
        // them, which takes about as long as the read.
        let mut whole = Vec::new();
        whole.try_reserve_exact(bytes.saturating_add(1))?;
        (_, buf) = file.read_at(whole, 0).await?;
    }
    let mut done = buf.len();
    // One more, so that a read that ends before it has reached the end of the file. Files of /proc have no length.
    let bytes = bytes.saturating_add(1).max(GROW_BYTES).max(done + 1);
    grow(&mut buf, bytes)?;
    loop {
        let (read, rest) = match file.read_at(buf.subslice(done..), done as u64).await {
            Ok(read) => read,
            Err(error) => match error.into_parts() {
                (error, Some(rest)) if error.raw_os_error() == Some(ESPIPE) => {
                    return read_stream(submitter, file, rest.into_inner(), done).await;
                }
                (error, _) => return Err(error),
            },
        };
        buf = rest.into_inner();
        done += read;
        if read == 0 {
            buf.truncate(done);
            return Ok(buf);
        }
        if done == buf.len() {
            grow(&mut buf, done.saturating_mul(2))?;
        }
    }
}

/// Lengthens `buf` to `bytes`. Fails with `OutOfMemory` if memory is short.
fn grow(buf: &mut Vec<u8>, bytes: usize) -> io::Result<()> {
    buf.try_reserve_exact(bytes.saturating_sub(buf.len()))?;
    buf.resize(bytes, 0);
    Ok(())
}

/// Reads the rest of an open pipe, terminal or the like, after the first `done` bytes of `buf`.
async fn read_stream(
    submitter: &Submitter,
    file: File,
    mut buf: Vec<u8>,
    done: usize,
) -> io::Result<Vec<u8>> {
    buf.truncate(done);
    let fd = file.into_fd();
    // Removes the flags of the attempt to open the file without blocking.
    let _ = fd.raw();
    let Ok(raw) = fd.into_raw() else {
        return Err(ErrorKind::ResourceBusy.into());
    };
    match Operation::new(submitter, ReadFile::stream(raw, buf)).await? {
        FileRead::Whole(bytes) => Ok(bytes),
        FileRead::Part(..) | FileRead::Refused => Err(ErrorKind::Unsupported.into()),
    }
}

/// The smallest buffer for a file whose length is unknown, bytes.
const GROW_BYTES: usize = 512;

pub(crate) async fn read_to_string(
    submitter: &Arc<Submitter>,
    path: PathIn<'_>,
) -> io::Result<String> {
    String::from_utf8(read(submitter, path).await?)
        .map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

pub(crate) async fn write<B: IoBuf>(
    submitter: &Arc<Submitter>,
    path: PathIn<'_>,
    contents: B,
) -> io::Result<()> {
    let file = paths::to_create().open(submitter, path).await?;
    file.write_whole(contents, 0).await?;
    Ok(())
}

pub(crate) async fn try_exists(submitter: &Submitter, path: PathIn<'_>) -> io::Result<bool> {
    match paths::metadata(submitter, path, true).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

pub(crate) async fn create_dir_all(submitter: &Submitter, path: PathIn<'_>) -> io::Result<()> {
    // From the end, because most directories exist.
    let mut missing = Vec::new();
    let all = path.path().ancestors();
    for dir in all.filter(|dir| *dir != Path::new("")) {
        match ensure_dir(submitter, path.with(dir)).await {
            Err(error) if error.kind() == ErrorKind::NotFound => missing.push(dir),
            Err(error) => return Err(error),
            Ok(()) => break,
        }
    }
    for dir in missing.into_iter().rev() {
        ensure_dir(submitter, path.with(dir)).await?;
    }
    Ok(())
}

/// Creates a directory. Succeeds if it exists, perhaps because another task has just created it.
async fn ensure_dir(submitter: &Submitter, path: PathIn<'_>) -> io::Result<()> {
    let Err(error) = paths::create_dir(submitter, path).await else {
        return Ok(());
    };
    match paths::metadata(submitter, path, true).await {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        _ => Err(error),
    }
}
