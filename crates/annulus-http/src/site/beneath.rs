//! The root directory and the files below it.
//!
//! Paths are resolved by openat2 with RESOLVE_BENEATH, so the kernel itself refuses links that lead out, even during
//! renames. A site has one root, which is also used from blocking threads.
//!
//! Without openat2 (before Linux 5.6, or forbidden by seccomp), `walk` opens a path name by name. It also does so if
//! the kernel returns `EAGAIN`. The kernel returns it for a path with `..`, usually from a link, whenever anything on
//! the machine is renamed or mounted during the lookup. A program that renames all the time could otherwise prevent
//! such links from being served.
//!
//! [`Reach::Now`] resolves a path from memory and never waits for a disk (RESOLVE_CACHED, Linux 5.12). A repeated
//! lookup then takes a core two microseconds and no thread hop. A path that is not in memory fails with `EAGAIN`, and
//! is resolved with [`Reach::Wait`] on a blocking thread.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::fs::{self, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::walk;

/// The number of attempts if the kernel returns `EAGAIN` because of a rename, or the call is interrupted.
const TRIES_MAX: u32 = 4;

/// The choice between failing and waiting if a lookup needs a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The lookup fails with `EAGAIN` instead of waiting.
    Now,
    /// The lookup may wait, so it runs on a blocking thread.
    Wait,
}

/// The methods of resolving paths, as stored in [`Root::way`].
const WAY_CACHED: u8 = 0;
/// RESOLVE_CACHED is not supported; all lookups run on blocking threads.
const WAY_BENEATH: u8 = 1;
/// openat2 is not available.
const WAY_WALK: u8 = 2;

/// The root directory of a site.
#[derive(Debug)]
pub(crate) struct Root {
    dir: OwnedFd,
    way: AtomicU8,
}

/// The metadata of a file that identifies a version of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileState {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) bytes: u64,
    /// Seconds and nanoseconds since 1970.
    pub(crate) modified: (i64, u32),
    pub(crate) changed: (i64, u32),
    pub(crate) kind: Kind,
    access: Access,
}

/// The mode, the owner and the group of a file.
type Access = (u32, u32, u32);

/// The device and inode of a file, and its access. An open file's inode is not reused. With another access, the file is
/// opened again, so that the kernel checks the permission.
pub(crate) type FileId = (u64, u64, Access);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    /// A pipe, a socket or a device. It is never opened.
    Special,
}

impl FileState {
    pub(crate) fn of(fd: impl AsFd) -> Result<FileState, Errno> {
        let stat = fs::fstat(fd)?;
        Ok(FileState::from(&stat))
    }

    pub(crate) fn id(&self) -> FileId {
        (self.device, self.inode, self.access)
    }
}

// The field types differ between architectures.
#[allow(clippy::unnecessary_cast)]
impl From<&fs::Stat> for FileState {
    fn from(stat: &fs::Stat) -> FileState {
        FileState {
            device: stat.st_dev as u64,
            inode: stat.st_ino as u64,
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            modified: (stat.st_mtime as i64, stat.st_mtime_nsec as u32),
            changed: (stat.st_ctime as i64, stat.st_ctime_nsec as u32),
            kind: match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => Kind::File,
                FileType::Directory => Kind::Directory,
                _ => Kind::Special,
            },
            access: (stat.st_mode as u32, stat.st_uid, stat.st_gid),
        }
    }
}

