//! The names of the simulated file system, in two states: as programs see them, and as they are on the disk.
//!
//! Changes of names reach the disk in the order in which they were made, as with a journal. A crash keeps a random
//! number of the earliest changes that no directory sync has covered.

use std::collections::{BTreeMap, BTreeSet};

use super::super::errno::{
    EBUSY, EEXIST, EINVAL, EISDIR, ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR, ENOTEMPTY, EXDEV,
};
use super::dice::Dice;
use crate::narrow::to_u32;

pub(crate) type Ino = u64;
pub(crate) type Name = Vec<u8>;
type Dirs = BTreeMap<Ino, BTreeMap<Name, Ino>>;

/// The root directory.
pub(crate) const ROOT: Ino = 1;

/// `NAME_MAX`.
const NAME_BYTES_MAX: usize = 255;
/// The maximum number of changes not yet on the disk. Beyond it the older half is written, as by a journal's timer.
const LOG_MAX: usize = 1024;

/// The directories by inode number. Other inodes are files.
#[derive(Debug)]
pub(crate) struct Tree {
    now: Dirs,
    disk: Dirs,
    log: Vec<Change>,
    /// The targets of the symbolic links, which never change.
    targets: BTreeMap<Ino, Name>,
    /// The former parents of the directories that are removed and may be open.
    removed: BTreeMap<Ino, Ino>,
}

/// A change of names.
#[derive(Clone, Debug)]
enum Change {
    Add {
        dir: Ino,
        name: Name,
        ino: Ino,
        is_dir: bool,
    },
    Remove {
        dir: Ino,
        name: Name,
    },
    Move {
        from: (Ino, Name),
        to: (Ino, Name),
    },
    Swap {
        one: (Ino, Name),
        other: (Ino, Name),
    },
}

impl Change {
    fn touches(&self, ino: Ino) -> bool {
        match self {
            Change::Add { dir, .. } | Change::Remove { dir, .. } => *dir == ino,
            Change::Move { from, to }
            | Change::Swap {
                one: from,
                other: to,
            } => from.0 == ino || to.0 == ino,
        }
    }

    fn apply(&self, dirs: &mut Dirs) {
        match self {
            Change::Add {
                dir,
                name,
                ino,
                is_dir,
            } => {
                put(dirs, *dir, name, Some(*ino));
                if *is_dir {
                    dirs.insert(*ino, BTreeMap::new());
                }
            }
            Change::Remove { dir, name } => {
                if let Some(gone) = put(dirs, *dir, name, None) {
                    dirs.remove(&gone);
                }
            }
            Change::Move { from, to } => {
                let moved = put(dirs, from.0, &from.1, None);
                let replaced = put(dirs, to.0, &to.1, moved);
                if let Some(replaced) = replaced {
                    dirs.remove(&replaced);
                }
            }
            Change::Swap { one, other } => {
                let first = put(dirs, one.0, &one.1, None);
                let second = put(dirs, other.0, &other.1, first);
                put(dirs, one.0, &one.1, second);
            }
        }
    }
}

/// Sets or removes a name. Returns the inode that it named before.
fn put(dirs: &mut Dirs, dir: Ino, name: &[u8], ino: Option<Ino>) -> Option<Ino> {
    let entries = dirs.get_mut(&dir)?;
    match ino {
        Some(ino) => entries.insert(name.to_vec(), ino),
        None => entries.remove(name),
    }
}

/// The treatment of a symbolic link at the end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Follow,
    /// Followed, unless a slash follows the link.
    FollowWithoutSlash,
    Keep,
    /// Not followed, unless a slash follows the link.
    KeepWithoutSlash,
}

/// The target of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lookup {
    pub(crate) dir: Ino,
    /// The last component of the path; empty for the root. `.` and `..` are names that cannot be changed.
    pub(crate) name: Name,
    /// The inode at the path, if it exists.
    pub(crate) ino: Option<Ino>,
    /// True if the path ends in a slash and therefore requires a directory.
    pub(crate) wants_dir: bool,
    /// True if the directory has been removed; it has no names, and gets none.
    is_removed: bool,
}

impl Lookup {
    /// Returns whether the last component can be renamed.
    fn has_name(&self) -> bool {
        !matches!(self.name.as_slice(), b"" | b"." | b"..")
    }

