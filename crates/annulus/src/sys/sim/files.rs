//! The calls of the simulated file system: descriptors, inodes, and Linux's results. Delays and faults are simulated in
//! `kernel.rs`. One file, because all calls work on the same tables of descriptors and inodes.

use std::collections::BTreeMap;

use super::super::call::{self, Timespec};
use super::super::errno::{
    E2BIG, EBADF, EEXIST, EFBIG, EINVAL, EISDIR, ELOOP, EMFILE, ENODATA, ENOENT, ENOSPC, ENOTDIR,
    EOPNOTSUPP, EPERM, ERANGE,
};
use super::body::{Body, SECTOR_BYTES};
use super::config::SimConfig;
use super::dice::Dice;
use super::tree::{End, Ino, Lookup, Name, ROOT, Tree};
use crate::narrow::to_usize;

/// The result of a call: a value, or an errno.
pub(crate) type SysResult<T> = Result<T, i32>;

/// The descriptor of a directory, or `AT_FDCWD`, and a path.
pub(crate) type DirPath<'a> = (i32, &'a [u8]);

/// The first descriptor, far from the numbers of real ones, so that a real system call with a simulated descriptor
/// fails with `EBADF`.
const FIRST_FD: i32 = 1 << 20;

/// The file system.
#[derive(Debug)]
pub(crate) struct Files {
    tree: Tree,
    inodes: BTreeMap<Ino, Inode>,
    open: BTreeMap<i32, OpenFile>,
    next_ino: Ino,
    sectors_max: u64,
    file_bytes_max: u64,
    open_max: usize,
}

#[derive(Debug)]
pub(super) struct Inode {
    /// Empty for a directory.
    pub(super) body: Body,
    pub(super) mode: u32,
    pub(super) born_ns: u64,
    pub(super) changed_ns: u64,
    /// Created without a name, which it may still get (`O_TMPFILE`).
    unnamed: bool,
    /// The times that a program has set: of the last read, and of the last change of the contents.
    pub(super) times: [Option<Timespec>; 2],
    xattrs: BTreeMap<Name, Vec<u8>>,
}

impl Inode {
    /// Notes a change of the contents.
    fn change(&mut self, now_ns: u64) {
        self.changed_ns = now_ns;
        self.times[1] = None;
    }
}

#[derive(Debug)]
struct OpenFile {
    ino: Ino,
    flags: u32,
    /// The position of a listing: `.`, `..`, then names.
    listed: usize,
    last_name: Name,
}

impl OpenFile {
    fn reads(&self) -> bool {
        self.flags & call::O_ACCMODE != call::O_WRONLY
    }

    fn writes(&self) -> bool {
        self.flags & call::O_ACCMODE != call::O_RDONLY
    }
}

impl Files {
    pub(crate) fn new(config: &SimConfig) -> Files {
        let mut files = Files {
            tree: Tree::new(),
            inodes: BTreeMap::new(),
            open: BTreeMap::new(),
            next_ino: ROOT,
            sectors_max: config.capacity_bytes / SECTOR_BYTES as u64,
            file_bytes_max: config.file_bytes_max,
            open_max: config.open_files_max as usize,
        };
        files.make_inode(call::file_type::DIRECTORY | 0o755, 0);
        files
    }

    fn make_inode(&mut self, mode: u32, now_ns: u64) -> Ino {
        let ino = self.next_ino;
        self.next_ino += 1;
        self.inodes.insert(
            ino,
            Inode {
                body: Body::default(),
                mode,
                born_ns: now_ns,
                changed_ns: now_ns,
                unnamed: false,
                times: [None; 2],
                xattrs: BTreeMap::new(),
            },
        );
        ino
    }

    /// Returns the number of free sectors.
    fn space(&self) -> u64 {
        let used: u64 = self.inodes.values().map(|inode| inode.body.sectors()).sum();
        self.sectors_max.saturating_sub(used)
    }

    fn opened(&self, fd: i32) -> SysResult<&OpenFile> {
        self.open.get(&fd).ok_or(EBADF)
    }

