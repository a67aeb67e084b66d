//! What is read and written: files made by us and nameless at once, or one of the user's, left as it is.
//!
//! One per command. A file that the tool makes never has a name, or loses it as soon as it is open, so whatever ends the process,
//! an interrupt or a crash, nothing stays behind.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use annulus_baselines::Memory;
use rustix::fs::{
    AtFlags, FallocateFlags, OFlags, StatxFlags, fallocate, fdatasync, fstatfs, fstatvfs, seek,
    statx,
};

use super::check::{Contents, dataset_offset, write_tags};
use super::job::{Cache, Plan};
use crate::fault::Fault;
use crate::signals::Removal;

/// A file that the tool makes is not larger, unless a cold run would use up its blocks.
const OWN_BYTES: u64 = 1 << 30;
const OWN_COLD_BYTES_MAX: u64 = 8 << 30;
/// It takes at most this share of the free space.
const OWN_FREE_SHARE: u64 = 4;
/// The tool's file has this number of blocks for each outstanding operation, and this multiple of `--memory`.
const OWN_ROUNDS: u64 = 4;
const OWN_MEMORIES: u64 = 4;
/// What a fast disk does: a cold run must not use up the blocks of a file we size ourselves.
const FAST_OPS_PER_SECOND: f64 = 150_000.0;
const FAST_BYTES_PER_SECOND: f64 = 3e9;
/// Written at a time when a file is filled.
const FILL_BYTES: u64 = 4 << 20;
/// File systems that live in memory (`TMPFS_MAGIC`, `RAMFS_MAGIC`): they accept O_DIRECT and ignore it.
const IN_MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// The open files, usually one, and what is known about them.
pub(crate) struct TestFile {
    /// Through the page cache. Never empty.
    pub(crate) buffered: Arc<[File]>,
    /// Past it, where that is possible; in the same order.
    direct: Option<Arc<[File]>>,
    /// Where the used part of each begins.
    pub(crate) offset_bytes: u64,
    /// How long the used part of each is.
    pub(crate) file_bytes: u64,
    pub(crate) contents: Contents,
    /// For people: where it is, and whose.
    pub(crate) description: String,
    /// What people should know about it.
    pub(crate) notes: Vec<String>,
    /// How it can be read in the end.
    pub(crate) cache: Cache,
}

impl TestFile {
    /// Opens or makes the file that `plan` asks for.
    pub(crate) fn open(plan: &Plan) -> Result<TestFile, Fault> {
        let Some(path) = &plan.path else {
            return make(plan, plan.dir.as_deref().unwrap_or(Path::new(".")));
        };
        let meta = std::fs::metadata(path).map_err(|error| cannot("open", path, &error))?;
        if meta.is_dir() {
            return make(plan, path);
        }
        existing(plan, path, &meta)
    }

    /// The length of all used parts together.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.file_bytes * self.buffered.len() as u64
    }

    /// The handles that the runs use.
    pub(crate) fn handles(&self) -> Arc<[File]> {
        match (self.cache, &self.direct) {
            (Cache::Direct, Some(direct)) => Arc::clone(direct),
            _ => Arc::clone(&self.buffered),
        }
    }
}

fn cannot(verb: &str, path: &Path, error: &io::Error) -> Fault {
    let link = std::fs::read_link(path).ok();
    let hint = match (error.kind(), link) {
        (ErrorKind::NotFound, Some(target)) => {
            format!("; it is a link to {}, which is not there", target.display())
        }
        (ErrorKind::NotFound, None) => "; without a path, a test file is made here".into(),
        (ErrorKind::PermissionDenied, _) => {
            "; run as a user who may, or choose another folder".into()
        }
        (ErrorKind::ReadOnlyFilesystem, _) => {
            "; choose a --dir on a file system that can be written to".into()
        }
        _ => String::new(),
    };
    Fault::usage(format!("cannot {verb} {}: {error}{hint}", path.display()))
}

