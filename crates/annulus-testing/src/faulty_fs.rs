//! A file system in memory with faults. The test's plan receives each call first and chooses its fault.
//!
//! Each test mounts a separate file system; dropping it unmounts it. Reads and writes bypass the page cache, so each
//! call of a program is one call here.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem,
    FopenFlags, Generation, INodeNo, LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

/// The inode of the initial file.
const FIRST: u64 = 2;
/// The number of calls that are handled in parallel, so that a slow one does not delay the others.
const THREADS: usize = 2;

/// A call of a program on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A read.
    Read {
        /// The position in the file.
        offset: u64,
        /// The number of bytes.
        len: usize,
    },
    /// A write.
    Write {
        /// The position in the file.
        offset: u64,
        /// The number of bytes.
        len: usize,
    },
    /// A sync of the file.
    Fsync,
    /// An open, of a file system that was mounted with `mount_cached`.
    Open,
    /// A query of the attributes, of a file system that was mounted with `mount_cached`.
    Attributes,
    /// A close of a descriptor, of a file system that was mounted with `mount_cached`.
    Flush,
}

/// The fault of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call succeeds.
    None,
    /// The call fails with this errno.
    Error(i32),
    /// The call transfers at most this number of bytes.
    Short(usize),
    /// The call succeeds after this time.
    Slow(Duration),
}

type Plan = dyn Fn(Call) -> Fault + Send + Sync;

/// The time in which files are closed when a file system is dropped. Some tests keep one open on purpose.
const CLOSES_WITHIN: Duration = Duration::from_secs(2);

/// A mounted file system.
pub struct FaultyFs {
    session: Option<BackgroundSession>,
    folder: PathBuf,
}

impl FaultyFs {
    /// Mounts a file system at `folder`, with a file `name` that has these bytes.
    pub fn mount(
        folder: &Path,
        name: &str,
        bytes: Vec<u8>,
        plan: impl Fn(Call) -> Fault + Send + Sync + 'static,
    ) -> io::Result<FaultyFs> {
        Self::mount_with(folder, name, bytes, None, plan)
    }

    /// Mounts a file system whose names the kernel caches for a minute. The plan also receives opens, and queries of
    /// attributes, which are not cached.
    pub fn mount_cached(
        folder: &Path,
        name: &str,
        bytes: Vec<u8>,
        plan: impl Fn(Call) -> Fault + Send + Sync + 'static,
    ) -> io::Result<FaultyFs> {
        Self::mount_with(folder, name, bytes, Some(Duration::from_secs(60)), plan)
    }

    fn mount_with(
        folder: &Path,
        name: &str,
        bytes: Vec<u8>,
        names_for: Option<Duration>,
        plan: impl Fn(Call) -> Fault + Send + Sync + 'static,
    ) -> io::Result<FaultyFs> {
        let files = Files {
            names: HashMap::from([(name.into(), FIRST)]),
            bytes: HashMap::from([(FIRST, bytes)]),
            last: FIRST,
        };
        let memory = Memory {
            files: Mutex::new(files),
            plan: Arc::new(plan),
            names_for,
        };
        let mut config = Config::default();
        config.n_threads = Some(THREADS);
        let folder = folder.canonicalize()?;
        let session = fuser::spawn_mount(memory, &folder, &config)?;
        Ok(FaultyFs {
            session: Some(session),
            folder,
        })
    }
}

impl Drop for FaultyFs {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else {
            return;
        };
        // An engine may close a file later, on another thread. If the process ended first, that close would never
        // return, because the threads that reply end with the process.
        let last = Instant::now() + CLOSES_WITHIN;
        while has_open_file(&self.folder) && Instant::now() < last {
            thread::sleep(Duration::from_millis(1));
        }
        // If a process still has a file open there, the mount ends with the test's mount namespace.
        let _ = session.umount_and_join();
    }
}

/// Returns whether this process has a file open below `folder`.
fn has_open_file(folder: &Path) -> bool {
    let Ok(descriptors) = std::fs::read_dir("/proc/self/fd") else {
        return false;
    };
    let links = descriptors.flatten().map(|entry| entry.path().read_link());
    links
        .flatten()
        .any(|target| target.starts_with(folder) && target != folder)
}

struct Files {
    names: HashMap<OsString, u64>,
    bytes: HashMap<u64, Vec<u8>>,
    last: u64,
}

