//! The test files: files that the tool creates without a name, or a file of the user, which is left unchanged.
//!
//! A command has one `TestFile`. A file that the tool creates never has a name, or loses it as soon as it is open.
//! Nothing stays behind, however the process ends.

mod created;

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use annulus_baselines::Memory;
use rustix::fs::{AtFlags, OFlags, StatxFlags, fdatasync, fstatfs, seek, statx};

use super::check::{Contents, dataset_offset, write_tags};
use super::limit::Limit;
use super::plan::Plan;
use crate::args::Cache;
use crate::fault::Fault;
use crate::signals::Removal;

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
            return created::make(plan, plan.dir.as_deref().unwrap_or(Path::new(".")));
        };
        let meta = std::fs::metadata(path).map_err(|error| cannot("open", path, &error))?;
        if meta.is_dir() {
            return created::make(plan, path);
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
    usage!("cannot {verb} {}: {error}{hint}", path.display())
}

/// Opens a file of the user or a device.
fn existing(plan: &Plan, path: &Path, meta: &Metadata) -> Result<TestFile, Fault> {
    let shown = path.display();
    if plan.files > 1 {
        return Err(usage!(
            "--files {} creates its own files: give a directory, not {shown}",
            plan.files
        ));
    }
    let kind = meta.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(usage!(
            "{shown} is not a file, a block device or a directory"
        ));
    }
    if plan.writes() && !plan.overwrite {
        return Err(usage!(
            "{shown} exists and this load would write to it; --overwrite allows that and destroys its contents, \
             or give a directory"
        ));
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
        ErrorKind::ResourceBusy => usage!("{shown} is in use (mounted?), so it is not written to"),
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
        usage!(
            "cannot determine the length of {} ({error}): choose a regular file or a block device",
            path.display()
        )
    })
}

/// Returns the length of the used part of an existing file: `--size` from `--offset`, or all of the rest.
fn part_of(plan: &Plan, path: &Path, length: u64) -> Result<u64, Fault> {
    let (shown, bs, offset) = (path.display(), plan.block_bytes, plan.offset_bytes);
    if length == 0 {
        return Err(usage!("{shown} is empty; choose a file with data"));
    }
    if offset >= length {
        return Err(usage!(
            "--offset {offset} is beyond the end of {shown} ({length} bytes)"
        ));
    }
    let rest = length - offset;
    if rest < bs {
        return Err(usage!(
            "{shown} has {length} bytes, {rest} from --offset {offset}: less than one block of {bs}; choose a larger \
             file, or a smaller --bs"
        ));
    }
    let size = plan.size_bytes.unwrap_or(rest - rest % bs);
    if size > rest {
        return Err(usage!(
            "--size {size} exceeds {shown}: {length} bytes, {rest} from --offset {offset}"
        ));
    }
    enough_blocks(plan, size)?;
    Ok(size)
}

fn enough_blocks(plan: &Plan, size: u64) -> Result<(), Fault> {
    let (bs, depth) = (plan.block_bytes, plan.depth_max());
    if size / bs >= depth as u64 {
        return Ok(());
    }
    Err(usage!(
        "{size} bytes have {} blocks of {bs}, fewer than --depth {depth}; use a larger file, or a smaller --bs",
        size / bs
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
            return Err(usage!(
                "--bs {} is not a multiple of {align}, which direct I/O requires here; use --bs {align} or --buffered",
                plan.block_bytes
            ));
        }
        (Ok(_), _) => None,
    };
    match (impossible, direct) {
        (Some(why), _) if plan.cache == Cache::Direct && plan.cache_requested => {
            Err(usage!("--direct: {why}; omit it, or choose another folder"))
        }
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
        failed!("writing {which} at offset {at}: {error}{hint}")
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
