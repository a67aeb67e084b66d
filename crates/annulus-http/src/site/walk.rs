//! A path below a root, name by name: for kernels without openat2, and for paths with `..` that the kernel gives up
//! on because something is being renamed meanwhile. Used by `beneath`.
//!
//! As with RESOLVE_BENEATH, links are followed as long as they stay below. Each directory on the way is held open,
//! and `..` goes back to the one that we came from rather than to what the file system has above at that moment:
//! so nothing that is renamed meanwhile leads out. Names of links are read, never followed by the kernel: links
//! that are more than their text (`/proc/self/root`) lead nowhere.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{self, FileType, Mode, OFlags};
use rustix::io::Errno;

/// As many links as Linux follows in a path (path_resolution(7)).
const LINKS_MAX: u32 = 40;

/// Opens what `path` names below `root`, with the flags of openat(2).
///
/// # Errors
///
/// Those of openat2 with RESOLVE_BENEATH: `EXDEV` for what leads out, a link with an absolute path included; `ELOOP`
/// for more links than Linux follows. Never `EAGAIN`.
pub(super) fn open(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut below: Vec<OwnedFd> = Vec::new();
    let mut links = 0;
    // What is still to go, the next one last.
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
                // It is a link now. Followed like any other, and counted.
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

/// One name in a directory, which may be a link itself.
fn open_one(dir: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    fs::openat(dir, name, flags, Mode::empty())
}

/// The names of a path, the first one last. A slash at its end stands for the directory itself.
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