    /// Returns whether an inode is a directory, even if it has no name any more.
    fn is_dir(&self, ino: Ino) -> bool {
        let mode = self.inodes.get(&ino).map_or(0, |inode| inode.mode);
        mode & call::S_IFMT == call::file_type::DIRECTORY
    }

    fn inode(&mut self, ino: Ino) -> SysResult<&mut Inode> {
        self.inodes.get_mut(&ino).ok_or(EBADF)
    }

    /// Returns the inode of a descriptor that is open for writing.
    fn writable(&mut self, fd: i32, refusal: i32) -> SysResult<&mut Inode> {
        let opened = self.opened(fd)?;
        if !opened.writes() {
            return Err(refusal);
        }
        let ino = opened.ino;
        self.inode(ino)
    }

    pub(crate) fn open(
        &mut self,
        path: DirPath<'_>,
        flags: u32,
        mode: u32,
        beneath: bool,
        now_ns: u64,
    ) -> SysResult<i32> {
        if self.open.len() >= self.open_max {
            return Err(EMFILE);
        }
        let creates = flags & call::O_CREAT != 0;
        let is_new = creates && flags & call::O_EXCL != 0;
        let end = match creates {
            true if is_new => End::Keep,
            _ if flags & call::O_NOFOLLOW != 0 => End::KeepWithoutSlash,
            // A slash at the end is refused without a look at the last component.
            true => End::FollowWithoutSlash,
            false => End::Follow,
        };
        let lookup = self.tree.resolve(self.base(path)?, path.1, end, beneath)?;
        let no_follow = flags & call::O_NOFOLLOW != 0;
        let writes = flags & call::O_ACCMODE != call::O_RDONLY;
        let unnamed = flags & call::O_TMPFILE == call::O_TMPFILE;
        let ino = match lookup.ino {
            Some(dir) if unnamed && self.is_dir(dir) => {
                if !writes {
                    return Err(EINVAL);
                }
                let mode = call::file_type::REGULAR | mode & 0o7777 & !UMASK;
                let ino = self.make_inode(mode, now_ns);
                self.inode(ino)?.unnamed = true;
                ino
            }
            _ if creates && lookup.wants_dir => return Err(EISDIR),
            Some(_) if is_new => return Err(EEXIST),
            Some(ino) if self.is_dir(ino) && (writes || creates) => return Err(EISDIR),
            Some(ino) if no_follow && self.tree.target(ino).is_some() => {
                return Err(match flags & call::O_DIRECTORY {
                    0 => ELOOP,
                    _ => ENOTDIR,
                });
            }
            Some(ino) if flags & call::O_DIRECTORY != 0 && !self.is_dir(ino) => {
                return Err(ENOTDIR);
            }
            Some(_) => self.tree.existing(&lookup)?,
            None if creates => {
                let ino =
                    self.make_inode(call::file_type::REGULAR | mode & 0o7777 & !UMASK, now_ns);
                if let Err(errno) = self.tree.add(&lookup, ino, false) {
                    self.inodes.remove(&ino);
                    return Err(errno);
                }
                ino
            }
            None => self.tree.existing(&lookup)?,
        };
        if flags & call::O_TRUNC != 0 && writes {
            let inode = self.inode(ino)?;
            inode.body.set_bytes(0);
            inode.change(now_ns);
        }
        // The lowest free number, as on Linux: a reused number reveals code that kept it too long.
        let fd = (FIRST_FD..)
            .find(|fd| !self.open.contains_key(fd))
            .unwrap_or(FIRST_FD);
        self.open.insert(
            fd,
            OpenFile {
                ino,
                flags,
                listed: 0,
                last_name: Name::new(),
            },
        );
        Ok(fd)
    }

    pub(crate) fn close(&mut self, fd: i32) -> SysResult<usize> {
        let closed = self.open.remove(&fd).ok_or(EBADF)?;
        self.forget_if_gone(closed.ino);
        Ok(0)
    }

    pub(crate) fn descriptors(&self) -> usize {
        self.open.len()
    }

