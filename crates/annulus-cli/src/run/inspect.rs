//! Obstacles to the library in a program, as far as its file shows them.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::getxattr;
use rustix::process::{getgid, getuid};

use super::elf::{self, Facts, Kind, Links, Machine};

/// The number of nested scripts that the kernel allows.
const SCRIPTS_MAX: usize = 4;
const SETUID: u32 = 0o4000;
/// The setgid bit, with the group's right to execute. Without that right, the bit has another meaning.
const SETGID: u32 = 0o2010;
/// The extended attribute with the capabilities of a file.
const CAPABILITIES: &str = "security.capability";

/// A remark about a program, which is printed before it starts.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Remark {
    /// The program is linked statically.
    Static,
    /// The program is linked to musl, whose loader has this path.
    Musl(PathBuf),
    /// The program is for another architecture than the library.
    OtherMachine(Machine),
    /// The program gets more rights than its caller, so its loader ignores `LD_PRELOAD`.
    Privileged(&'static str),
    /// The program is written in Go, and makes system calls without libc.
    Go,
    /// The program is built with AddressSanitizer. The runtime of this name must be the first library.
    Asan(OsString),
}

impl Remark {
    /// Returns whether `LD_PRELOAD` may be set: the loader uses the library, or ignores it silently.
    pub(super) fn is_harmless(&self) -> bool {
        !matches!(self, Remark::Musl(_) | Remark::OtherMachine(..))
    }

    /// Returns the library that must be loaded before the preload library.
    pub(super) fn loaded_first(&self) -> Option<&Path> {
        match self {
            Remark::Asan(runtime) => Some(Path::new(runtime)),
            _ => None,
        }
    }

    /// Returns the remark as a sentence about the command `name`.
    pub(super) fn sentence(&self, name: &OsStr) -> String {
        format!("{} {self}", name.display())
    }
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remark::Static => f.write_str(
                "is linked statically, so the library cannot be loaded, and it runs unchanged; use a dynamically linked \
                 build",
            ),
            Remark::Musl(loader) => write!(
                f,
                "is linked to musl ({}), but the library is for glibc, so it runs unchanged; use a build for glibc, such as \
                 that of an image with Debian",
                loader.display()
            ),
            Remark::OtherMachine(machine) => write!(
                f,
                "is for {machine}, but the library is for {}, so it runs unchanged; build the library for {machine}",
                elf::OWN
            ),
            Remark::Privileged(by) => write!(
                f,
                "gets more rights than its caller ({by}), so its loader ignores LD_PRELOAD, and it runs unchanged; run it \
                 as the user whose rights it needs, or remove these rights from the file"
            ),
            Remark::Go => f.write_str(
                "is a Go program, which makes system calls without libc, so it runs unchanged",
            ),
            Remark::Asan(runtime) => write!(
                f,
                "is built with AddressSanitizer, so {} is loaded before the library, also in its children; if a child cannot \
                 load it, use a build without the sanitizer",
                runtime.display()
            ),
        }
    }
}

/// Returns the file that the kernel starts. For a script, this is its interpreter.
pub(super) fn started(program: &Path) -> Option<(PathBuf, Facts)> {
    let mut path = program.to_path_buf();
    for _ in 0..=SCRIPTS_MAX {
        match elf::inspect(&path).ok()? {
            Kind::Elf(facts) => return Some((path, facts)),
            Kind::Script(interpreter) => path = interpreter,
            Kind::Other => return None,
        }
    }
    None
}

/// Returns the remarks about a program. There are none if its file cannot be read.
pub(super) fn remarks_about(program: &Path) -> Vec<Remark> {
    let Some((path, facts)) = started(program) else {
        return Vec::new();
    };
    let mut remarks = Vec::new();
    match &facts.interpreter {
        // Dynamic linking would not help.
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

/// Functions that wait on an epoll set.
const WAITS: [&[u8]; 3] = [b"epoll_wait", b"epoll_pwait", b"epoll_pwait2"];
/// Functions that run code which the file does not name: other programs, libraries and system calls.
const OTHER_CODE: [&[u8]; 12] = [
    b"dlopen",
    b"execl",
    b"execle",
    b"execlp",
    b"execv",
    b"execve",
    b"execveat",
    b"execvp",
    b"execvpe",
    b"posix_spawn",
    b"posix_spawnp",
    b"syscall",
];
/// The folders in which the loader finds most libraries.
const LIBRARIES: [&str; 7] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/usr/lib",
];

/// Returns whether the program certainly waits on no epoll set: neither it nor a library that it is linked to calls a
/// function that does so, and it loads and starts nothing else.
pub(super) fn never_waits(program: &Path) -> bool {
    let Some(own) = started(program).and_then(|(path, _)| elf::links(&path)) else {
        return false;
    };
    let has = |links: &Links, names: &[&[u8]]| {
        (links.imports.iter()).any(|import| names.contains(&import.as_slice()))
    };
    if own.imports.is_empty() || has(&own, &OTHER_CODE) || has(&own, &WAITS) {
        return false;
    }
    let (mut seen, mut left) = (Vec::new(), own.needed);
    while let Some(name) = left.pop() {
        // The C library's own waits are those of its callers.
        let text = name.to_string_lossy();
        if seen.contains(&name) || text.starts_with("libc.so.") || text.starts_with("ld-linux") {
            continue;
        }
        let mut paths = LIBRARIES.iter().map(|folder| Path::new(folder).join(&name));
        let Some(links) = paths.find_map(|path| elf::links(&path)) else {
            return false;
        };
        if has(&links, &WAITS) {
            return false;
        }
        left.extend(links.needed);
        seen.push(name);
    }
    true
}

/// Returns the missing interpreter of a script, or the missing loader of a program.
pub(super) fn missing_interpreter(program: &Path) -> Option<PathBuf> {
    let mut path = program.to_path_buf();
    for _ in 0..=SCRIPTS_MAX {
        path = match elf::inspect(&path).ok()? {
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

/// Returns the mechanism by which a program gets rights that this user and group do not have. The file system or the
/// process may rule that out, in which case the loader uses the library nevertheless.
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
    // Root has all capabilities.
    (has_capabilities && user != 0).then_some("capabilities of its file")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rustix::fs::{XattrFlags, setxattr};

    use super::*;

    #[test]
    fn only_rights_that_the_caller_lacks_count() {
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
            // This combination used to request mandatory locks.
            (0o2745, None),
        ] {
            with(mode);
            assert_eq!(privileged(&path, user + 1, group + 1), by, "{mode:o}");
            assert_eq!(privileged(&path, user, group), None, "{mode:o}");
        }
        with(0o755);
        // Version 2, effective, CAP_NET_BIND_SERVICE. Only root may write this attribute.
        let mut capabilities = [0; 20];
        capabilities[..8].copy_from_slice(&[1, 0, 0, 2, 0, 4, 0, 0]);
        if setxattr(&path, CAPABILITIES, &capabilities, XattrFlags::empty()).is_ok() {
            let by = Some("capabilities of its file");
            assert_eq!(privileged(&path, 1000, group), by);
            assert_eq!(privileged(&path, 0, group), None);
        }
    }
}