struct Memory {
    files: Mutex<Files>,
    plan: Arc<Plan>,
    /// The time that the kernel caches names, if it does.
    names_for: Option<Duration>,
}

impl Memory {
    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap()
    }

    /// Returns the fault from the test's plan: an error, or the maximum number of bytes.
    fn fault(&self, call: Call) -> Result<usize, Errno> {
        match (self.plan)(call) {
            Fault::None => Ok(usize::MAX),
            Fault::Error(errno) => Err(Errno::from_i32(errno)),
            Fault::Short(bytes) => Ok(bytes),
            Fault::Slow(time) => {
                thread::sleep(time);
                Ok(usize::MAX)
            }
        }
    }
}

impl Files {
    fn attributes(&self, inode: u64) -> Option<FileAttr> {
        let size = self.bytes.get(&inode).map(|bytes| bytes.len() as u64);
        let is_root = inode == u64::from(INodeNo::ROOT);
        let kind = if is_root {
            FileType::Directory
        } else {
            FileType::RegularFile
        };
        Some(FileAttr {
            ino: INodeNo(inode),
            size: if is_root { 0 } else { size? },
            blocks: size.unwrap_or(0).div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm: if is_root { 0o755 } else { 0o644 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }
}

impl Filesystem for Memory {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let files = self.files();
        let found = files.names.get(name).copied();
        match found.and_then(|inode| files.attributes(inode)) {
            Some(attributes) => {
                let ttl = self.names_for.unwrap_or_default();
                reply.entry(&ttl, &attributes, Generation(0));
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        if self.names_for.is_some()
            && inode != INodeNo::ROOT
            && let Err(errno) = self.fault(Call::Attributes)
        {
            return reply.error(errno);
        }
        match self.files().attributes(inode.into()) {
            Some(attributes) => reply.attr(&Duration::ZERO, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut files = self.files();
        if let (Some(size), Some(bytes)) = (size, files.bytes.get_mut(&inode.into())) {
            bytes.resize(size as usize, 0);
        }
        match files.attributes(inode.into()) {
            Some(attributes) => reply.attr(&Duration::ZERO, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        name: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let mut files = self.files();
        files.last += 1;
        let inode = files.last;
        files.names.insert(name.into(), inode);
        files.bytes.insert(inode, Vec::new());
        let attributes = files.attributes(inode).unwrap();
        let direct = FopenFlags::FOPEN_DIRECT_IO;
        reply.created(
            &Duration::ZERO,
            &attributes,
            Generation(0),
            FileHandle(0),
            direct,
        );
    }

    // The bytes stay, because a process may still have the file open.
    fn unlink(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        match self.files().names.remove(name) {
            Some(_) => reply.ok(),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if self.names_for.is_some()
            && let Err(errno) = self.fault(Call::Open)
        {
            return reply.error(errno);
        }
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let len = size as usize;
        match self.fault(Call::Read { offset, len }) {
            Err(errno) => reply.error(errno),
            Ok(most) => {
                let files = self.files();
                let bytes = files
                    .bytes
                    .get(&inode.into())
                    .map_or(&[][..], Vec::as_slice);
                let from = (offset as usize).min(bytes.len());
                let to = (from + len.min(most)).min(bytes.len());
                reply.data(&bytes[from..to]);
            }
        }
    }

    fn write(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let len = data.len();
        match self.fault(Call::Write { offset, len }) {
            Err(errno) => reply.error(errno),
            Ok(most) => {
                let mut files = self.files();
                let (from, count) = (offset as usize, len.min(most));
                let bytes = files.bytes.entry(inode.into()).or_default();
                let end = bytes.len().max(from + count);
                bytes.resize(end, 0);
                bytes[from..from + count].copy_from_slice(&data[..count]);
                reply.written(count as u32);
            }
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        if self.names_for.is_some()
            && let Err(errno) = self.fault(Call::Flush)
        {
            return reply.error(errno);
        }
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        match self.fault(Call::Fsync) {
            Err(errno) => reply.error(errno),
            Ok(_) => reply.ok(),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        // 1 GiB, all of it free.
        let blocks = 1 << 18;
        reply.statfs(blocks, blocks, blocks, 1000, 1000, 4096, 255, 4096);
    }
}