/// A file of the user's, or a device.
fn existing(plan: &Plan, path: &Path, meta: &Metadata) -> Result<TestFile, Fault> {
    let shown = path.display();
    if plan.files > 1 {
        return Err(Fault::usage(format!(
            "--files {} creates its own files: give a directory, not {shown}",
            plan.files
        )));
    }
    let kind = meta.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Fault::usage(format!(
            "{shown} is neither a file nor a block device nor a directory"
        )));
    }
    if plan.writes() && !plan.overwrite {
        return Err(Fault::usage(format!(
            "{shown} exists and this load would write to it; --overwrite allows that and destroys its content, \
             or give a directory"
        )));
    }
    let open = |flags: OFlags| {
        let mut options = OpenOptions::new();
        options.read(true).write(plan.writes());
        options.custom_flags(flags.bits() as i32).open(path)
    };
    // O_EXCL without O_CREAT: a block device that is mounted or otherwise in use is refused. We hold it
    // from then on, so the second handle must not ask again.
    let exclusive = plan.writes() && kind.is_block_device();
    let first = if exclusive {
        OFlags::EXCL
    } else {
        OFlags::empty()
    };
    let buffered = open(first).map_err(|error| match error.kind() {
        ErrorKind::ResourceBusy => Fault::usage(format!(
            "{shown} is in use (mounted?); it will not be written to"
        )),
        _ => cannot("open", path, &error),
    })?;
    let length = length_of(&buffered, path)?;
    let size = part_of(plan, path, length)?;
    let direct = open(OFlags::DIRECT).map(|file| Arc::from([file]));
    let kind = if kind.is_block_device() {
        "device"
    } else {
        "file"
    };
    let mut file = TestFile {
        buffered: Arc::new([buffered]),
        direct: None,
        offset_bytes: plan.offset_bytes,
        file_bytes: size,
        contents: Contents::Unknown,
        description: format!("{kind} {shown}, {} bytes from {}", size, plan.offset_bytes),
        notes: Vec::new(),
        cache: plan.cache,
    };
    choose_direct(&mut file, plan, direct)?;
    if plan.writes() {
        file.contents = Contents::tagged(plan.seed, plan.block_bytes);
        fill(&file, plan)?;
        file.notes.push(format!(
            "{shown}: the tested part was filled with test data first (--overwrite)"
        ));
    }
    Ok(file)
}

/// How long a file or a device is; some of what can be opened has no end.
fn length_of(file: &File, path: &Path) -> Result<u64, Fault> {
    seek(file, rustix::fs::SeekFrom::End(0)).map_err(|error| {
        Fault::usage(format!(
            "{} has no length that could be found ({error}): choose a regular file or a block device",
            path.display()
        ))
    })
}

/// The part of an existing file that is used: `--size` from `--offset`, or all that is there.
fn part_of(plan: &Plan, path: &Path, length: u64) -> Result<u64, Fault> {
    let (shown, bs, offset) = (path.display(), plan.block_bytes, plan.offset_bytes);
    if length == 0 {
        return Err(Fault::usage(format!(
            "{shown} is empty: there is nothing to read"
        )));
    }
    if offset >= length {
        return Err(Fault::usage(format!(
            "--offset {offset} is beyond the end of {shown} ({length} bytes)"
        )));
    }
    let rest = length - offset;
    if rest < bs {
        return Err(Fault::usage(format!(
            "{shown} has {length} bytes, {rest} from --offset {offset}: less than one block of {bs}; choose a larger \
             file, or a smaller --bs"
        )));
    }
    let size = plan.size_bytes.unwrap_or(rest - rest % bs);
    if size > rest {
        return Err(Fault::usage(format!(
            "--size {size} is more than {shown} has: {length} bytes, {rest} from --offset {offset}"
        )));
    }
    enough_blocks(plan, size)?;
    Ok(size)
}

fn enough_blocks(plan: &Plan, size: u64) -> Result<(), Fault> {
    let (bs, depth) = (plan.block_bytes, plan.depth_max());
    if size / bs >= depth as u64 {
        return Ok(());
    }
    Err(Fault::usage(format!(
        "{size} bytes are {} blocks of {bs}: too few for --depth {depth}; a smaller --bs or --depth, or a larger file",
        size / bs
    )))
}

