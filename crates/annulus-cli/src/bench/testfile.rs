//! The test files: files that the tool creates without a name, or a file of the user, which is left unchanged.
//!
//! A command has one `TestFile`. A file that the tool creates never has a name, or loses it as soon as it is open.
//! Nothing stays behind, however the process ends.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use annulus_baselines::Memory;
use rustix::fs::{
    AtFlags, FallocateFlags, OFlags, StatxFlags, fallocate, fdatasync, fstatfs, fstatvfs, seek,
    statx, syncfs,
};

use super::check::{Contents, dataset_offset, write_tags};
use super::job::{Cache, Plan};
use super::limit::Limit;
use crate::fault::Fault;
use crate::signals::Removal;

/// The size of the tool's file, unless a cold run would use up its blocks.
const OWN_BYTES: u64 = 1 << 30;
const OWN_COLD_BYTES_MAX: u64 = 8 << 30;
/// The tool's file takes at most this fraction of the free space.
const OWN_FREE_SHARE: u64 = 4;
/// The tool's file has this number of blocks for each outstanding operation, and this multiple of `--memory`.
const OWN_ROUNDS: u64 = 4;
const OWN_MEMORIES: u64 = 4;
/// The speed of a fast disk: a cold run at this speed must not use up the blocks of the tool's file.
const FAST_OPS_PER_SECOND: f64 = 150_000.0;
const FAST_BYTES_PER_SECOND: f64 = 3e9;
/// The length of a write when a file is filled.
const FILL_BYTES: u64 = 4 << 20;
/// File systems in memory (`TMPFS_MAGIC`, `RAMFS_MAGIC`): they accept O_DIRECT and ignore it.
const IN_MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// The open files, usually one, and their properties.
pub(crate) struct TestFile {
    /// Handles through the page cache. Never empty.
    pub(crate) buffered: Arc<[File]>,
    /// Handles that bypass it, if the file system supports that; in the same order.
    direct: Option<Arc<[File]>>,
    /// The small files of a load that opens them. `buffered` then has only the first.
    tree: Option<Tree>,
    /// The start of the used part of each file.
    pub(crate) offset_bytes: u64,
    /// The length of the used part of each file.
    pub(crate) file_bytes: u64,
    pub(crate) contents: Contents,
    /// The location and the origin of the file, for the heading.
    pub(crate) description: String,
    /// Notes for the heading.
    pub(crate) notes: Vec<String>,
    /// The memory limit of the runs.
    pub(crate) limit: Option<Limit>,
    /// The page cache mode in use, which may differ from the plan's.
    pub(crate) cache: Cache,
}

impl TestFile {
    /// Opens or creates the file of `plan`.
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

    /// Returns the length of all used parts together.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.file_bytes * self.count() as u64
    }

    /// Returns the number of files.
    pub(crate) fn count(&self) -> usize {
        self.tree
            .as_ref()
            .map_or(self.buffered.len(), |tree| tree.paths.len())
    }

    /// Returns the paths of small files.
    pub(crate) fn paths(&self) -> Arc<[PathBuf]> {
        self.tree
            .as_ref()
            .map_or([].into(), |tree| Arc::clone(&tree.paths))
    }

    /// Calls `act` with each file. A small file is open only meanwhile.
    pub(crate) fn each(
        &self,
        mut act: impl FnMut(&File) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let Some(tree) = &self.tree else {
            return self.buffered.iter().try_for_each(act);
        };
        for path in tree.paths.iter() {
            act(&File::open(path).map_err(|error| cannot("open", path, &error))?)?;
        }
        Ok(())
    }

    /// Returns the handles that bypass the page cache, for variants that read directly in any case.
    pub(crate) fn direct_handles(&self) -> Option<Arc<[File]>> {
        self.direct.clone()
    }

    /// Returns the handles for the runs.
    pub(crate) fn handles(&self) -> Arc<[File]> {
        match (self.cache, &self.direct) {
            (Cache::Direct, Some(direct)) => Arc::clone(direct),
            _ => Arc::clone(&self.buffered),
        }
    }
}

/// Small files with names, in a folder that is removed at the end.
struct Tree {
    paths: Arc<[PathBuf]>,
    _removal: Removal,
}

fn cannot(verb: &str, path: &Path, error: &io::Error) -> Fault {
    let link = std::fs::read_link(path).ok();
    let hint = match (error.kind(), link) {
        (ErrorKind::NotFound, Some(target)) => {
            format!(
                "; it is a link to {}, which does not exist",
                target.display()
            )
        }
        (ErrorKind::NotFound, None) => "; without a path, a test file is created here".into(),
        (ErrorKind::PermissionDenied, _) => {
            "; run as a user with permission, or choose another folder".into()
        }
        (ErrorKind::ReadOnlyFilesystem, _) => "; choose a --dir on a writable file system".into(),
        _ => String::new(),
    };
    Fault::usage(format!("cannot {verb} {}: {error}{hint}", path.display()))
}