    /// Frees the space of an inode without names and descriptors.
    fn forget_if_gone(&mut self, ino: Ino) {
        if self.open.values().any(|open| open.ino == ino) || self.tree.links(ino) > 0 {
            return;
        }
        // A crash may restore its name; it then has the contents on the disk.
        if self.tree.named().contains(&ino) {
            if let Some(inode) = self.inodes.get_mut(&ino) {
                inode.body.forget();
            }
        } else {
            self.inodes.remove(&ino);
        }
    }

    pub(crate) fn read(&self, fd: i32, offset: u64, into: &mut [u8]) -> SysResult<usize> {
        let opened = self.opened(fd)?;
        if !opened.reads() {
            return Err(EBADF);
        }
        if self.is_dir(opened.ino) {
            return Err(EISDIR);
        }
        check_offset(offset)?;
        Ok(self
            .inodes
            .get(&opened.ino)
            .ok_or(EBADF)?
            .body
            .read(offset, into))
    }

    /// Writes at `offset`. `durable` is `RWF_DSYNC`.
    pub(crate) fn write(
        &mut self,
        fd: i32,
        offset: u64,
        from: &[u8],
        durable: bool,
        now_ns: u64,
    ) -> SysResult<usize> {
        let appends = self.opened(fd)?.flags & call::O_APPEND != 0;
        let (space, limit) = (self.space(), self.file_bytes_max);
        let inode = self.writable(fd, EBADF)?;
        check_offset(offset)?;
        let offset = if appends { inode.body.bytes() } else { offset };
        if from.is_empty() {
            return Ok(0);
        }
        let allowed = to_usize(limit.saturating_sub(offset)).min(from.len());
        if allowed == 0 {
            return Err(EFBIG);
        }
        let done = inode
            .body
            .write(offset, from.get(..allowed).unwrap_or_default(), space);
        if done == 0 {
            return Err(ENOSPC);
        }
        inode.change(now_ns);
        if durable {
            inode.body.sync_range(offset, done);
        }
        Ok(done)
    }

    /// Writes a random part of a file back, as a kernel does in the background. Returns the number of sectors.
    pub(crate) fn write_back(&mut self, fd: i32, dice: &mut Dice) -> u64 {
        self.writable(fd, EBADF)
            .map_or(0, |inode| inode.body.write_back(dice))
    }

    /// Syncs a file or directory. With `fails`, the disk does not take the data.
    pub(crate) fn sync(&mut self, fd: i32, fails: bool) -> SysResult<usize> {
        let ino = self.opened(fd)?.ino;
        match (self.is_dir(ino), fails) {
            (true, true) => {}
            (true, false) => self.tree.sync(ino),
            (false, true) => self.inode(ino)?.body.sync_failed(),
            (false, false) => self.inode(ino)?.body.sync(),
        }
        Ok(0)
    }

    /// Checks the arguments of `sync_file_range(2)`, which guarantees nothing about the disk.
    pub(crate) fn check_sync_range(
        &self,
        fd: i32,
        offset: u64,
        bytes: u32,
        flags: u32,
    ) -> SysResult<()> {
        self.opened(fd)?;
        check_offset(offset)?;
        check_offset(offset + u64::from(bytes))?;
        match flags & !SYNC_FLAGS {
            0 => Ok(()),
            _ => Err(EINVAL),
        }
    }

    /// `copy_file_range(2)`: descriptors with offsets.
    pub(crate) fn copy_range(
        &mut self,
        from: (i32, u64),
        into: (i32, u64),
        bytes: u64,
        now_ns: u64,
    ) -> SysResult<usize> {
        let ((source, offset), (target, into_offset)) = (from, into);
        let (reads, writes) = (self.opened(source)?, self.opened(target)?);
        if self.is_dir(reads.ino) || self.is_dir(writes.ino) {
            return Err(EISDIR);
        }
        let appends = writes.flags & call::O_APPEND != 0;
        if !reads.reads() || !writes.writes() || appends {
            return Err(EBADF);
        }
        let body = &self.inodes.get(&reads.ino).ok_or(EBADF)?.body;
        let bytes = bytes.min(body.bytes().saturating_sub(offset));
        let overlaps = into_offset + bytes > offset && into_offset < offset + bytes;
        if reads.ino == writes.ino && overlaps {
            return Err(EINVAL);
        }
        let mut copy = vec![0; to_usize(bytes)];
        let read = body.read(offset, &mut copy);
        copy.truncate(read);
        self.write(target, into_offset, &copy, false, now_ns)
    }