/// The own files in `dir`.
fn make(plan: &Plan, dir: &Path) -> Result<TestFile, Fault> {
    if plan.offset_bytes != 0 {
        return Err(Fault::usage(
            "--offset is for a PATH that exists; a file of our own is used from its beginning",
        ));
    }
    let kind = std::fs::metadata(dir).map_err(|error| cannot("open directory", dir, &error))?;
    // Before it is opened: opening a pipe would wait for somebody to write to it.
    if !kind.is_dir() {
        return Err(Fault::usage(format!(
            "--dir {} is not a directory",
            dir.display()
        )));
    }
    let folder = File::open(dir).map_err(|error| cannot("open directory", dir, &error))?;
    let free = fstatvfs(&folder)
        .map(|facts| facts.f_bavail.saturating_mul(facts.f_frsize))
        .map_err(|error| {
            Fault::failed(format!(
                "asking for the free space in {}: {error}",
                dir.display()
            ))
        })?;
    let size = own_size(plan, free, dir)?;
    let (mut buffered, mut direct) = (Vec::new(), Ok(Vec::new()));
    for index in 0..plan.files {
        let (through, past) = make_one(dir, index)?;
        buffered.push(through);
        direct = direct.and_then(|mut list| {
            list.push(past?);
            Ok(list)
        });
    }
    let mut file = TestFile {
        buffered: Arc::from(buffered),
        direct: None,
        offset_bytes: 0,
        file_bytes: size / plan.files as u64,
        contents: Contents::tagged(plan.seed, plan.block_bytes),
        description: described(plan, size, dir),
        notes: Vec::new(),
        cache: plan.cache,
    };
    choose_direct(&mut file, plan, direct.map(Arc::from))?;
    for one in file.buffered.iter() {
        match fallocate(one, FallocateFlags::empty(), 0, file.file_bytes) {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
            Err(error) => return Err(not_enough_space(&io::Error::from(error), size, free, dir)),
        }
    }
    fill(&file, plan).map_err(|fault| match fault {
        Fault::Failed(text) => Fault::failed(format!(
            "{text} (in {}, {free} bytes were free)",
            dir.display()
        )),
        other => other,
    })?;
    Ok(file)
}

fn described(plan: &Plan, size: u64, dir: &Path) -> String {
    let folder = canonical(dir);
    match plan.files as u64 {
        1 => format!(
            "a file of our own in {}, {size} bytes, removed",
            folder.display()
        ),
        files => format!(
            "{files} files of our own in {}, {} bytes each, removed",
            folder.display(),
            size / files
        ),
    }
}

/// One own file, nameless: its handle through the page cache, and past it.
fn make_one(dir: &Path, index: usize) -> Result<(File, io::Result<File>), Fault> {
    if let Some(made) = make_nameless(dir) {
        return Ok(made);
    }
    // This file system makes no file without a name: it has one for a moment.
    let path = dir.join(format!("annulus-bench-{}-{index}.dat", std::process::id()));
    // `create_new`: a file that is there already is somebody's and stays.
    let buffered = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path);
    let buffered = buffered.map_err(|error| cannot("make", &path, &error))?;
    let name = {
        let path = path.clone();
        // If it is gone already, that is what we wanted.
        Removal::new(move || drop(std::fs::remove_file(path)))
    };
    let direct = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(OFlags::DIRECT.bits() as i32)
        .open(&path);
    drop(name);
    Ok((buffered, direct))
}

/// The same, of a file that never has a name, where the file system can do that.
fn make_nameless(dir: &Path) -> Option<(File, io::Result<File>)> {
    let open = |path: &Path, flags: OFlags| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        options.custom_flags(flags.bits() as i32).open(path)
    };
    let buffered = open(dir, OFlags::TMPFILE).ok()?;
    let again = PathBuf::from(format!("/proc/self/fd/{}", buffered.as_raw_fd()));
    // Without /proc there is no second way to it.
    again
        .exists()
        .then(|| open(&again, OFlags::DIRECT))
        .map(|direct| (buffered, direct))
}

fn canonical(dir: &Path) -> PathBuf {
    std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_path_buf())
}

fn own_size(plan: &Plan, free: u64, dir: &Path) -> Result<u64, Fault> {
    // Every file gets as much, in whole blocks.
    let bs = plan.block_bytes * plan.files as u64;
    if let Some(size) = plan.size_bytes {
        if size > free {
            let error = io::Error::from(ErrorKind::StorageFull);
            return Err(not_enough_space(&error, size, free, dir));
        }
        enough_blocks(plan, size)?;
        return Ok(size - size % bs);
    }
    let preferred = match plan.cache {
        Cache::Cold => {
            let rate = (FAST_OPS_PER_SECOND * plan.block_bytes as f64).min(FAST_BYTES_PER_SECOND);
            let bytes = rate * (plan.runtime.as_secs_f64() + 0.3);
            (bytes as u64).clamp(OWN_BYTES, OWN_COLD_BYTES_MAX)
        }
        Cache::Direct | Cache::Hot => OWN_BYTES,
    };
    // A deep queue must go round, and memory made small must not hold the data.
    let preferred = preferred
        .max(plan.block_bytes * plan.depth_max() as u64 * OWN_ROUNDS)
        .max(plan.memory_bytes.unwrap_or(0) * OWN_MEMORIES);
    let size = preferred.min(free / OWN_FREE_SHARE);
    let size = size - size % bs;
    let least = (plan.depth_max() as u64 * plan.block_bytes).max(bs);
    if size < least {
        let least = least * OWN_FREE_SHARE;
        return Err(Fault::failed(format!(
            "no space for a test file in {}: {free} bytes are free, at least {least} are needed; choose another --dir",
            dir.display()
        )));
    }
    Ok(size)
}

