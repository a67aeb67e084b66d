//! Operations on paths, for engines and for the cores of runtimes.

use std::ffi::{CString, OsStr};
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use super::{Dir, File, FileTimes, Metadata, OpenOptions, PathIn, path_to_cstring};
use crate::buf::Region;
use crate::driver::{Operation, Submitter};
use crate::fd::Fd;
use crate::op::{
    At, Canonicalize, FileOp, GetXattr, Link, ListXattrs, MakeDir, OpenedFd, ReadLink, RemoveXattr,
    Rename, SetPermissions, SetTimes, SetXattr, StatAt, Symlink, Unlink,
};
use crate::sys::call;
use crate::sys::errno::EINVAL;
#[cfg(feature = "tokio")]
use crate::sys::mount::Identity;

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

/// Takes over a file of std in any case: if it cannot be queried, its operations will fail.
#[cfg(feature = "tokio")]
pub(crate) fn adopt_anyway(submitter: &Arc<Submitter>, file: std::fs::File) -> File {
    let fd = Fd::adopt(file);
    let flags = call::open_flags(fd.raw()).unwrap_or(call::O_RDWR);
    fd.set_open_flags(flags);
    let identity = Identity::of(fd.raw()).unwrap_or_else(|_| Identity::unknown());
    let opened = OpenedFd {
        fd,
        flags,
        mount: None,
    };
    File::with_identity(opened, Arc::clone(submitter), Some(identity))
}

pub(crate) async fn load_file(submitter: &Arc<Submitter>, path: PathIn<'_>) -> io::Result<Region> {
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
    path: PathIn<'_>,
    op: impl FnOnce(At) -> T,
) -> Operation<'a, T>
where
    T: FileOp<Output = io::Result<R>>,
{
    submit(submitter, path.target().map(op))
}

/// Returns an operation on two paths.
fn on_paths<'a, T, R>(
    submitter: &'a Submitter,
    one: PathIn<'_>,
    other: PathIn<'_>,
    op: impl FnOnce(At, At) -> T,
) -> Operation<'a, T>
where
    T: FileOp<Output = io::Result<R>>,
{
    let other = other.target();
    let op = one.target().and_then(|one| Ok(op(one, other?)));
    submit(submitter, op)
}

fn submit<T, R>(submitter: &Submitter, op: io::Result<T>) -> Operation<'_, T>
where
    T: FileOp<Output = io::Result<R>>,
{
    match op {
        Ok(op) => Operation::new(submitter, op),
        Err(error) => Operation::ready(submitter, Err(error)),
    }
}

/// Returns an operation on a path and a string: the name of an attribute, or the target of a link.
fn on_path_and<'a, T, R>(
    submitter: &'a Submitter,
    path: io::Result<At>,
    name: impl AsRef<Path>,
    op: impl FnOnce(At, CString) -> T,
) -> Operation<'a, T>
where
    T: FileOp<Output = io::Result<R>>,
{
    let name = path_to_cstring(name.as_ref());
    let op = path.and_then(|path| Ok(op(path, name?)));
    submit(submitter, op)
}

pub(crate) async fn open_dir(submitter: &Arc<Submitter>, path: PathIn<'_>) -> io::Result<Dir> {
    let file = to_list().open(submitter, path).await?;
    Ok(Dir::new(file))
}

/// Returns the options of a directory that is listed, or is the base of paths.
pub(crate) fn to_list() -> OpenOptions {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .custom_flags(call::O_DIRECTORY.cast_signed());
    options
}

/// `follow`: returns the metadata of a link's target, not of the link.
pub(crate) fn metadata<'a>(
    submitter: &'a Submitter,
    path: PathIn<'_>,
    follow: bool,
) -> Operation<'a, StatAt, io::Result<Metadata>> {
    // A simulated kernel has other files than the calling thread.
    let here = submitter.closer.is_none() && submitter.serves();
    on_path(submitter, path, |path| StatAt::path(path, follow, here))
        .map(|result, _| result.map(Metadata::new))
}