    /// Returns the error for a path without an inode.
    fn missing(&self) -> i32 {
        if self.name.len() > NAME_BYTES_MAX && !self.is_removed {
            ENAMETOOLONG
        } else {
            ENOENT
        }
    }
}

impl Tree {
    pub(crate) fn new() -> Tree {
        let root = Dirs::from([(ROOT, BTreeMap::new())]);
        Tree {
            now: root.clone(),
            disk: root,
            log: Vec::new(),
            targets: BTreeMap::new(),
            removed: BTreeMap::new(),
        }
    }

    pub(crate) fn is_dir(&self, ino: Ino) -> bool {
        self.now.contains_key(&ino)
    }

    pub(crate) fn entries(&self, dir: Ino) -> Option<&BTreeMap<Name, Ino>> {
        self.now.get(&dir)
    }

    /// Makes `ino` a symbolic link.
    pub(crate) fn set_target(&mut self, ino: Ino, target: &[u8]) {
        self.targets.insert(ino, target.to_vec());
    }

    /// Returns the target of a symbolic link.
    pub(crate) fn target(&self, ino: Ino) -> Option<&Name> {
        self.targets.get(&ino)
    }

    /// Resolves a path, as `resolve` does, and follows a symbolic link at its end.
    pub(crate) fn find(&self, path: &[u8]) -> Result<Lookup, i32> {
        self.resolve(ROOT, path, End::Follow, false)
    }

    /// Returns the directories from the root to `dir`.
    fn ancestors(&self, dir: Ino) -> Vec<Ino> {
        let mut above = vec![dir];
        while let Some(&last) = above.last().filter(|&&last| last != ROOT) {
            let holds = |entries: &BTreeMap<Name, Ino>| entries.values().any(|&ino| ino == last);
            let parent = self.now.iter().find(|(_, entries)| holds(entries));
            above.push(parent.map_or_else(
                || self.removed.get(&last).copied().unwrap_or(ROOT),
                |(&parent, _)| parent,
            ));
        }
        above.reverse();
        above
    }

    /// Returns the absolute path of an existing inode.
    pub(crate) fn path_of(&self, found: &Lookup) -> Name {
        let is_dir = found.ino.is_some_and(|ino| self.is_dir(ino));
        let above = self.ancestors(found.ino.filter(|_| is_dir).unwrap_or(found.dir));
        let mut path = Name::new();
        for pair in above.windows(2) {
            let entries = self.now.get(&pair[0]).into_iter().flatten();
            let name = entries
                .filter(|&(_, ino)| *ino == pair[1])
                .map(|(name, _)| name);
            path.push(b'/');
            path.extend(name.take(1).flatten());
        }
        if !is_dir {
            path.push(b'/');
            path.extend(&found.name);
        }
        match path.is_empty() {
            true => b"/".to_vec(),
            false => path,
        }
    }

    /// Resolves a path from the directory `base`. The root is the working directory of every program. The last
    /// component need not exist. `beneath`: fails with EXDEV if the lookup leaves the base.
    pub(crate) fn resolve(
        &self,
        base: Ino,
        path: &[u8],
        end: End,
        beneath: bool,
    ) -> Result<Lookup, i32> {
        if path.is_empty() {
            return Err(ENOENT);
        }
        if beneath && path.starts_with(b"/") {
            return Err(EXDEV);
        }
        let mut above = self.ancestors(base);
        let mut lookup = Lookup {
            dir: base,
            name: Name::new(),
            ino: Some(base),
            wants_dir: path.ends_with(b"/"),
            is_removed: false,
        };
        let mut parts: Vec<&[u8]> = parts_reversed(path).collect();
        let mut followed = 0;
        while let Some(part) = parts.pop() {
            let dir = lookup.ino.ok_or(lookup.missing())?;
            let entries = self.now.get(&dir);
            if entries.is_none() && !self.removed.contains_key(&dir) {
                return Err(ENOTDIR);
            }
            lookup.name = part.to_vec();
            match part {
                b"." => {}
                b".." if beneath && dir == base => return Err(EXDEV),
                b".." => {
                    if above.len() > 1 {
                        above.pop();
                    }
                    lookup.ino = above.last().copied();
                }
                _ => {
                    lookup.dir = dir;
                    lookup.is_removed = entries.is_none();
                    lookup.ino = entries.and_then(|entries| entries.get(part).copied());
                    let target = lookup.ino.and_then(|ino| self.targets.get(&ino));
                    let follow = match end {
                        End::Follow => true,
                        End::FollowWithoutSlash => !lookup.wants_dir,
                        End::Keep => false,
                        End::KeepWithoutSlash => lookup.wants_dir,
                    };
                    let Some(target) = target.filter(|_| follow || !parts.is_empty()) else {
                        above.extend(lookup.ino);
                        continue;
                    };
                    followed += 1;
                    if followed > LINKS_MAX {
                        return Err(ELOOP);
                    }
                    if target.starts_with(b"/") {
                        if beneath {
                            return Err(EXDEV);
                        }
                        above.truncate(1);
                    }
                    lookup.ino = above.last().copied();
                    lookup.wants_dir |= parts.is_empty() && target.ends_with(b"/");
                    parts.extend(parts_reversed(target));
                }
            }
        }
        Ok(lookup)
    }