fn not_enough_space(error: &io::Error, size: u64, free: u64, dir: &Path) -> Fault {
    Fault::failed(format!(
        "no room for a test file of {size} bytes in {}: {error}; {free} bytes are free; choose a smaller --size or \
         another --dir",
        dir.display()
    ))
}

/// Decides whether direct I/O is possible, and checks its alignment.
fn choose_direct(
    file: &mut TestFile,
    plan: &Plan,
    direct: io::Result<Arc<[File]>>,
) -> Result<(), Fault> {
    let first = &file.buffered[0];
    let impossible = match (&direct, alignment(first)) {
        (Err(error), _) => Some(format!("O_DIRECT is refused ({error})")),
        (Ok(_), Some(0)) => Some("this file system has no direct I/O".to_string()),
        (Ok(_), _) if in_memory(first) => Some("this file system lives in memory".to_string()),
        (Ok(_), Some(align))
            if plan.cache == Cache::Direct && !plan.block_bytes.is_multiple_of(align) =>
        {
            return Err(Fault::usage(format!(
                "--bs {} is not a multiple of {align}, which direct I/O requires here; use --bs {align} or --buffered",
                plan.block_bytes
            )));
        }
        (Ok(_), _) => None,
    };
    match (impossible, direct) {
        (Some(why), _) if plan.cache == Cache::Direct && plan.cache_requested => Err(Fault::usage(
            format!("--direct: {why}; leave it out, or choose another folder"),
        )),
        (Some(why), _) if plan.cache == Cache::Direct => {
            // In memory there is no cold either.
            file.cache = if in_memory(first) {
                Cache::Hot
            } else {
                Cache::Cold
            };
            file.notes.push(format!(
                "{why}: measured {} instead of direct",
                file.cache.label()
            ));
            Ok(())
        }
        (_, direct) => {
            file.direct = direct.ok();
            Ok(())
        }
    }
}

/// What offsets and lengths of direct I/O must be multiples of; zero where there is none, `None` where
/// the kernel cannot say (before Linux 6.1).
fn alignment(file: &File) -> Option<u64> {
    let facts = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    (facts.stx_mask & StatxFlags::DIOALIGN.bits() != 0)
        .then_some(u64::from(facts.stx_dio_offset_align))
}

fn in_memory(file: &File) -> bool {
    // Of a device, the answer would be about the folder of its name.
    let regular = file.metadata().is_ok_and(|meta| meta.is_file());
    regular && fstatfs(file).is_ok_and(|facts| IN_MEMORY.contains(&(facts.f_type as u32)))
}

/// Fills the tested parts with random bytes and tags, and flushes them.
fn fill(file: &TestFile, plan: &Plan) -> Result<(), Fault> {
    let Contents::Tagged { seed, unit_bytes } = file.contents else {
        return Ok(());
    };
    let files = file.buffered.len();
    let failed = |index: usize, at: u64, error: &io::Error| {
        let which = match files {
            1 => "the test file".to_string(),
            _ => format!("test file {} of {files}", index + 1),
        };
        let hint = match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                "; there is no room for all of it: choose a smaller --size, or another folder"
            }
            _ => "",
        };
        Fault::failed(format!("writing {which} at offset {at}: {error}{hint}"))
    };
    // Past the page cache where possible: it is faster, and leaves the cache alone.
    let to = file
        .direct
        .as_ref()
        .filter(|_| plan.block_bytes.is_multiple_of(4096))
        .unwrap_or(&file.buffered);
    let mut memory =
        Memory::new(1, FILL_BYTES as usize).map_err(|error| Fault::failed(error.to_string()))?;
    let mut rng = fastrand::Rng::with_seed(plan.seed);
    let end = file.offset_bytes + file.file_bytes;
    for index in 0..files {
        let mut at = file.offset_bytes;
        while at < end {
            let bytes = &mut memory.only()[..FILL_BYTES.min(end - at) as usize];
            rng.fill(bytes);
            // Stamp zero: no run has written this.
            let dataset_offset = dataset_offset(index as u32, file.file_bytes, at);
            write_tags(bytes, dataset_offset, seed, unit_bytes, 0);
            to[index]
                .write_all_at(bytes, at)
                .map_err(|error| failed(index, at, &error))?;
            at += bytes.len() as u64;
        }
        fdatasync(&file.buffered[index])
            .map_err(|error| failed(index, end, &io::Error::from(error)))?;
    }
    Ok(())
}
