//! The file systems of objects. One may hang, such as a FUSE whose process has stopped, or a frozen disk. Calls on it
//! then occupy only some of the rings' workers and of the threads, so that calls on other file systems continue.
//!
//! The kernel's table of mounts names the file system of a path without a call of that file system.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use annulus::{Backend, Engine};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::blocking::Queue;
use crate::error::Failure;

/// The file systems that wait for no other process or machine, as in the engine. Overlayfs is not one of them: its
/// layers may lie on FUSE or NFS.
const LOCAL: [&str; 7] = ["ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs"];
/// The numbers of opens and of changes that rings make at a time: together one fewer than a ring has kernel workers. So
/// one that does not hang always has a worker, whatever ring it is on.
const RING_OPENS: usize = 3;
const RING_CHANGES: usize = 4;
/// The number of Tokio's blocking threads that a file system may use, an eighth of Tokio's default. Its engine may use
/// as many threads as well.
const THREADS: usize = 64;
/// The time after which the table of mounts is read again.
const TRUSTED: Duration = Duration::from_secs(1);

/// A file system, or those that no mount is known for.
#[derive(Debug)]
pub(crate) struct FileSystem {
    pub(crate) is_local: bool,
    threads: Semaphore,
    /// The changes of few calls for which the rings have no place.
    pub(crate) changes: Queue,
    engine: OnceLock<Engine>,
}

impl FileSystem {
    fn new(is_local: bool) -> &'static FileSystem {
        // Its engine cannot end while a call hangs, so it is never dropped.
        Box::leak(Box::new(FileSystem {
            is_local,
            threads: Semaphore::new(THREADS),
            changes: Queue::default(),
            engine: OnceLock::new(),
        }))
    }

    /// Waits until a call may use one of Tokio's blocking threads.
    pub(crate) async fn thread(&self) -> Option<SemaphorePermit<'_>> {
        // Fails only if it is closed.
        self.threads.acquire().await.ok()
    }

    /// Returns an engine whose blocking threads make calls on this file system only.
    pub(crate) fn engine(&self) -> Result<&Engine, Failure> {
        if let Some(engine) = self.engine.get() {
            return Ok(engine);
        }
        let engine = Engine::builder().backend(Backend::Fallback).build();
        let engine = engine.map_err(Failure::no_engine)?;
        Ok(self.engine.get_or_init(|| engine))
    }
}

/// The file systems of a process, and the permits for its calls on rings.
#[derive(Debug)]
pub(crate) struct FileSystems {
    mounts: RwLock<Mounts>,
    pub(crate) ring_opens: Semaphore,
    pub(crate) ring_changes: Semaphore,
}

#[derive(Debug)]
struct Mounts {
    read: Option<Instant>,
    /// In the order of the kernel, which has the later of two mounts at one path last.
    by_path: Vec<(PathBuf, &'static FileSystem)>,
    /// The file systems by device and kind. The numbers of devices are given out again, so these are not many.
    known: HashMap<(String, String), &'static FileSystem>,
    unknown: &'static FileSystem,
}

impl FileSystems {
    pub(crate) fn new() -> FileSystems {
        FileSystems {
            mounts: RwLock::new(Mounts {
                read: None,
                by_path: Vec::new(),
                known: HashMap::new(),
                unknown: FileSystem::new(false),
            }),
            ring_opens: Semaphore::new(RING_OPENS),
            ring_changes: Semaphore::new(RING_CHANGES),
        }
    }

    /// Returns the file system of a path. A link on the path may lead to another one.
    pub(crate) fn of(&self, path: &Path) -> &'static FileSystem {
        let mounts = self.mounts.read().unwrap_or_else(PoisonError::into_inner);
        if mounts.is_current() {
            return mounts.of(path);
        }
        drop(mounts);
        let mut mounts = self.mounts.write().unwrap_or_else(PoisonError::into_inner);
        if !mounts.is_current() {
            // A table that cannot be read is empty.
            mounts.refresh(&std::fs::read("/proc/thread-self/mountinfo").unwrap_or_default());
        }
        mounts.of(path)
    }
}

