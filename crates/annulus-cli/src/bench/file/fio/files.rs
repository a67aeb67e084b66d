//! The files of a job file: finds them, creates the missing ones and protects the user's files from writes.
//!
//! Created files keep their names until the end, because fio must find them too (`--with-fio`). They are then removed,
//! also after a failure or an interrupt, unless `--keep-files` is given.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FallocateFlags, OFlags, fadvise, fallocate, fdatasync, seek};

use super::options::{Engine, Hint, Kind, Options, SyncFlag};
use super::plan::{Job, Plan};
use super::value::Size;
use crate::fault::Fault;
use crate::signals::Removal;

/// The size of a write that fills a file.
const FILL_BYTES: usize = 4 << 20;

/// The files that one clone of a job uses.
#[derive(Clone, Debug)]
pub(super) struct CloneFiles {
    pub(super) paths: Vec<PathBuf>,
    /// The start and length of the part of each file that is used.
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// All files, and the files that each clone of each job uses.
pub(super) struct Files {
    pub(super) clones: Vec<Vec<CloneFiles>>,
    made: Arc<Mutex<Vec<PathBuf>>>,
    /// Created files that are only written, with their lengths. They are emptied before every pass, including fio's.
    fresh: Vec<(PathBuf, u64)>,
    _removal: Option<Removal>,
    pub(super) notes: Vec<String>,
}

/// The requirements of all jobs on a file.
#[derive(Default)]
struct FileNeeds {
    bytes: u64,
    read: bool,
    written: bool,
    /// The name of a job that uses the file, for messages. A job that writes to it takes precedence.
    job: String,
    length: Option<u64>,
}

impl Files {
    /// Finds the files and creates those that are missing.
    pub(super) fn prepare(plan: &Plan, keep: bool, overwrite: bool) -> Result<Files, Fault> {
        let mut needs: BTreeMap<PathBuf, FileNeeds> = BTreeMap::new();
        let mut clones = Vec::new();
        for job in &plan.jobs {
            let of_job = (0..job.options.numjobs).map(|clone| clone_files(job, clone));
            let of_job: Vec<CloneFiles> = of_job.collect::<Result<_, Fault>>()?;
            for path in of_job
                .iter()
                .flat_map(|clone_files| clone_files.paths.iter().map(move |p| (clone_files, p)))
            {
                add_needs(&mut needs, job, path.0, path.1);
            }
            clones.push(of_job);
        }
        for (path, needs) in &mut needs {
            needs.length = length(path)?;
            may_be_used(path, needs, overwrite)?;
        }
        let made: Arc<Mutex<Vec<PathBuf>>> = Arc::default();
        let mut files = Files {
            clones,
            fresh: Vec::new(),
            _removal: (!keep).then(|| {
                let made = Arc::clone(&made);
                Removal::new(move || remove(&made))
            }),
            made,
            notes: Vec::new(),
        };
        let mut count = 0;
        for (path, needs) in &needs {
            count += usize::from(files.lay_out(path, needs)?);
        }
        if count > 0 {
            let then = if keep {
                "and kept"
            } else {
                "and removed at the end; --keep-files keeps them"
            };
            files.notes.push(format!("files made: {count}, {then}"));
        }
        Ok(files)
    }

    /// Creates or extends a file. Returns true if the file was created.
    fn lay_out(&mut self, path: &Path, needs: &FileNeeds) -> Result<bool, Fault> {
        if needs.length.is_some_and(|length| length >= needs.bytes) {
            return Ok(false);
        }
        let failed = |error: &io::Error| {
            let shown = path.display();
            let bytes = needs.bytes;
            failed!(
                "laying out {shown} with {bytes} bytes: {error}; choose a smaller `size` or another `directory`"
            )
        };
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let file = match needs.length {
            Some(_) => options.open(path),
            None => options.create_new(true).open(path),
        };
        let file = file.map_err(|error| cannot("make", path, &error))?;
        let from = needs.length.unwrap_or(0);
        if needs.length.is_none() {
            self.made
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(path.to_path_buf());
        }
        match fallocate(&file, FallocateFlags::empty(), from, needs.bytes - from) {
            Ok(()) => {}
            Err(rustix::io::Errno::OPNOTSUPP) => {
                file.set_len(needs.bytes).map_err(|error| failed(&error))?;
            }
            Err(error) => return Err(failed(&error.into())),
        }
        if needs.read {
            fill(&file, from, needs.bytes).map_err(|error| failed(&error))?;
        } else if needs.length.is_none() {
            self.fresh.push((path.to_path_buf(), needs.bytes));
        }
        Ok(needs.length.is_none())
    }