    pub(crate) fn truncate(&mut self, fd: i32, bytes: u64, now_ns: u64) -> SysResult<usize> {
        let limit = self.file_bytes_max;
        let inode = self.writable(fd, EINVAL)?;
        check_offset(bytes)?;
        if bytes > limit {
            return Err(EFBIG);
        }
        inode.body.set_bytes(bytes);
        inode.change(now_ns);
        Ok(0)
    }

    pub(crate) fn allocate(
        &mut self,
        fd: i32,
        mode: u32,
        offset: u64,
        bytes: u64,
        now_ns: u64,
    ) -> SysResult<usize> {
        let (space, limit) = (self.space(), self.file_bytes_max);
        self.opened(fd)?;
        check_offset(offset)?;
        check_offset(bytes)?;
        if bytes == 0 {
            return Err(EINVAL);
        }
        let inode = self.writable(fd, EBADF)?;
        let keep_size = mode & KEEP_SIZE != 0;
        let end = offset
            .checked_add(bytes)
            .filter(|&end| end <= limit)
            .ok_or(EFBIG)?;
        match mode & !KEEP_SIZE {
            0 => {
                if !inode.body.reserve(offset, end, space) {
                    return Err(ENOSPC);
                }
            }
            PUNCH_HOLE if keep_size => inode.body.clear(offset, end),
            ZERO_RANGE => {
                if !inode.body.reserve(offset, end, space) {
                    return Err(ENOSPC);
                }
                inode.body.clear(offset, end);
                inode.body.reserve(offset, end, u64::MAX);
            }
            _ => return Err(EOPNOTSUPP),
        }
        if !keep_size && end > inode.body.bytes() {
            inode.body.set_bytes(end);
        }
        inode.change(now_ns);
        Ok(0)
    }

    pub(crate) fn advise(&self, fd: i32, advice: u32) -> SysResult<usize> {
        self.opened(fd)?;
        if advice > ADVICE_MAX {
            Err(EINVAL)
        } else {
            Ok(0)
        }
    }

    pub(crate) fn rename(
        &mut self,
        from: DirPath<'_>,
        to: DirPath<'_>,
        flags: u32,
    ) -> SysResult<usize> {
        let from = self.resolve(from, End::Keep)?;
        let to = self.resolve(to, End::Keep)?;
        if let Some(gone) = self.tree.rename(&from, &to, flags)? {
            self.forget_if_gone(gone);
        }
        Ok(0)
    }

    pub(crate) fn unlink(&mut self, path: DirPath<'_>, flags: u32) -> SysResult<usize> {
        let lookup = self.resolve(path, End::Keep)?;
        let gone = self.tree.remove(&lookup, flags & call::AT_REMOVEDIR != 0)?;
        self.forget_if_gone(gone);
        Ok(0)
    }

    pub(crate) fn make_dir(
        &mut self,
        path: DirPath<'_>,
        mode: u32,
        now_ns: u64,
    ) -> SysResult<usize> {
        let lookup = self.resolve(path, End::Keep)?;
        if lookup.ino.is_some() {
            return Err(EEXIST);
        }
        let ino = self.make_inode(call::file_type::DIRECTORY | mode & 0o7777 & !UMASK, now_ns);
        let added = self.tree.add(&lookup, ino, true);
        if added.is_err() {
            self.inodes.remove(&ino);
        }
        added.map(|()| 0)
    }