impl Root {
    pub(crate) fn open(path: &Path) -> io::Result<Root> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = fs::openat(CWD, path, flags, Mode::empty())?;
        Ok(Root {
            dir,
            way: AtomicU8::new(WAY_CACHED),
        })
    }

    /// Opens a root that behaves as without openat2.
    #[cfg(test)]
    pub(crate) fn walking(path: &Path) -> io::Result<Root> {
        let root = Root::open(path)?;
        root.way.store(WAY_WALK, Ordering::Relaxed);
        Ok(root)
    }

    /// Returns the metadata of a path without opening the file, so that no pipe gets a reader and no device is
    /// activated. `path` has no leading slash and may be empty.
    pub(crate) fn look(&self, path: &[u8], reach: Reach) -> Result<FileState, Errno> {
        FileState::of(self.open_at(path, OFlags::PATH, reach)?)
    }

    /// Opens a regular file for reading. Fails with `ENOENT` for any other kind of file.
    pub(crate) fn open_file(&self, path: &[u8], reach: Reach) -> Result<(File, FileState), Errno> {
        // NONBLOCK: if the file was replaced by a pipe, the open does not wait for a writer.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = self.open_at(path, flags, reach)?;
        let state = FileState::of(&fd)?;
        match state.kind {
            Kind::File => Ok((File::from(fd), state)),
            _ => Err(Errno::NOENT),
        }
    }

    /// Opens a directory for reading.
    pub(crate) fn open_dir(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY, Reach::Wait)
    }

    fn open_at(&self, path: &[u8], flags: OFlags, reach: Reach) -> Result<OwnedFd, Errno> {
        let path = if path.is_empty() { b"." } else { path };
        let flags = flags | OFlags::CLOEXEC;
        let mut tries = TRIES_MAX;
        loop {
            let way = self.way.load(Ordering::Relaxed);
            let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
            match (way, reach) {
                (WAY_CACHED, Reach::Now) => resolve |= ResolveFlags::CACHED,
                (_, Reach::Now) => return Err(Errno::AGAIN),
                (WAY_WALK, Reach::Wait) => return walk::open(self.dir.as_fd(), path, flags),
                (_, Reach::Wait) => {}
            }
            tries -= 1;
            match fs::openat2(&self.dir, path, flags, Mode::empty(), resolve) {
                // openat2 is missing, or seccomp forbids it. A probe on the root itself distinguishes this from a path
                // error.
                Err(Errno::PERM | Errno::NOSYS) if !self.has_openat2() => self.lower(WAY_WALK),
                Err(Errno::INVAL) if reach == Reach::Now => self.lower(WAY_BENEATH),
                Err(Errno::AGAIN) if reach == Reach::Now => return Err(Errno::AGAIN),
                Err(Errno::AGAIN | Errno::INTR) if tries > 0 => {}
                Err(Errno::AGAIN) => return walk::open(self.dir.as_fd(), path, flags),
                other => return other,
            }
        }
    }

    /// Returns whether openat2 exists and is allowed.
    fn has_openat2(&self) -> bool {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        fs::openat2(&self.dir, ".", flags, Mode::empty(), ResolveFlags::BENEATH).is_ok()
    }

    fn lower(&self, way: u8) {
        self.way.fetch_max(way, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn both(path: &Path) -> [Root; 2] {
        [Root::open(path).unwrap(), Root::walking(path).unwrap()]
    }

    #[test]
    fn no_path_leads_out_of_the_root() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), "s").unwrap();
        let dir = outside.path().join("root");
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("file"), "f").unwrap();
        symlink("../secret", dir.join("out")).unwrap();
        symlink(outside.path().join("secret"), dir.join("absolute")).unwrap();
        symlink("..", dir.join("up")).unwrap();
        symlink("/proc/self/root", dir.join("magic")).unwrap();
        symlink("loop", dir.join("loop")).unwrap();
        for root in both(&dir) {
            assert_eq!(root.look(b"file", Reach::Wait).unwrap().bytes, 1);
            assert_eq!(root.look(b"", Reach::Wait).unwrap().kind, Kind::Directory);
            for path in [
                "../secret",
                "..",
                "out",
                "absolute",
                "up",
                "up/secret",
                "magic",
                "magic/etc/passwd",
                "loop",
                "file/../../secret",
                "/etc/passwd",
            ] {
                let looked = root.look(path.as_bytes(), Reach::Wait);
                assert!(looked.is_err(), "{path}: {looked:?}");
                let opened = root
                    .open_file(path.as_bytes(), Reach::Wait)
                    .map(|(_, state)| state);
                assert!(opened.is_err(), "{path}: {opened:?}");
            }
        }
    }

    #[test]
    fn links_within_the_root_are_followed_by_openat2_and_by_the_walk() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        std::fs::write(dir.path().join("a/file"), "f").unwrap();
        symlink("a/file", dir.path().join("file")).unwrap();
        symlink("a", dir.path().join("b")).unwrap();
        symlink("../a/file", dir.path().join("a/again")).unwrap();
        symlink("b/../a/", dir.path().join("c")).unwrap();
        for root in both(dir.path()) {
            for path in ["file", "a/file", "b/file", "b/again", "c/file", "c/again"] {
                let opened = root.open_file(path.as_bytes(), Reach::Wait);
                assert!(opened.is_ok(), "{path}");
            }
            for path in ["a", "b", "c", "a/."] {
                let looked = root.look(path.as_bytes(), Reach::Wait).unwrap();
                assert_eq!(looked.kind, Kind::Directory, "{path}");
                assert!(root.open_dir(path.as_bytes()).is_ok(), "{path}");
            }
            for path in ["file/", "file/.", "file/..", "a/file/x", "b/again/"] {
                let looked = root.look(path.as_bytes(), Reach::Wait);
                assert_eq!(looked, Err(Errno::NOTDIR), "{path}");
            }
        }
    }

    #[test]
    fn a_path_in_memory_is_resolved_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "f").unwrap();
        let root = Root::open(dir.path()).unwrap();
        root.look(b"file", Reach::Wait).unwrap();
        match root.look(b"file", Reach::Now) {
            Ok(state) => assert_eq!(state.kind, Kind::File),
            Err(error) => println!("skip: RESOLVE_CACHED: {error}"),
        }
        assert_eq!(
            Root::walking(dir.path()).unwrap().look(b"file", Reach::Now),
            Err(Errno::AGAIN)
        );
    }

    /// A chain of 40 links is followed and one of 41 is not, with both methods.
    #[test]
    fn the_limit_of_links_is_that_of_the_kernel() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("0"), "f").unwrap();
        for link in 1..=41 {
            symlink(format!("{}", link - 1), dir.path().join(format!("{link}"))).unwrap();
        }
        for root in both(dir.path()) {
            assert!(root.look(b"40", Reach::Wait).is_ok());
            assert_eq!(root.look(b"41", Reach::Wait), Err(Errno::LOOP));
        }
    }

    #[test]
    fn renames_elsewhere_do_not_prevent_lookups() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        std::fs::write(dir.path().join("file"), "f").unwrap();
        // Long enough for a rename during each attempt.
        let target = "a/../".repeat(700) + "file";
        symlink(target, dir.path().join("link")).unwrap();
        let root = Root::open(dir.path()).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let names = ["x", "y"].map(|name| elsewhere.path().join(name));
        std::fs::write(&names[0], "").unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::fs::rename(&names[0], &names[1]).unwrap();
                    std::fs::rename(&names[1], &names[0]).unwrap();
                }
            });
            let looks: Vec<_> = (0..2_000)
                .map(|_| root.look(b"link", Reach::Wait))
                .filter_map(Result::err)
                .collect();
            done.store(true, Ordering::Relaxed);
            assert_eq!(looks, []);
        });
    }
}