    /// Restores the files that are only written to their initial state. Called before every pass.
    pub(super) fn renew(&self) -> Result<(), Fault> {
        for (path, bytes) in &self.fresh {
            let renewed = OpenOptions::new().write(true).open(path).and_then(|file| {
                file.set_len(0)?;
                match fallocate(&file, FallocateFlags::empty(), 0, *bytes) {
                    Err(rustix::io::Errno::OPNOTSUPP) | Ok(()) => file.set_len(*bytes),
                    Err(error) => Err(error.into()),
                }
            });
            renewed.map_err(|error| failed!("emptying {}: {error}", path.display()))?;
        }
        Ok(())
    }
}

fn remove(made: &Mutex<Vec<PathBuf>>) {
    for path in made
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .drain(..)
    {
        // A file that is already removed is no error.
        let _ = std::fs::remove_file(path);
    }
}

fn cannot(verb: &str, path: &Path, error: &io::Error) -> Fault {
    let shown = path.display();
    let hint = match error.kind() {
        ErrorKind::NotFound => "; make its directory, or change `directory`",
        ErrorKind::PermissionDenied => {
            "; run as a user who may, or change `directory` or `filename`"
        }
        _ => "",
    };
    usage!("cannot {verb} {shown}: {error}{hint}")
}

/// Returns the files of a clone and the part of them that it uses.
fn clone_files(job: &Job, clone: usize) -> Result<CloneFiles, Fault> {
    let options = &job.options;
    let folder = options.directory.as_deref().unwrap_or("");
    let paths: Vec<PathBuf> = match options.filenames.is_empty() {
        true => (0..options.nrfiles)
            .map(|file| {
                Path::new(folder).join(format!("{}.{clone}.{file}", job.section.replace('/', "_")))
            })
            .collect(),
        false => options
            .filenames
            .iter()
            .map(|name| Path::new(folder).join(name))
            .collect(),
    };
    let about = |text: String| usage!("[{}], line {}: {text}", job.section, job.line);
    let shortest = || -> Result<u64, Fault> {
        let mut least = u64::MAX;
        for path in &paths {
            let length = length(path)?.ok_or_else(|| {
                let shown = path.display();
                about(format!(
                    "{shown} does not exist, and there is no `size` in bytes for a new file"
                ))
            })?;
            least = least.min(length);
        }
        Ok(least)
    };
    let block = options.block_least().max(1);
    let offset = match options.offset {
        Size::Bytes(bytes) => bytes,
        Size::Percent(percent) => shortest()? / 100 * u64::from(percent) / block * block,
    };
    let offset = options
        .offset_increment
        .checked_mul(clone as u64)
        .and_then(|more| more.checked_add(offset))
        .ok_or_else(|| about("`offset` and `offset_increment` are beyond 64 bits".into()))?;
    let bytes = match (options.filesize, options.size) {
        (Some(bytes), _) => bytes,
        (None, Some(Size::Bytes(bytes))) => bytes / paths.len() as u64,
        (None, Some(Size::Percent(percent))) => shortest()? / 100 * u64::from(percent),
        (None, None) => shortest()?.saturating_sub(offset),
    };
    check_part(options, offset, bytes).map_err(about)?;
    let bytes = bytes / block * block;
    Ok(CloneFiles {
        paths,
        offset,
        bytes,
    })
}

fn check_part(options: &Options, offset: u64, bytes: u64) -> Result<(), String> {
    if bytes < options.block_most() {
        return Err(format!(
            "{bytes} bytes of each file are used, less than a block of {}; a larger `size`, or a smaller `bs`",
            options.block_most()
        ));
    }
    if options.direct && options.engine != Engine::Mmap && !offset.is_multiple_of(512) {
        return Err(format!(
            "`offset` {offset} with direct I/O; a multiple of 512 bytes there"
        ));
    }
    if options.engine == Engine::Mmap && !offset.is_multiple_of(4096) {
        return Err(format!(
            "`offset` {offset}: a map begins at a multiple of 4096 bytes"
        ));
    }
    if offset
        .checked_add(bytes)
        .is_none_or(|end| end > i64::MAX as u64)
    {
        return Err(format!(
            "`offset` {offset} and {bytes} bytes: a file cannot be that long"
        ));
    }
    Ok(())
}

/// Returns the length of a file or device, or `None` if it does not exist.
fn length(path: &Path) -> Result<Option<u64>, Fault> {
    let shown = path.display();
    let meta = match std::fs::metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(cannot("look at", path, &error)),
    };
    if meta.file_type().is_block_device() {
        let file = File::open(path).map_err(|error| cannot("open", path, &error))?;
        return seek(&file, rustix::fs::SeekFrom::End(0))
            .map(Some)
            .map_err(|error| failed!("finding the length of {shown}: {error}"));
    }
    if !meta.is_file() {
        return Err(usage!("{shown} is neither a file nor a block device"));
    }
    Ok(Some(meta.len()))
}