pub(crate) fn rename<'a>(
    submitter: &'a Submitter,
    from: PathIn<'_>,
    to: PathIn<'_>,
) -> Operation<'a, Rename> {
    rename_with(submitter, from, to, 0)
}

/// `flags`: those of `renameat2(2)`.
pub(crate) fn rename_with<'a>(
    submitter: &'a Submitter,
    from: PathIn<'_>,
    to: PathIn<'_>,
    flags: u32,
) -> Operation<'a, Rename> {
    on_paths(submitter, from, to, |from, to| Rename::new(from, to, flags))
}

pub(crate) fn hard_link<'a>(
    submitter: &'a Submitter,
    file: PathIn<'_>,
    name: PathIn<'_>,
) -> Operation<'a, Link> {
    on_paths(submitter, file, name, Link::new)
}

pub(crate) fn symlink<'a>(
    submitter: &'a Submitter,
    target: &Path,
    name: PathIn<'_>,
) -> Operation<'a, Symlink> {
    on_path_and(submitter, name.target(), target, |name, target| {
        Symlink::new(target, name)
    })
}

pub(crate) fn read_link<'a>(submitter: &'a Submitter, path: PathIn<'_>) -> Operation<'a, ReadLink> {
    on_path(submitter, path, ReadLink::new)
}

pub(crate) fn set_permissions<'a>(
    submitter: &'a Submitter,
    path: PathIn<'_>,
    permissions: Permissions,
) -> Operation<'a, SetPermissions> {
    on_path(submitter, path, |path| {
        SetPermissions::new(path, permissions.mode())
    })
}

pub(crate) fn set_times<'a>(
    submitter: &'a Submitter,
    path: PathIn<'_>,
    times: FileTimes,
) -> Operation<'a, SetTimes> {
    on_path(submitter, path, |path| {
        SetTimes::new(path, times.timespecs())
    })
}

pub(crate) fn get_xattr<'a>(
    submitter: &'a Submitter,
    path: PathIn<'_>,
    name: &OsStr,
) -> Operation<'a, GetXattr> {
    on_path_and(submitter, path.target_in_proc(), name, GetXattr::new)
}

pub(crate) fn set_xattr<'a>(
    submitter: &'a Submitter,
    path: PathIn<'_>,
    name: &OsStr,
    value: Vec<u8>,
) -> Operation<'a, SetXattr> {
    on_path_and(submitter, path.target_in_proc(), name, |path, name| {
        SetXattr::new(path, name, value)
    })
}

pub(crate) fn list_xattrs<'a>(
    submitter: &'a Submitter,
    path: PathIn<'_>,
) -> Operation<'a, ListXattrs> {
    submit(submitter, path.target_in_proc().map(ListXattrs::new))
}

pub(crate) fn remove_xattr<'a>(
    submitter: &'a Submitter,
    path: PathIn<'_>,
    name: &OsStr,
) -> Operation<'a, RemoveXattr> {
    on_path_and(submitter, path.target_in_proc(), name, RemoveXattr::new)
}

pub(crate) fn remove_file<'a>(submitter: &'a Submitter, path: PathIn<'_>) -> Operation<'a, Unlink> {
    on_path(submitter, path, |path| Unlink::new(path, 0))
}

pub(crate) fn remove_dir<'a>(submitter: &'a Submitter, path: PathIn<'_>) -> Operation<'a, Unlink> {
    on_path(submitter, path, |path| {
        Unlink::new(path, call::AT_REMOVEDIR)
    })
}

pub(crate) fn create_dir<'a>(submitter: &'a Submitter, path: PathIn<'_>) -> Operation<'a, MakeDir> {
    on_path(submitter, path, |path| MakeDir::new(path, 0o777))
}

pub(crate) fn canonicalize<'a>(
    submitter: &'a Submitter,
    path: PathIn<'_>,
) -> Operation<'a, Canonicalize> {
    submit(submitter, path.target_in_proc().map(Canonicalize::new))
}
