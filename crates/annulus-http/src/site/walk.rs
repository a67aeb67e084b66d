//! Resolves a path below a root name by name. Used without openat2, and for paths with `..` for which the kernel
//! returns `EAGAIN` because of renames.
//!
//! As with RESOLVE_BENEATH, links are followed as long as they stay below the root. Each directory on the way is held
//! open, and `..` returns to the previous one of these instead of the current parent in the file system. Renames during
//! the walk therefore cannot lead out. The text of links is read here, and the kernel never follows one. Magic links
//! (`/proc/self/root`) therefore do not work.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{self, FileType, Mode, OFlags};
use rustix::io::Errno;

/// The number of links that Linux follows in a path (path_resolution(7)).
const LINKS_MAX: u32 = 40;

/// Opens `path` below `root` with the flags of openat(2).
///
/// # Errors
///
/// Fails with the errors of openat2 with RESOLVE_BENEATH: `EXDEV` for a path or link that leads out or is absolute,
/// `ELOOP` for too many links. Never fails with `EAGAIN`.
pub(super) fn open(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut below: Vec<OwnedFd> = Vec::new();
    let mut links = 0;
    // The remaining names, the next one last.
    let mut names = Vec::new();
    push_names(&mut names, path)?;
    while let Some(name) = names.pop() {
        match &name[..] {
            b"." => continue,
            b".." => {
                below.pop().ok_or(Errno::XDEV)?;
                continue;
            }
            _ => {}
        }
        let dir = below.last().map_or(root, AsFd::as_fd);
        let entry = open_one(dir, &name, OFlags::PATH)?;
        match FileType::from_raw_mode(fs::fstat(&entry)?.st_mode) {
            FileType::Symlink => {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Errno::LOOP);
                }
                let target = fs::readlinkat(&entry, c"", Vec::new())?;
                push_names(&mut names, target.as_bytes())?;
            }
            FileType::Directory if !names.is_empty() => below.push(entry),
            _ if !names.is_empty() => return Err(Errno::NOTDIR),
            _ if flags.contains(OFlags::PATH) => return Ok(entry),
            _ => match open_one(dir, &name, flags) {
                // The file has become a link. It is followed and counted like any other.
                Err(Errno::LOOP) => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Errno::LOOP);
                    }
                    names.push(name);
                }
                other => return other,
            },
        }
    }
    open_one(below.last().map_or(root, AsFd::as_fd), b".", flags)
}

/// Opens one name in a directory, which may be a link.
fn open_one(dir: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    fs::openat(dir, name, flags, Mode::empty())
}

/// Pushes the names of a path, the first one last. A trailing slash stands for the directory itself.
fn push_names(names: &mut Vec<Vec<u8>>, path: &[u8]) -> Result<(), Errno> {
    if path.starts_with(b"/") {
        return Err(Errno::XDEV);
    }
    if path.ends_with(b"/") {
        names.push(b".".to_vec());
    }
    let between_slashes = path.split(|&byte| byte == b'/').rev();
    names.extend(
        between_slashes
            .filter(|name| !name.is_empty())
            .map(<[u8]>::to_vec),
    );
    Ok(())
}
