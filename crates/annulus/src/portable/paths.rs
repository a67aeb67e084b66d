//! Operations on paths: calls of std, each on a blocking thread.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{File, FileTimes, Metadata, OpenOptions, PathIn, os};
use crate::buf::{IoBuf, bytes_of};
use crate::driver::{Operation, Submitter};
use crate::op::{
    Canonicalize, Link, MakeDir, ReadLink, Rename, SetPermissions, SetTimes, StatAt, Unlink,
    WriteAt,
};

/// Returns the options of std's `File::create`.
pub(crate) fn to_create() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    options
}

pub(crate) fn adopt(submitter: &Arc<Submitter>, file: fs::File) -> io::Result<File> {
    Ok(File::new(file, submitter, false))
}

/// Implements operations on paths.
macro_rules! operations {
    ($($name:ident($($path:ident),* $(; $value:ident: $of:ty)?) -> $op:ty, $output:ty = $call:expr;)*) => {
        $(pub(crate) fn $name<'a>(
            submitter: &'a Submitter,
            $($path: PathIn<'_>,)*
            $($value: $of)?
        ) -> Operation<'a, $op, io::Result<$output>> {
            $(let $path = $path.to_owned();)*
            submitter.op(move || $call)
        })*
    };
}

operations! {
    metadata(path; follow: bool) -> StatAt, Metadata = std_metadata(&path, follow).map(Metadata);
    set_permissions(path; permissions: fs::Permissions) -> SetPermissions, () = fs::set_permissions(path, permissions);
    set_times(path; times: FileTimes) -> SetTimes, () = os::open_for_times(&path)?.set_times(times);
    read_link(path) -> ReadLink, PathBuf = fs::read_link(path);
    remove_file(path) -> Unlink, () = fs::remove_file(path);
    remove_dir(path) -> Unlink, () = fs::remove_dir(path);
    create_dir(path) -> MakeDir, () = fs::create_dir(path);
    canonicalize(path) -> Canonicalize, PathBuf = fs::canonicalize(path);
    rename(from, to) -> Rename, () = fs::rename(from, to);
    hard_link(file, name) -> Link, () = fs::hard_link(file, name);
    create_dir_all(path) -> (), () = fs::create_dir_all(path);
    read(path) -> (), Vec<u8> = fs::read(path);
    read_to_string(path) -> (), String = fs::read_to_string(path);
    copy(from, to) -> (), u64 = copy_file(&from, &to);
    try_exists(path) -> (), bool = fs::exists(path);
    remove_dir_all(path) -> (), () = fs::remove_dir_all(path);
}

#[cfg(unix)]
pub(crate) fn symlink<'a>(
    submitter: &'a Submitter,
    target: &Path,
    name: PathIn<'_>,
) -> Operation<'a, crate::op::Symlink, io::Result<()>> {
    let (target, name) = (target.to_owned(), name.to_owned());
    submitter.op(move || std::os::unix::fs::symlink(target, name))
}

pub(crate) fn write<'a, B: IoBuf>(
    submitter: &'a Submitter,
    path: PathIn<'_>,
    contents: B,
) -> Operation<'a, WriteAt<B>, io::Result<()>> {
    let path = path.to_owned();
    submitter.op(move || fs::File::create(path)?.write_all(bytes_of(&contents)))
}

pub(crate) fn std_metadata(path: &Path, follow: bool) -> io::Result<fs::Metadata> {
    match follow {
        true => fs::metadata(path),
        false => fs::symlink_metadata(path),
    }
}

fn copy_file(from: &Path, to: &Path) -> io::Result<u64> {
    let refused = |path: &Path, why: &str| {
        let what = format!("copy: {} {why}", path.display());
        Err(io::Error::new(ErrorKind::InvalidInput, what))
    };
    if !fs::metadata(from)?.is_file() {
        return refused(from, "is not a regular file; only those are copied");
    }
    // Copying would remove the contents.
    if os::is_same_file(from, to).unwrap_or(false) {
        return refused(to, "is the file to copy; choose another name");
    }
    fs::copy(from, to)
}
