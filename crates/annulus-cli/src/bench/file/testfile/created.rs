//! Test files that the tool creates: one or several without a name, or a tree of small files.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, OFlags, fallocate, fstatvfs, syncfs};

use super::{TestFile, Tree, cannot, choose_direct, enough_blocks, fill};
use crate::args::Cache;
use crate::bench::file::check::{Contents, dataset_offset, write_tags};
use crate::bench::file::plan::Plan;
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

/// Creates the tool's files in `dir`.
pub(super) fn make(plan: &Plan, dir: &Path) -> Result<TestFile, Fault> {
    if plan.offset_bytes != 0 {
        return Err(Fault::usage(
            "--offset needs a PATH that exists; a file that the tool creates is used from its start",
        ));
    }
    let kind = std::fs::metadata(dir).map_err(|error| cannot("open directory", dir, &error))?;
    // Checked before opening: opening a FIFO blocks until another process opens it for writing.
    if !kind.is_dir() {
        return Err(usage!("--dir {} is not a directory", dir.display()));
    }
    let folder = File::open(dir).map_err(|error| cannot("open directory", dir, &error))?;
    if plan.load.opens {
        return make_tree(plan, dir, &folder);
    }
    let free = fstatvfs(&folder)
        .map(|facts| facts.f_bavail.saturating_mul(facts.f_frsize))
        .map_err(|error| failed!("reading the free space in {}: {error}", dir.display()))?;
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
        Fault::Failed(text) => failed!("{text} (in {}, {free} bytes were free)", dir.display()),
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
    syncfs(folder).map_err(|error| failed!("flushing the small files: {error}"))?;
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
        .load
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
        return Err(failed!(
            "no space for a test file in {}: {free} bytes are free, at least {least} are needed; choose another --dir",
            dir.display()
        ));
    }
    Ok(size)
}

fn not_enough_space(error: &io::Error, size: u64, free: u64, dir: &Path) -> Fault {
    failed!(
        "no space for a test file of {size} bytes in {}: {error}; {free} bytes are free; choose a smaller --size or \
         another --dir",
        dir.display()
    )
}