    /// Returns the inode of a lookup. Fails if it does not exist, or if the path ends in a slash and it is not a
    /// directory.
    pub(crate) fn existing(&self, lookup: &Lookup) -> Result<Ino, i32> {
        let ino = lookup.ino.ok_or(lookup.missing())?;
        if lookup.wants_dir && !self.is_dir(ino) && !self.removed.contains_key(&ino) {
            Err(ENOTDIR)
        } else {
            Ok(ino)
        }
    }

    /// Gives a new inode its first name.
    pub(crate) fn add(&mut self, at: &Lookup, ino: Ino, is_dir: bool) -> Result<(), i32> {
        if at.ino.is_some() {
            return Err(EEXIST);
        }
        if at.wants_dir && !is_dir {
            return Err(EISDIR);
        }
        if at.missing() == ENAMETOOLONG {
            return Err(ENAMETOOLONG);
        }
        if at.is_removed {
            return Err(ENOENT);
        }
        self.change(Change::Add {
            dir: at.dir,
            name: at.name.clone(),
            ino,
            is_dir,
        });
        Ok(())
    }

    /// `linkat(2)`: gives an inode another name. `refusal`: the errno if the inode cannot have one.
    pub(crate) fn link(&mut self, ino: Ino, to: &Lookup, refusal: Option<i32>) -> Result<(), i32> {
        if to.missing() == ENOENT && to.ino.is_none() {
            let refusal = if to.wants_dir { Some(ENOENT) } else { refusal };
            refusal.map_or(Ok(()), Err)?;
        }
        self.add(to, ino, false)
    }

    /// Removes a name. Returns the inode that lost it.
    pub(crate) fn remove(&mut self, at: &Lookup, want_dir: bool) -> Result<Ino, i32> {
        let ino = self.existing(at)?;
        match (self.now.get(&ino), want_dir) {
            (_, true) if at.name == b"." => return Err(EINVAL),
            (_, true) if at.name == b".." => return Err(ENOTEMPTY),
            (_, false) if !at.has_name() => return Err(EISDIR),
            (Some(_), true) if ino == ROOT => return Err(EBUSY),
            (Some(entries), true) if !entries.is_empty() => return Err(ENOTEMPTY),
            (None, true) => return Err(ENOTDIR),
            (Some(_), false) => return Err(EISDIR),
            _ => {}
        }
        if want_dir {
            self.removed.insert(ino, at.dir);
        }
        self.change(Change::Remove {
            dir: at.dir,
            name: at.name.clone(),
        });
        Ok(ino)
    }