    /// `flags` has `AT_EMPTY_PATH` for an open file.
    pub(crate) fn link(
        &mut self,
        file: DirPath<'_>,
        name: DirPath<'_>,
        flags: u32,
    ) -> SysResult<usize> {
        let ino = match flags & call::AT_EMPTY_PATH {
            0 => self.tree.existing(&self.find_link(file)?)?,
            _ => self.opened(file.0)?.ino,
        };
        let name = self.resolve(name, End::Keep)?;
        let refusal = match self.is_dir(ino) {
            true => Some(EPERM),
            // A file that has lost its names gets no other one.
            false if self.tree.links(ino) == 0 && !self.inode(ino)?.unnamed => Some(ENOENT),
            false => None,
        };
        self.tree.link(ino, &name, refusal)?;
        self.inode(ino)?.unnamed = false;
        Ok(0)
    }

    pub(crate) fn symlink(
        &mut self,
        target: &[u8],
        name: DirPath<'_>,
        now_ns: u64,
    ) -> SysResult<usize> {
        if target.is_empty() {
            return Err(ENOENT);
        }
        let name = self.resolve(name, End::Keep)?;
        let ino = self.make_inode(call::file_type::SYMLINK | 0o777, now_ns);
        let linked = self.tree.link(ino, &name, None);
        match linked {
            Ok(()) => self.tree.set_target(ino, target),
            Err(_) => drop(self.inodes.remove(&ino)),
        }
        linked.map(|()| 0)
    }

    pub(crate) fn read_link(&self, path: DirPath<'_>) -> SysResult<Name> {
        let ino = self.tree.existing(&self.find_link(path)?)?;
        self.tree.target(ino).cloned().ok_or(EINVAL)
    }

    /// Returns the absolute path without symbolic links.
    pub(crate) fn real_path(&self, path: DirPath<'_>) -> SysResult<Name> {
        let lookup = self.resolve(path, End::Follow)?;
        self.tree.existing(&lookup)?;
        Ok(self.tree.path_of(&lookup))
    }

    /// Returns the directory at which a lookup starts.
    fn base(&self, (dir, path): DirPath<'_>) -> SysResult<Ino> {
        if dir == call::AT_FDCWD || path.is_empty() || path.starts_with(b"/") {
            return Ok(ROOT);
        }
        match self.opened(dir)?.ino {
            ino if self.is_dir(ino) => Ok(ino),
            _ => Err(ENOTDIR),
        }
    }

    fn resolve(&self, path: DirPath<'_>, end: End) -> SysResult<Lookup> {
        self.tree.resolve(self.base(path)?, path.1, end, false)
    }

    /// Resolves a path and does not follow a symbolic link at its end, unless a slash follows.
    fn find_link(&self, path: DirPath<'_>) -> SysResult<Lookup> {
        self.resolve(path, End::KeepWithoutSlash)
    }

    /// Sets the permissions of the file at `path`; if that is empty, of the open file.
    pub(crate) fn set_mode(&mut self, path: DirPath<'_>, mode: u32) -> SysResult<usize> {
        let inode = self.inode_at(path)?;
        inode.mode = inode.mode & call::S_IFMT | mode & 0o7777;
        Ok(0)
    }

    /// Returns the inode at `path`; if that is empty, of the open file.
    fn inode_at(&mut self, path: DirPath<'_>) -> SysResult<&mut Inode> {
        let ino = match path {
            (fd, b"") if fd != call::AT_FDCWD => self.opened(fd)?.ino,
            path => self.tree.existing(&self.resolve(path, End::Follow)?)?,
        };
        self.inode(ino)
    }

    /// `times`: two times of the kernel, of the last read and of the last change.
    pub(crate) fn set_times(
        &mut self,
        path: DirPath<'_>,
        times: &[u8],
        now_ns: u64,
    ) -> SysResult<usize> {
        let mut words = times.chunks_exact(8).map(|word| {
            let word = word.first_chunk().copied().unwrap_or_default();
            i64::from_ne_bytes(word)
        });
        let mut time = || Timespec {
            tv_sec: words.next().unwrap_or_default(),
            tv_nsec: words.next().unwrap_or_default(),
        };
        let times = [time(), time()];
        if times.iter().all(|time| time.tv_nsec == call::UTIME_OMIT) {
            return Ok(0);
        }
        let inode = self.inode_at(path)?;
        inode.changed_ns = now_ns;
        for (set, time) in inode.times.iter_mut().zip(times) {
            if time.tv_nsec != call::UTIME_OMIT {
                *set = Some(time);
            }
        }
        Ok(0)
    }

