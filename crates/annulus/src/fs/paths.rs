//! Operations on paths, for engines and for the cores of runtimes.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use super::{DirEntry, File, Metadata, OpenOptions, path_to_cstring};
use crate::buf::Region;
use crate::driver::{Operation, Submitter};
use crate::fd::Fd;
use crate::op::{
    Link, ListDir, MakeDir, OpenedFd, ReadLink, Rename, SetPermissions, StatAt, Symlink, Unlink,
};
use crate::sys::call;
use crate::sys::errno::EINVAL;

/// Returns the options of std's `File::create`.
pub(crate) fn to_create() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    options
}

/// Returns the options of a new file without a name, which is opened with the path of a directory.
pub(crate) fn to_create_unnamed() -> OpenOptions {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .custom_flags(call::O_TMPFILE.cast_signed());
    options
}

pub(crate) fn adopt(submitter: &Arc<Submitter>, file: std::fs::File) -> io::Result<File> {
    if submitter.closer.is_some() {
        let what =
            "the simulated kernel cannot use a descriptor of this process; open the file by path";
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    }
    let fd = Fd::adopt(file);
    let flags = call::open_flags(fd.raw())?;
    fd.set_open_flags(flags);
    let mount = None;
    File::new(OpenedFd { fd, flags, mount }, Arc::clone(submitter))
}

pub(crate) async fn load_file(submitter: &Arc<Submitter>, path: &Path) -> io::Result<Region> {
    let mut options = OpenOptions::new();
    options.read(true).direct(true);
    let file = match options.open(submitter, path).await {
        // The file system does not support direct I/O.
        Err(error) if error.raw_os_error() == Some(EINVAL) => {
            options.direct(false).open(submitter, path).await?
        }
        other => other?,
    };
    let bytes = file.metadata().await?.len();
    let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
    Ok(file.load(0, bytes).await?)
}

/// `follow`: returns the metadata of a link's target, not of the link.
pub(crate) fn metadata<'a>(
    submitter: &'a Submitter,
    path: &Path,
    follow: bool,
) -> Operation<'a, StatAt, io::Result<Metadata>> {
    let stat = match path_to_cstring(path) {
        Ok(path) => Operation::new(submitter, StatAt::path(path, follow)),
        Err(error) => Operation::ready(submitter, Err(error)),
    };
    stat.map(|result, _| result.map(Metadata::new))
}

/// `flags`: those of `renameat2(2)`.
pub(crate) fn rename<'a>(
    submitter: &'a Submitter,
    from: &Path,
    to: &Path,
    flags: u32,
) -> Operation<'a, Rename> {
    match (path_to_cstring(from), path_to_cstring(to)) {
        (Ok(from), Ok(to)) => Operation::new(submitter, Rename::new(from, to, flags)),
        (Err(error), _) | (_, Err(error)) => Operation::ready(submitter, Err(error)),
    }
}

pub(crate) fn hard_link<'a>(
    submitter: &'a Submitter,
    file: &Path,
    name: &Path,
) -> Operation<'a, Link> {
    match (path_to_cstring(file), path_to_cstring(name)) {
        (Ok(file), Ok(name)) => Operation::new(submitter, Link::new(file, name)),
        (Err(error), _) | (_, Err(error)) => Operation::ready(submitter, Err(error)),
    }
}

pub(crate) fn symlink<'a>(
    submitter: &'a Submitter,
    target: &Path,
    name: &Path,
) -> Operation<'a, Symlink> {
    match (path_to_cstring(target), path_to_cstring(name)) {
        (Ok(target), Ok(name)) => Operation::new(submitter, Symlink::new(target, name)),
        (Err(error), _) | (_, Err(error)) => Operation::ready(submitter, Err(error)),
    }
}

pub(crate) fn read_link<'a>(submitter: &'a Submitter, path: &Path) -> Operation<'a, ReadLink> {
    match path_to_cstring(path) {
        Ok(path) => Operation::new(submitter, ReadLink::new(path)),
        Err(error) => Operation::ready(submitter, Err(error)),
    }
}

pub(crate) fn set_permissions<'a>(
    submitter: &'a Submitter,
    path: &Path,
    permissions: &Permissions,
) -> Operation<'a, SetPermissions> {
    match path_to_cstring(path) {
        Ok(path) => {
            let op = SetPermissions::new(Err(path), permissions.mode());
            Operation::new(submitter, op)
        }
        Err(error) => Operation::ready(submitter, Err(error)),
    }
}

pub(crate) fn remove_file<'a>(submitter: &'a Submitter, path: &Path) -> Operation<'a, Unlink> {
    unlink(submitter, path, 0)
}

pub(crate) fn remove_dir<'a>(submitter: &'a Submitter, path: &Path) -> Operation<'a, Unlink> {
    unlink(submitter, path, call::AT_REMOVEDIR)
}

fn unlink<'a>(submitter: &'a Submitter, path: &Path, flags: u32) -> Operation<'a, Unlink> {
    match path_to_cstring(path) {
        Ok(path) => Operation::new(submitter, Unlink::new(path, flags)),
        Err(error) => Operation::ready(submitter, Err(error)),
    }
}

pub(crate) fn create_dir<'a>(submitter: &'a Submitter, path: &Path) -> Operation<'a, MakeDir> {
    match path_to_cstring(path) {
        Ok(path) => Operation::new(submitter, MakeDir::new(path, 0o777)),
        Err(error) => Operation::ready(submitter, Err(error)),
    }
}

pub(crate) async fn read_dir(submitter: &Arc<Submitter>, path: &Path) -> io::Result<Vec<DirEntry>> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .custom_flags(call::O_DIRECTORY.cast_signed());
    let dir = options.open(submitter, path).await?;
    let listed = Operation::new(submitter, ListDir::new(dir.into_fd())).await?;
    Ok(listed.into_iter().map(DirEntry::new).collect())
}