/// Opens a file of the user or a device.
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
            "{shown} is not a file, a block device or a directory"
        )));
    }
    if plan.writes() && !plan.overwrite {
        return Err(Fault::usage(format!(
            "{shown} exists and this load would write to it; --overwrite allows that and destroys its contents, \
             or give a directory"
        )));
    }
    let open = |flags: OFlags| {
        let mut options = OpenOptions::new();
        options.read(true).write(plan.writes());
        options.custom_flags(flags.bits() as i32).open(path)
    };
    // O_EXCL without O_CREAT refuses a block device that is mounted or otherwise in use. The first handle then holds
    // the device, so the second one must be opened without the flag.
    let exclusive = plan.writes() && kind.is_block_device();
    let first = if exclusive {
        OFlags::EXCL
    } else {
        OFlags::empty()
    };
    let buffered = open(first).map_err(|error| match error.kind() {
        ErrorKind::ResourceBusy => Fault::usage(format!(
            "{shown} is in use (mounted?), so it is not written to"
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
        limit: None,
        tree: None,
        cache: plan.cache,
    };
    choose_direct(&mut file, plan, direct)?;
    if plan.writes() {
        file.contents = Contents::tagged(plan.seed, plan.block_bytes);
        fill(&file, plan)?;
        file.notes.push(format!(
            "{shown}: the used part was filled with test data first (--overwrite)"
        ));
    }
    Ok(file)
}

/// Returns the length of a file or a device. Some files that can be opened have none.
fn length_of(file: &File, path: &Path) -> Result<u64, Fault> {
    seek(file, rustix::fs::SeekFrom::End(0)).map_err(|error| {
        Fault::usage(format!(
            "cannot determine the length of {} ({error}): choose a regular file or a block device",
            path.display()
        ))
    })
}

/// Returns the length of the used part of an existing file: `--size` from `--offset`, or all of the rest.
fn part_of(plan: &Plan, path: &Path, length: u64) -> Result<u64, Fault> {
    let (shown, bs, offset) = (path.display(), plan.block_bytes, plan.offset_bytes);
    if length == 0 {
        return Err(Fault::usage(format!(
            "{shown} is empty; choose a file with data"
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
            "--size {size} exceeds {shown}: {length} bytes, {rest} from --offset {offset}"
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
        "{size} bytes have {} blocks of {bs}, fewer than --depth {depth}; use a larger file, or a smaller --bs",
        size / bs
    )))
}

/// Creates the tool's files in `dir`.
fn make(plan: &Plan, dir: &Path) -> Result<TestFile, Fault> {
    if plan.offset_bytes != 0 {
        return Err(Fault::usage(
            "--offset needs a PATH that exists; a file that the tool creates is used from its start",
        ));
    }
    let kind = std::fs::metadata(dir).map_err(|error| cannot("open directory", dir, &error))?;
    // Checked before opening: opening a FIFO blocks until another process opens it for writing.
    if !kind.is_dir() {
        return Err(Fault::usage(format!(
            "--dir {} is not a directory",
            dir.display()
        )));
    }
    let folder = File::open(dir).map_err(|error| cannot("open directory", dir, &error))?;
    if plan.opens {
        return make_tree(plan, dir, &folder);
    }
    let free = fstatvfs(&folder)
        .map(|facts| facts.f_bavail.saturating_mul(facts.f_frsize))
        .map_err(|error| {
            Fault::failed(format!(
                "reading the free space in {}: {error}",
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
        limit: None,
        tree: None,
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

/// Creates small files of one block each.
fn make_tree(plan: &Plan, dir: &Path, folder: &File) -> Result<TestFile, Fault> {
    enough_blocks(plan, plan.files as u64 * plan.block_bytes)?;
    let inner = dir.join(format!("annulus-bench-{}", std::process::id()));
    std::fs::create_dir(&inner).map_err(|error| cannot("create", &inner, &error))?;
    let removal = {
        let inner = inner.clone();
        Removal::new(move || drop(std::fs::remove_dir_all(inner)))
    };
    let contents = Contents::tagged(plan.seed, plan.block_bytes);
    let mut rng = fastrand::Rng::with_seed(plan.seed);
    let mut bytes = vec![0; plan.block_bytes as usize];
    let mut paths = Vec::with_capacity(plan.files);
    for index in 0..plan.files {
        crate::signals::check("small files were being created")?;
        rng.fill(&mut bytes);
        if let Contents::Tagged { seed, unit_bytes } = contents {
            write_tags(
                &mut bytes,
                dataset_offset(index as u32, plan.block_bytes, 0),
                seed,
                unit_bytes,
                0,
            );
        }
        let path = inner.join(index.to_string());
        std::fs::write(&path, &bytes).map_err(|error| cannot("write", &path, &error))?;
        paths.push(path);
    }
    // Dirty pages cannot be evicted.
    syncfs(folder).map_err(|error| Fault::failed(format!("flushing the small files: {error}")))?;
    let first = File::open(&paths[0]).map_err(|error| cannot("open", &paths[0], &error))?;
    Ok(TestFile {
        buffered: Arc::new([first]),
        direct: None,
        tree: Some(Tree {
            paths: paths.into(),
            _removal: removal,
        }),
        offset_bytes: 0,
        file_bytes: plan.block_bytes,
        contents,
        description: format!(
            "{} files created in {}, {} bytes each, removed at the end",
            plan.files,
            canonical(dir).display(),
            plan.block_bytes
        ),
        notes: Vec::new(),
        limit: None,
        cache: plan.cache,
    })
}

fn described(plan: &Plan, size: u64, dir: &Path) -> String {
    let folder = canonical(dir);
    match plan.files as u64 {
        1 => format!(
            "a file created in {}, {size} bytes, removed",
            folder.display()
        ),
        files => format!(
            "{files} files created in {}, {} bytes each, removed",
            folder.display(),
            size / files
        ),
    }
}

/// Creates a file without a name. Returns its handles through the page cache and past it.
fn make_one(dir: &Path, index: usize) -> Result<(File, io::Result<File>), Fault> {
    if let Some(made) = make_nameless(dir) {
        return Ok(made);
    }
    // This file system does not support O_TMPFILE, so the file has a name for a moment.
    let path = dir.join(format!("annulus-bench-{}-{index}.dat", std::process::id()));
    // `create_new` never opens a file that exists.
    let buffered = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path);
    let buffered = buffered.map_err(|error| cannot("create", &path, &error))?;
    let name = {
        let path = path.clone();
        // It may already have been removed.
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

/// Creates a file with `O_TMPFILE`, which never has a name, if the file system supports it.
fn make_nameless(dir: &Path) -> Option<(File, io::Result<File>)> {
    let open = |path: &Path, flags: OFlags| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        options.custom_flags(flags.bits() as i32).open(path)
    };
    let buffered = open(dir, OFlags::TMPFILE).ok()?;
    let again = PathBuf::from(format!("/proc/self/fd/{}", buffered.as_raw_fd()));
    // Without /proc it cannot be opened a second time.
    again
        .exists()
        .then(|| open(&again, OFlags::DIRECT))
        .map(|direct| (buffered, direct))
}

fn canonical(dir: &Path) -> PathBuf {
    std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_path_buf())
}

fn own_size(plan: &Plan, free: u64, dir: &Path) -> Result<u64, Fault> {
    // All files have the same length, in whole blocks.
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
        Cache::Direct | Cache::Hot | Cache::Full => OWN_BYTES,
    };
    let preferred = plan
        .own_blocks
        .map_or(preferred, |blocks| blocks * plan.block_bytes);
    // A deep queue needs several rounds, and the data must exceed the memory limit.
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
        "no space for a test file of {size} bytes in {}: {error}; {free} bytes are free; choose a smaller --size or \
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
        (Ok(_), _) if in_memory(first) => Some("this file system is in memory".to_string()),
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
            format!("--direct: {why}; omit it, or choose another folder"),
        )),
        (Some(why), _) if plan.cache == Cache::Direct => {
            // A file system in memory has no cold state.
            file.cache = if in_memory(first) {
                Cache::Hot
            } else {
                Cache::Cold
            };
            file.notes.push(format!(
                "{why}, so this measures {} instead of direct",
                file.cache.label()
            ));
            Ok(())
        }
        (why, direct) => {
            let aligned = alignment(&file.buffered[0])
                .is_none_or(|align| align > 0 && plan.block_bytes.is_multiple_of(align));
            file.direct = direct.ok().filter(|_| why.is_none() && aligned);
            Ok(())
        }
    }
}

/// Returns the alignment of offsets and lengths for direct I/O: zero if it is not supported, `None` if the kernel does
/// not report it (before Linux 6.1).
fn alignment(file: &File) -> Option<u64> {
    let facts = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    (facts.stx_mask & StatxFlags::DIOALIGN.bits() != 0)
        .then_some(u64::from(facts.stx_dio_offset_align))
}

fn in_memory(file: &File) -> bool {
    // For a device, this would report the file system of its device node.
    let regular = file.metadata().is_ok_and(|meta| meta.is_file());
    regular && fstatfs(file).is_ok_and(|facts| IN_MEMORY.contains(&(facts.f_type as u32)))
}

/// Fills the used parts with random bytes and tags, and flushes them.
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
                "; there is not enough space: choose a smaller --size, or another folder"
            }
            _ => "",
        };
        Fault::failed(format!("writing {which} at offset {at}: {error}{hint}"))
    };
    // Bypassing the page cache is faster, and leaves the cache unchanged.
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