    /// Returns the extended attributes of the file, if it can have one with this name.
    fn xattrs(
        &mut self,
        path: DirPath<'_>,
        name: &[u8],
    ) -> SysResult<&mut BTreeMap<Name, Vec<u8>>> {
        if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX {
            return Err(ERANGE);
        }
        let inode = self.inode_at(path)?;
        match name.strip_prefix(b"user.") {
            None => Err(EOPNOTSUPP),
            Some(b"") => Err(EINVAL),
            Some(_) => Ok(&mut inode.xattrs),
        }
    }

    pub(crate) fn xattr(&mut self, path: DirPath<'_>, name: &[u8]) -> SysResult<Vec<u8>> {
        let value = self.xattrs(path, name)?.get(name);
        value.cloned().ok_or(ENODATA)
    }

    pub(crate) fn set_xattr(
        &mut self,
        path: DirPath<'_>,
        name: &[u8],
        value: Vec<u8>,
    ) -> SysResult<usize> {
        if value.len() > XATTR_BYTES_MAX {
            return Err(E2BIG);
        }
        self.xattrs(path, name)?.insert(name.to_vec(), value);
        Ok(0)
    }

    /// Returns the names, each with a NUL at its end.
    pub(crate) fn list_xattrs(&mut self, path: DirPath<'_>) -> SysResult<Vec<u8>> {
        let names = self.inode_at(path)?.xattrs.keys();
        Ok(names
            .flat_map(|name| [name.as_slice(), b"\0"].concat())
            .collect())
    }

    pub(crate) fn remove_xattr(&mut self, path: DirPath<'_>, name: &[u8]) -> SysResult<usize> {
        let removed = self.xattrs(path, name)?.remove(name);
        removed.map(|_| 0).ok_or(ENODATA)
    }

    /// Returns as many `struct linux_dirent64` records as fit into `space`, starting where the last call ended.
    pub(crate) fn list(&mut self, fd: i32, space: usize) -> SysResult<Vec<u8>> {
        let refusal = if self.is_dir(self.opened(fd)?.ino) {
            ENOENT
        } else {
            ENOTDIR
        };
        let opened = self.open.get_mut(&fd).ok_or(EBADF)?;
        let entries = self.tree.entries(opened.ino).ok_or(refusal)?;
        let mut records = Vec::new();
        let dots = [(b".".to_vec(), opened.ino), (b"..".to_vec(), opened.ino)];
        let after = (
            std::ops::Bound::Excluded(opened.last_name.clone()),
            std::ops::Bound::Unbounded,
        );
        let rest = entries.range(after).map(|(name, &ino)| (name.clone(), ino));
        for (name, ino) in dots.into_iter().skip(opened.listed).chain(rest) {
            let kind = self.inodes.get(&ino).map_or(0, |inode| inode.mode) & call::S_IFMT;
            let bytes = (RECORD_HEAD_BYTES + name.len() + 1).next_multiple_of(8);
            if records.len() + bytes > space {
                return if records.is_empty() {
                    Err(EINVAL)
                } else {
                    Ok(records)
                };
            }
            let end = records.len() + bytes;
            records.extend(ino.to_ne_bytes());
            records.extend((opened.listed as u64 + 1).to_ne_bytes());
            // Names have at most 255 bytes, and kinds four bits.
            records.extend(u16::try_from(bytes).unwrap_or(u16::MAX).to_ne_bytes());
            records.push(u8::try_from(kind >> 12).unwrap_or(0));
            records.extend(&name);
            records.resize(end, 0);
            if opened.listed < 2 {
                opened.listed += 1;
            } else {
                opened.last_name = name;
            }
        }
        Ok(records)
    }