fn add_needs(
    needs: &mut BTreeMap<PathBuf, FileNeeds>,
    job: &Job,
    clone_files: &CloneFiles,
    path: &Path,
) {
    let entry = needs
        .entry(path.to_path_buf())
        .or_insert_with(|| FileNeeds {
            job: job.section.clone(),
            ..FileNeeds::default()
        });
    entry.bytes = entry.bytes.max(clone_files.offset + clone_files.bytes);
    entry.read |= job.options.reads();
    if job.options.kind != Kind::Read {
        entry.written = true;
        entry.job.clone_from(&job.section);
    }
}

/// Refuses to write to or extend an existing file without `--overwrite`.
fn may_be_used(path: &Path, needs: &FileNeeds, overwrite: bool) -> Result<(), Fault> {
    let shown = path.display();
    let Some(length) = needs.length else {
        return Ok(());
    };
    if needs.written && !overwrite {
        return Err(usage!(
            "{shown} exists and [{}] would write to it; --overwrite allows that and destroys its content",
            needs.job
        ));
    }
    if length < needs.bytes && !overwrite {
        return Err(usage!(
            "{shown} has {length} bytes and [{}] needs {}; --overwrite lets it grow, or use a smaller `size`",
            needs.job,
            needs.bytes
        ));
    }
    Ok(())
}

fn fill(file: &File, from: u64, to: u64) -> io::Result<()> {
    let mut chunk = vec![0u8; FILL_BYTES];
    let mut at = from;
    while at < to {
        let bytes = FILL_BYTES.min((to - at) as usize);
        fastrand::fill(&mut chunk[..bytes]);
        file.write_all_at(&chunk[..bytes], at)?;
        at += bytes as u64;
    }
    Ok(fdatasync(file)?)
}

/// Opens the files of a clone, and drops them from the page cache if the job requests it.
pub(super) fn open(job: &Job, clone_files: &CloneFiles) -> Result<Arc<[File]>, Fault> {
    let options = &job.options;
    let mut flags = match options.sync {
        SyncFlag::None => OFlags::empty(),
        SyncFlag::Sync => OFlags::SYNC,
        SyncFlag::Dsync => OFlags::DSYNC,
    };
    if options.direct && options.engine != Engine::Mmap {
        flags |= OFlags::DIRECT;
    }
    let open_one = |path: &PathBuf| {
        let file = OpenOptions::new()
            .read(true)
            .write(options.writes())
            .custom_flags(flags.bits() as i32)
            .open(path);
        let file = file.map_err(|error| match error.kind() {
            ErrorKind::InvalidInput if options.direct => usage!(
                "direct=1: {} is on a file system without O_DIRECT; use direct=0 or another `directory`",
                path.display()
            ),
            _ => cannot("open", path, &error),
        })?;
        advise(options, clone_files, &file);
        Ok(file)
    };
    let files: Vec<File> = clone_files
        .paths
        .iter()
        .map(open_one)
        .collect::<Result<_, Fault>>()?;
    Ok(Arc::from(files))
}

/// Drops the used part from the page cache, and advises the kernel of the order of access.
fn advise(options: &Options, clone_files: &CloneFiles, file: &File) {
    use rustix::fs::Advice::{DontNeed, Random, Sequential};
    let part = std::num::NonZero::new(clone_files.bytes);
    // As in fio, failed advice is no error. Pages in use by other processes stay.
    if options.invalidate {
        let _ = fadvise(file, clone_files.offset, part, DontNeed);
    }
    let advice = match options.hint {
        Hint::None => return,
        Hint::Random => Random,
        Hint::AsOrdered if options.random => Random,
        Hint::AsOrdered | Hint::Sequential => Sequential,
    };
    let _ = fadvise(file, clone_files.offset, part, advice);
}
