//! Removal of whole directories.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use super::{Dir, FileKind, PathIn, ReadDir, paths};
use crate::driver::Submitter;
use crate::sys::call;
use crate::sys::errno::{ELOOP, ENOTDIR};

/// A directory whose entries are being removed.
struct Level {
    /// The name in the level above.
    name: OsString,
    dir: Dir,
    entries: ReadDir,
}

/// Every path is relative to an open directory, and no link is followed. A directory that is replaced by a symbolic
/// link meanwhile does not lead the removal elsewhere (CVE-2022-21658 was such an error of std).
pub(crate) async fn remove_dir_all(submitter: &Arc<Submitter>, path: PathIn<'_>) -> io::Result<()> {
    let metadata = paths::metadata(submitter, path, false).await?;
    if metadata.kind() == FileKind::Symlink {
        return paths::remove_file(submitter, path).await;
    }
    let mut levels = vec![open(submitter, path, OsString::new()).await?];
    while let Some(level) = levels.last_mut() {
        if let Some(entry) = level.entries.next().await {
            let entry = entry?;
            let path = level.dir.at(entry.name());
            // Of some entries the kind is unknown. The open blocks for none of them.
            let may_be_dir = matches!(entry.kind(), FileKind::Dir | FileKind::Other);
            let opened = match may_be_dir {
                true => open(submitter, path, entry.name().to_owned()).await,
                false => Err(io::Error::from_raw_os_error(ENOTDIR)),
            };
            match opened {
                Ok(below) => levels.push(below),
                Err(error) if matches!(error.raw_os_error(), Some(ENOTDIR | ELOOP)) => {
                    unless_gone(paths::remove_file(submitter, path).await)?;
                }
                Err(error) => unless_gone(Err(error))?,
            }
            continue;
        }
        let name = std::mem::take(&mut level.name);
        levels.pop();
        match levels.last() {
            Some(above) => {
                let removed = paths::remove_dir(submitter, above.dir.at(&name)).await;
                unless_gone(removed)?;
            }
            None => return paths::remove_dir(submitter, path).await,
        }
    }
    Ok(())
}

/// Opens a directory, and fails with `ENOTDIR` or `ELOOP` for a symbolic link.
async fn open(submitter: &Arc<Submitter>, path: PathIn<'_>, name: OsString) -> io::Result<Level> {
    let mut options = paths::to_list();
    options.custom_flags((call::O_DIRECTORY | call::O_NOFOLLOW).cast_signed());
    let dir = Dir::new(options.open(submitter, path).await?);
    let entries = ReadDir::of(Arc::clone(submitter), &dir);
    Ok(Level { name, dir, entries })
}

/// Ignores that another process has removed an entry.
fn unless_gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