    pub(crate) fn stat(&self, path: DirPath<'_>, flags: u32) -> SysResult<call::Statx> {
        let ino = match flags & (call::AT_SYMLINK_NOFOLLOW | call::AT_EMPTY_PATH) {
            0 => self.tree.existing(&self.resolve(path, End::Follow)?)?,
            call::AT_SYMLINK_NOFOLLOW => self.tree.existing(&self.find_link(path)?)?,
            _ => self.opened(path.0)?.ino,
        };
        let inode = self.inodes.get(&ino).ok_or(ENOENT)?;
        Ok(super::stat::statx(ino, inode, self.tree.links(ino)))
    }

    /// Simulates a power failure. Returns the numbers of changes that were lost and kept.
    pub(crate) fn crash(&mut self, dice: &mut Dice) -> (u64, u64) {
        self.open.clear();
        let (mut lost, mut kept) = self.tree.crash(dice);
        for inode in self.inodes.values_mut() {
            let (body_lost, body_kept) = inode.body.crash(dice);
            lost += body_lost;
            kept += body_kept;
        }
        let named = self.tree.named();
        self.inodes.retain(|ino, _| named.contains(ino));
        (lost, kept)
    }

    pub(crate) fn contents(&self, path: &[u8]) -> SysResult<Vec<u8>> {
        let ino = self.tree.existing(&self.tree.find(path)?)?;
        if self.is_dir(ino) {
            return Err(EISDIR);
        }
        Ok(self.inodes.get(&ino).ok_or(ENOENT)?.body.contents())
    }

    pub(crate) fn names(&self, path: &[u8]) -> SysResult<Vec<Name>> {
        let ino = self.tree.existing(&self.tree.find(path)?)?;
        Ok(self
            .tree
            .entries(ino)
            .ok_or(ENOTDIR)?
            .keys()
            .cloned()
            .collect())
    }

    /// Creates a file with these contents, and its parent directories; all of it is on the disk.
    pub(crate) fn put(&mut self, path: &[u8], contents: &[u8], now_ns: u64) -> SysResult<()> {
        for (at, _) in path
            .iter()
            .enumerate()
            .filter(|&(at, &byte)| byte == b'/' && at > 0)
        {
            let dir = (call::AT_FDCWD, path.get(..at).unwrap_or_default());
            match self.make_dir(dir, 0o755, now_ns) {
                Ok(_) | Err(EEXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        let flags = call::O_RDWR | call::O_CREAT | call::O_TRUNC;
        let fd = self.open((call::AT_FDCWD, path), flags, 0o644, false, now_ns)?;
        let written = self.write(fd, 0, contents, false, now_ns);
        self.sync(fd, false)?;
        self.close(fd)?;
        self.tree.sync(self.tree.find(path)?.dir);
        if written? < contents.len() {
            Err(ENOSPC)
        } else {
            Ok(())
        }
    }
}

/// The largest value of an extended attribute (`XATTR_SIZE_MAX`), bytes.
const XATTR_BYTES_MAX: usize = 64 << 10;
/// The longest name of an extended attribute (`XATTR_NAME_MAX`), bytes.
const XATTR_NAME_BYTES_MAX: usize = 255;

/// The permissions that a typical umask removes.
const UMASK: u32 = 0o022;
/// `FALLOC_FL_*`, from linux/falloc.h.
const KEEP_SIZE: u32 = 0x01;
const PUNCH_HOLE: u32 = 0x02;
const ZERO_RANGE: u32 = 0x10;
/// All of `SYNC_FILE_RANGE_*`, from linux/fs.h.
const SYNC_FLAGS: u32 = 7;
/// `POSIX_FADV_NOREUSE`, the largest advice.
const ADVICE_MAX: u32 = 5;
/// The size of a `struct linux_dirent64` before the name.
const RECORD_HEAD_BYTES: usize = 19;

/// Fails if an offset or length exceeds Linux's signed type.
fn check_offset(offset: u64) -> SysResult<()> {
    if i64::try_from(offset).is_ok() {
        Ok(())
    } else {
        Err(EINVAL)
    }
}