    /// `renameat2(2)`. Returns the inode that the renamed one has replaced.
    pub(crate) fn rename(
        &mut self,
        from: &Lookup,
        to: &Lookup,
        flags: u32,
    ) -> Result<Option<Ino>, i32> {
        if flags & !(NO_REPLACE | EXCHANGE) != 0 || flags == NO_REPLACE | EXCHANGE {
            return Err(EINVAL);
        }
        if !from.has_name() || !to.has_name() && flags & NO_REPLACE == 0 {
            return Err(EBUSY);
        }
        if !to.has_name() {
            return Err(EEXIST);
        }
        let moved = from.ino.ok_or(from.missing())?;
        if to.missing() == ENAMETOOLONG {
            return Err(ENAMETOOLONG);
        }
        if to.is_removed {
            return Err(ENOENT);
        }
        if flags & NO_REPLACE != 0 && to.ino.is_some() {
            return Err(EEXIST);
        }
        if flags & EXCHANGE != 0 {
            self.existing(to)?;
        }
        let is_dir = self.is_dir(moved);
        if !is_dir && (from.wants_dir || to.wants_dir && flags & EXCHANGE == 0) {
            return Err(ENOTDIR);
        }
        if is_dir && self.is_below(to.dir, moved) {
            return Err(EINVAL);
        }
        let swallows = to.ino.is_some_and(|ino| self.is_below(from.dir, ino));
        if to.ino == from.ino {
            return Ok(None);
        }
        if flags & EXCHANGE != 0 {
            if swallows {
                return Err(EINVAL);
            }
            self.change(Change::Swap {
                one: (from.dir, from.name.clone()),
                other: (to.dir, to.name.clone()),
            });
            return Ok(None);
        }
        match to.ino.map(|ino| self.now.get(&ino)) {
            _ if swallows => return Err(ENOTEMPTY),
            Some(Some(_)) if !is_dir => return Err(EISDIR),
            Some(Some(entries)) if !entries.is_empty() => return Err(ENOTEMPTY),
            Some(None) if is_dir => return Err(ENOTDIR),
            _ => {}
        }
        if let Some(replaced) = to.ino.filter(|_| is_dir) {
            self.removed.insert(replaced, to.dir);
        }
        self.change(Change::Move {
            from: (from.dir, from.name.clone()),
            to: (to.dir, to.name.clone()),
        });
        Ok(to.ino)
    }

    /// Returns whether `dir` is `above` or is inside it.
    fn is_below(&self, dir: Ino, above: Ino) -> bool {
        let mut open = vec![above];
        while let Some(next) = open.pop() {
            if next == dir {
                return true;
            }
            if let Some(entries) = self.now.get(&next) {
                open.extend(entries.values().filter(|ino| self.is_dir(**ino)));
            }
        }
        false
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.now);
        self.log.push(change);
        if self.log.len() > LOG_MAX {
            self.write_out(LOG_MAX / 2);
        }
    }

    fn write_out(&mut self, changes: usize) {
        for change in self.log.drain(..changes) {
            change.apply(&mut self.disk);
        }
    }

    /// Syncs a directory: writes all changes up to the last that affects it.
    pub(crate) fn sync(&mut self, dir: Ino) {
        let covered = self.log.iter().rposition(|change| change.touches(dir));
        self.write_out(covered.map_or(0, |last| last + 1));
    }

    /// Simulates a power failure. Returns the numbers of changes that were lost and kept.
    pub(crate) fn crash(&mut self, dice: &mut Dice) -> (u64, u64) {
        let kept = dice.index(self.log.len() + 1);
        let lost = self.log.len() - kept;
        self.write_out(kept);
        self.log.clear();
        self.now = self.disk.clone();
        (lost as u64, kept as u64)
    }

    /// Returns all inodes that have a name, or may have one after a crash.
    pub(crate) fn named(&self) -> BTreeSet<Ino> {
        let mut named: BTreeSet<Ino> = [&self.now, &self.disk]
            .into_iter()
            .flat_map(|dirs| dirs.values().flat_map(|entries| entries.values().copied()))
            .collect();
        named.insert(ROOT);
        named.extend(self.log.iter().filter_map(|change| match change {
            Change::Add { ino, .. } => Some(*ino),
            _ => None,
        }));
        named
    }

    /// Returns the link count of an inode, as programs see it.
    pub(crate) fn links(&self, ino: Ino) -> u32 {
        let names = self
            .now
            .values()
            .flat_map(BTreeMap::values)
            .filter(|&&named| named == ino)
            .count();
        let below = self.now.get(&ino).map_or(0, |entries| {
            1 + entries.values().filter(|ino| self.is_dir(**ino)).count() + usize::from(ino == ROOT)
        });
        to_u32(names + below)
    }
}

/// Returns the components of a path, the last one first.
fn parts_reversed(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    (path.rsplit(|&byte| byte == b'/')).filter(|part| !part.is_empty())
}

/// The maximum number of symbolic links in the resolution of a path (`MAXSYMLINKS`).
const LINKS_MAX: u32 = 40;
/// `RENAME_NOREPLACE`.
const NO_REPLACE: u32 = 1;
/// `RENAME_EXCHANGE`.
const EXCHANGE: u32 = 2;