impl Mounts {
    fn is_current(&self) -> bool {
        self.read.is_some_and(|read| read.elapsed() < TRUSTED)
    }

    fn of(&self, path: &Path) -> &'static FileSystem {
        let path = path.as_os_str().as_bytes();
        let is_below = |mount: &[u8]| match path.strip_prefix(mount) {
            Some(rest) => mount == b"/" || matches!(rest.first(), None | Some(b'/')),
            None => false,
        };
        let above = self.by_path.iter().filter_map(|(mount, system)| {
            let mount = mount.as_os_str().as_bytes();
            is_below(mount).then_some((mount.len(), *system))
        });
        let nearest = above.max_by_key(|(bytes, _)| *bytes);
        nearest.map_or(self.unknown, |(_, system)| system)
    }

    /// Reads a table in the form of `/proc/thread-self/mountinfo`.
    fn refresh(&mut self, table: &[u8]) {
        self.read = Some(Instant::now());
        self.by_path.clear();
        for line in table.split(|byte| *byte == b'\n') {
            let mut fields = line.split(|byte| *byte == b' ');
            let (Some(device), Some(mount)) = (fields.nth(2), fields.nth(1)) else {
                continue;
            };
            let kind = fields.skip_while(|field| *field != b"-").nth(1);
            let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
            let key = (text(device), text(kind.unwrap_or_default()));
            let is_local = LOCAL.contains(&key.1.as_str());
            let known = self.known.entry(key);
            let system = *known.or_insert_with(|| FileSystem::new(is_local));
            self.by_path.push((unescaped(mount), system));
        }
    }
}

/// Replaces `\040` and the like by their bytes.
fn unescaped(field: &[u8]) -> PathBuf {
    let (mut path, mut rest) = (Vec::with_capacity(field.len()), field);
    while let [byte, after @ ..] = rest {
        rest = after;
        path.push(match (*byte, after) {
            (
                b'\\',
                [
                    a @ b'0'..=b'3',
                    b @ b'0'..=b'7',
                    c @ b'0'..=b'7',
                    after @ ..,
                ],
            ) => {
                rest = after;
                (a - b'0') << 6 | (b - b'0') << 3 | (c - b'0')
            }
            _ => *byte,
        });
    }
    OsString::from_vec(path).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
20 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
21 20 0:21 / /tmp rw - tmpfs tmpfs rw\n\
22 20 0:50 / /with\\040space\\134 rw master:1 propagate_from:2 - fuse.sshfs host: rw\n\
23 20 0:51 / /data rw - overlay overlay rw\n\
24 23 254:1 / /data rw - f2fs /dev/vdb rw\n\
25 24 254:0 /folder /data/bound rw - ext4 /dev/vda rw\n";

    #[test]
    fn a_path_is_on_the_last_and_longest_mount_above_it() {
        let systems = FileSystems::new();
        let mut mounts = systems.mounts.write().unwrap();
        assert!(!mounts.of(Path::new("/a")).is_local, "no table");
        mounts.refresh(TABLE.as_bytes());
        for (path, is_local) in [
            ("/", true),
            ("/a/b", true),
            ("/tmp", true),
            ("/with space\\/a", false),
            ("/with space\\x", true),
            ("/data/a", true),
        ] {
            assert_eq!(mounts.of(Path::new(path)).is_local, is_local, "{path}");
        }
        let root = mounts.of(Path::new("/a"));
        for (path, is_root) in [
            ("/tmpx", true),
            ("/data/bound/a", true),
            ("/tmp/a", false),
            ("/data/boundx", false),
        ] {
            let system = mounts.of(Path::new(path));
            assert_eq!(std::ptr::eq(system, root), is_root, "{path}");
        }
        mounts.refresh(b"");
        assert!(!mounts.of(Path::new("/a")).is_local);
        mounts.refresh(TABLE.as_bytes());
        assert!(std::ptr::eq(root, mounts.of(Path::new("/a"))), "one engine");
    }
}
