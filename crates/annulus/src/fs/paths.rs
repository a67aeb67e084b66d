//! Operations on paths, for engines and for the cores of runtimes.

use std::ffi::{CString, OsStr};
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use super::{File, FileTimes, Metadata, OpenOptions, path_to_cstring};
use crate::buf::Region;
use crate::driver::{Operation, Submitter};
use crate::fd::Fd;
use crate::op::{
    At, FileOp, GetXattr, Link, ListXattrs, MakeDir, OpenedFd, ReadLink, RemoveXattr, Rename,
    SetPermissions, SetTimes, SetXattr, StatAt, Symlink, Unlink,
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

/// Returns an operation on a path; one that fails if the kernel cannot take the path.
fn on_path<'a, T, R>(
    submitter: &'a Submitter,
    path: &Path,
    op: impl FnOnce(CString) -> T,
) -> Operation<'a, T>
where
    T: FileOp<Output = io::Result<R>>,
{
    on_paths(submitter, path, Path::new(""), |path, _| op(path))
}

/// Returns an operation on two paths.
fn on_paths<'a, T, R>(
    submitter: &'a Submitter,
    one: &Path,
    other: &Path,
    op: impl FnOnce(CString, CString) -> T,
) -> Operation<'a, T>
where
    T: FileOp<Output = io::Result<R>>,
{
    match (path_to_cstring(one), path_to_cstring(other)) {
        (Ok(one), Ok(other)) => Operation::new(submitter, op(one, other)),
        (Err(error), _) | (_, Err(error)) => Operation::ready(submitter, Err(error)),
    }
}

/// `follow`: returns the metadata of a link's target, not of the link.
pub(crate) fn metadata<'a>(
    submitter: &'a Submitter,
    path: &Path,
    follow: bool,
) -> Operation<'a, StatAt, io::Result<Metadata>> {
    on_path(submitter, path, |path| StatAt::path(path, follow))
        .map(|result, _| result.map(Metadata::new))
}

/// `flags`: those of `renameat2(2)`.
pub(crate) fn rename<'a>(
    submitter: &'a Submitter,
    from: &Path,
    to: &Path,
    flags: u32,
) -> Operation<'a, Rename> {
    on_paths(submitter, from, to, |from, to| Rename::new(from, to, flags))
}

pub(crate) fn hard_link<'a>(
    submitter: &'a Submitter,
    file: &Path,
    name: &Path,
) -> Operation<'a, Link> {
    on_paths(submitter, file, name, Link::new)
}

pub(crate) fn symlink<'a>(
    submitter: &'a Submitter,
    target: &Path,
    name: &Path,
) -> Operation<'a, Symlink> {
    on_paths(submitter, target, name, Symlink::new)
}

pub(crate) fn read_link<'a>(submitter: &'a Submitter, path: &Path) -> Operation<'a, ReadLink> {
    on_path(submitter, path, ReadLink::new)
}

pub(crate) fn set_permissions<'a>(
    submitter: &'a Submitter,
    path: &Path,
    permissions: &Permissions,
) -> Operation<'a, SetPermissions> {
    on_path(submitter, path, |path| {
        SetPermissions::new(At::Path(path), permissions.mode())
    })
}

pub(crate) fn set_times<'a>(
    submitter: &'a Submitter,
    path: &Path,
    times: FileTimes,
) -> Operation<'a, SetTimes> {
    on_path(submitter, path, |path| {
        SetTimes::new(At::Path(path), times.timespecs())
    })
}

pub(crate) fn get_xattr<'a>(
    submitter: &'a Submitter,
    path: &Path,
    name: &OsStr,
) -> Operation<'a, GetXattr> {
    on_paths(submitter, path, name.as_ref(), |path, name| {
        GetXattr::new(At::Path(path), name)
    })
}

pub(crate) fn set_xattr<'a>(
    submitter: &'a Submitter,
    path: &Path,
    name: &OsStr,
    value: Vec<u8>,
) -> Operation<'a, SetXattr> {
    on_paths(submitter, path, name.as_ref(), |path, name| {
        SetXattr::new(At::Path(path), name, value)
    })
}

pub(crate) fn list_xattrs<'a>(submitter: &'a Submitter, path: &Path) -> Operation<'a, ListXattrs> {
    on_path(submitter, path, |path| ListXattrs::new(At::Path(path)))
}

pub(crate) fn remove_xattr<'a>(
    submitter: &'a Submitter,
    path: &Path,
    name: &OsStr,
) -> Operation<'a, RemoveXattr> {
    on_paths(submitter, path, name.as_ref(), |path, name| {
        RemoveXattr::new(At::Path(path), name)
    })
}

pub(crate) fn remove_file<'a>(submitter: &'a Submitter, path: &Path) -> Operation<'a, Unlink> {
    on_path(submitter, path, |path| Unlink::new(path, 0))
}

pub(crate) fn remove_dir<'a>(submitter: &'a Submitter, path: &Path) -> Operation<'a, Unlink> {
    on_path(submitter, path, |path| {
        Unlink::new(path, call::AT_REMOVEDIR)
    })
}

pub(crate) fn create_dir<'a>(submitter: &'a Submitter, path: &Path) -> Operation<'a, MakeDir> {
    on_path(submitter, path, |path| MakeDir::new(path, 0o777))
}
