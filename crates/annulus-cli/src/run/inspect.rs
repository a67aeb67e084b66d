//! What stands in the way of the library in a program, as far as its file tells.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::getxattr;
use rustix::process::{getgid, getuid};

use super::elf::{self, Facts, Kind, Machine};

/// How many scripts the kernel lets run one another.
const SCRIPTS_MAX: usize = 4;
const SETUID: u32 = 0o4000;
/// With the group's right to execute; without it the bit means something else.
const SETGID: u32 = 0o2010;
/// Where capabilities of a file are.
const CAPABILITIES: &str = "security.capability";

/// Something that is worth a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Remark {
    /// Nothing is loaded but the program.
    Static,
    /// Of another C library: that library is its loader.
    Musl(PathBuf),
    /// It has a loader that fits none of our libraries.
    OtherMachine(Machine),
    /// It gets rights that we don't have: its loader takes nothing from us.
    Privileged(&'static str),
    /// It makes its system calls itself.
    Go,
    /// It is built with AddressSanitizer. Its runtime, of this name, ends a program in which another library is first.
    Asan(OsString),
}

impl Remark {
    /// Whether the library, once it is set, is taken or else ignored without a word.
    pub(super) fn is_harmless(&self) -> bool {
        !matches!(self, Remark::Musl(_) | Remark::OtherMachine(..))
    }

    /// What has to be loaded before the library.
    pub(super) fn loaded_first(&self) -> Option<&Path> {
        match self {
            Remark::Asan(runtime) => Some(Path::new(runtime)),
            _ => None,
        }
    }

    /// Of the command that was typed.
    pub(super) fn sentence(&self, name: &OsStr) -> String {
        format!("{} {self}", name.display())
    }
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remark::Static => f.write_str(
                "is linked statically: no library can be put into it, and it runs as it is; use a build of it that is \
                 linked dynamically",
            ),
            Remark::Musl(loader) => write!(
                f,
                "is linked to musl ({}), and the library is for glibc: it runs as it is, without it; use a build of \
                 it for glibc",
                loader.display()
            ),
            Remark::OtherMachine(its) => write!(
                f,
                "is for {its}, and the library for {}: it runs as it is, without it; build the library for {its}",
                elf::OWN
            ),
            Remark::Privileged(by) => write!(
                f,
                "gets more rights than its caller ({by}): its loader ignores LD_PRELOAD, and it runs as it is; run it \
                 as the user whose rights it needs, or take that from the file"
            ),
            Remark::Go => f.write_str(
                "is a Go program: it makes its system calls itself, and nothing of it is served; it runs as it is",
            ),
            Remark::Asan(runtime) => write!(
                f,
                "is built with AddressSanitizer, whose runtime must be loaded first: {} comes before the library, also \
                 in its children; if one of them can't have it, use a build without the sanitizer",
                runtime.display()
            ),
        }
    }
}

/// What the kernel starts for the file: of a script, what runs it.
pub(super) fn started(program: &Path) -> Option<(PathBuf, Facts)> {
    let mut path = program.to_path_buf();
    for _ in 0..=SCRIPTS_MAX {
        match elf::look(&path).ok()? {
            Kind::Elf(facts) => return Some((path, facts)),
            Kind::Script(interpreter) => path = interpreter,
            Kind::Other => return None,
        }
    }
    None
}

/// What is to be said of a program. A file that can't be read, though it may be executed, tells nothing.
pub(super) fn at(program: &Path) -> Vec<Remark> {
    let Some((path, facts)) = started(program) else {
        return Vec::new();
    };
    let mut remarks = Vec::new();
    match &facts.interpreter {
        // To link it otherwise would help nothing.
        None if facts.is_go => {}
        None => remarks.push(Remark::Static),
        Some(_) if facts.machine != elf::OWN => remarks.push(Remark::OtherMachine(facts.machine)),
        Some(loader) if is_musl(loader) => remarks.push(Remark::Musl(loader.clone())),
        Some(_) => {
            let (user, group) = (getuid().as_raw(), getgid().as_raw());
            remarks.extend(privileged(&path, user, group).map(Remark::Privileged));
            remarks.extend(facts.asan.clone().map(Remark::Asan));
        }
    }
    if facts.is_go {
        remarks.push(Remark::Go);
    }
    remarks
}

/// What is named to run the program, or what it names as its loader, and is not there.
pub(super) fn interpreter(program: &Path) -> Option<PathBuf> {
    let mut path = program.to_path_buf();
    for _ in 0..=SCRIPTS_MAX {
        path = match elf::look(&path).ok()? {
            Kind::Elf(facts) => facts.interpreter?,
            Kind::Script(interpreter) => interpreter,
            Kind::Other => return None,
        };
        if !path.exists() {
            return Some(path);
        }
    }
    None
}

fn is_musl(loader: &Path) -> bool {
    let name = loader.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("ld-musl-")
}

/// By what a file gets rights that this user and group do not have. Where the file system or the process rules that
/// out, it does not, and the loader takes the library all the same.
fn privileged(path: &Path, user: u32, group: u32) -> Option<&'static str> {
    let metadata = fs::metadata(path).ok()?;
    if metadata.mode() & SETUID != 0 && metadata.uid() != user {
        return Some("setuid");
    }
    if metadata.mode() & SETGID == SETGID && metadata.gid() != group {
        return Some("setgid");
    }
    let mut capabilities = [0; 64];
    let has_capabilities = getxattr(path, CAPABILITIES, &mut capabilities).is_ok();
    // Root has them all.
    (has_capabilities && user != 0).then_some("capabilities of its file")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rustix::fs::{XattrFlags, setxattr};

    use super::*;

    #[test]
    fn rights_that_the_caller_has_already_are_no_more_rights() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("program");
        fs::write(&path, "").unwrap();
        let metadata = fs::metadata(&path).unwrap();
        let (user, group) = (metadata.uid(), metadata.gid());
        let with = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        for (mode, by) in [
            (0o755, None),
            (0o4755, Some("setuid")),
            (0o2755, Some("setgid")),
            // Mandatory locks, once.
            (0o2745, None),
        ] {
            with(mode);
            assert_eq!(privileged(&path, user + 1, group + 1), by, "{mode:o}");
            assert_eq!(privileged(&path, user, group), None, "{mode:o}");
        }
        with(0o755);
        // Version 2, effective, CAP_NET_BIND_SERVICE; only root may write it.
        let mut capabilities = [0; 20];
        capabilities[..8].copy_from_slice(&[1, 0, 0, 2, 0, 4, 0, 0]);
        if setxattr(&path, CAPABILITIES, &capabilities, XattrFlags::empty()).is_ok() {
            let by = Some("capabilities of its file");
            assert_eq!(privileged(&path, 1000, group), by);
            assert_eq!(privileged(&path, 0, group), None);
        }
    }
}
