//! A memory limit: a cgroup that the whole process enters while it measures.
//!
//! The kernel charges the page cache of a file to the cgroup that reads it. A limit below the size of the data
//! therefore acts like a machine whose memory does not hold the data. The whole process moves, because a thread cannot
//! move alone. The cgroup is removed at the end, also after a failure or an interrupt. The next run removes one that a
//! process killed by `SIGKILL` left behind.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::fault::Fault;
use crate::proc_files::{self, Mount};
use crate::signals::Removal;

const NAME: &str = "annulus-bench-";
/// The attempts to remove a cgroup: the kernel releases it shortly after its last process has left.
const REMOVALS: usize = 1000;
const REMOVAL_PAUSE: Duration = Duration::from_millis(10);

/// A peak within this fraction below the limit counts as reaching it, because the kernel reclaims a little early.
const REACHED_WITHIN: u64 = 10;

/// The swap space that the process may use in version one.
const SWAP_BYTES: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The memory controller of this machine, and the cgroups to use.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MemoryController {
    version: Version,
    /// The cgroup in which this process was started.
    home: PathBuf,
    /// The parent of the new cgroup.
    parent: PathBuf,
}

/// A cgroup with a memory limit. Dropping it moves the process back and removes it.
pub(crate) struct Limit {
    controller: MemoryController,
    folder: PathBuf,
    bytes: u64,
    _removal: Removal,
}

impl Limit {
    /// Creates the cgroup, without a process in it.
    pub(crate) fn make(bytes: u64) -> Result<Limit, Fault> {
        let cgroups = fs::read("/proc/self/cgroup").unwrap_or_default();
        let controller = MemoryController::find(&proc_files::mounts(), &cgroups);
        let controller = controller.ok_or_else(|| {
            Fault::usage(
                "--memory: no cgroup with the memory controller is mounted on this machine",
            )
        })?;
        sweep(&controller.parent);
        let folder = controller
            .parent
            .join(format!("{NAME}{}", std::process::id()));
        let removal = {
            let (controller, folder) = (controller.clone(), folder.clone());
            Removal::new(move || leave(&controller, &folder))
        };
        let limit = Limit {
            controller,
            folder,
            bytes,
            _removal: removal,
        };
        limit.set_up().map_err(|error| {
            let folder = limit.folder.display();
            match error.kind() {
                ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                    usage!("--memory needs root: cannot create the cgroup {folder}: {error}")
                }
                _ => usage!("--memory: cannot create the cgroup {folder}: {error}"),
            }
        })?;
        Ok(limit)
    }

    fn set_up(&self) -> io::Result<()> {
        let write = |file: &str, text: &str| fs::write(self.folder.join(file), text);
        let bytes = self.bytes.to_string();
        // Larger, because the kernel checks this limit first, and Linux 6.18 does not count when it is reached.
        let with_swap = self.bytes + SWAP_BYTES;
        match self.controller.version {
            Version::One => {
                fs::create_dir(&self.folder)?;
                write("memory.limit_in_bytes", &bytes)?;
                // Fails without swap or its accounting, where it is not needed.
                let _ = write("memory.memsw.limit_in_bytes", &with_swap.to_string());
                let _ = write("memory.swappiness", "0");
            }
            Version::Two => {
                let control = self.controller.parent.join("cgroup.subtree_control");
                if !fs::read_to_string(&control)?.contains("memory") {
                    fs::write(&control, "+memory")?;
                }
                fs::create_dir(&self.folder)?;
                write("memory.max", &bytes)?;
                let _ = write("memory.swap.max", "0");
            }
        }
        Ok(())
    }

    /// Moves this process into it. The memory of all later reads is charged to it.
    pub(crate) fn enter(&self) -> Result<(), Fault> {
        move_into(&self.folder)
            .map_err(|error| failed!("entering the cgroup {}: {error}", self.folder.display()))
    }

    /// Moves this process back to its own cgroup, which may fail if the cgroup is gone.
    pub(crate) fn leave(&self) {
        let _ = move_into(&self.controller.home);
    }

    /// Returns how often the limit made the kernel reclaim memory, if the kernel reports it.
    pub(crate) fn hits(&self) -> Option<u64> {
        let read = |file: &str| fs::read_to_string(self.folder.join(file)).ok();
        let number = |text: &str| text.trim().parse::<u64>().ok();
        match self.controller.version {
            Version::One => number(&read("memory.failcnt")?),
            Version::Two => {
                let events = read("memory.events")?;
                number(events.lines().find_map(|line| line.strip_prefix("max "))?)
            }
        }
    }

    /// Returns a note on the limit for the heading.
    pub(crate) fn note(&self) -> String {
        let version = match self.controller.version {
            Version::One => 1,
            Version::Two => 2,
        };
        format!(
            "memory limited to {} bytes by a cgroup (v{version}) that holds the whole process while it measures: its \
             buffers and threads, and the page cache of the data",
            self.bytes
        )
    }

    /// Returns a note on the peak usage, if the kernel reports it.
    pub(crate) fn peak_note(&self) -> Option<String> {
        let file = match self.controller.version {
            Version::One => "memory.max_usage_in_bytes",
            Version::Two => "memory.peak",
        };
        let text = fs::read_to_string(self.folder.join(file)).ok()?;
        let (peak, bytes) = (text.trim().parse::<u64>().ok()?, self.bytes);
        let never = match peak < bytes - bytes / REACHED_WITHIN {
            true => {
                "; the limit was never reached and had no effect: use a longer --runtime, or less --memory"
            }
            false => "",
        };
        Some(format!("peak memory: {peak} of {bytes} bytes{never}"))
    }
}

fn move_into(folder: &Path) -> io::Result<()> {
    fs::write(folder.join("cgroup.procs"), std::process::id().to_string())
}

/// Moves this process back and removes the cgroup, ignoring errors.
fn leave(controller: &MemoryController, folder: &Path) {
    for _ in 0..REMOVALS {
        // On each attempt: after a signal the main thread may enter the cgroup once more.
        let _ = move_into(&controller.home);
        if controller.version == Version::One {
            // Otherwise the pages stay charged to the removed cgroup.
            let _ = fs::write(folder.join("memory.force_empty"), "0");
        }
        match fs::remove_dir(folder) {
            Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                std::thread::sleep(REMOVAL_PAUSE);
            }
            _ => return,
        }
    }
}

/// Removes the cgroups of processes that were killed.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(NAME));
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            // Fails if a process is still in it.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

impl MemoryController {
    /// Finds the controller from the mounts and the content of `/proc/self/cgroup`.
    fn find(mounts: &[Mount], cgroups: &[u8]) -> Option<MemoryController> {
        let own = |matches: &dyn Fn(&[u8], &[u8]) -> bool| {
            cgroups.split(|&byte| byte == b'\n').find_map(|line| {
                let mut fields = line.splitn(3, |&byte| byte == b':');
                let (number, controllers) = (fields.next()?, fields.next()?);
                let path = Path::new(OsStr::from_bytes(fields.next()?));
                matches(number, controllers).then_some(path)
            })
        };
        let has_memory = |list: &[u8]| list.split(|&byte| byte == b',').any(|one| one == b"memory");
        if let Some(path) = own(&|_, controllers| has_memory(controllers)) {
            let home = home(mounts, path, |mount| {
                mount.kind == "cgroup" && has_memory(mount.options.as_bytes())
            })?;
            return Some(MemoryController {
                version: Version::One,
                parent: home.clone(),
                home,
            });
        }
        let path = own(&|number, controllers| number == b"0" && controllers.is_empty())?;
        let home = home(mounts, path, |mount| mount.kind == "cgroup2")?;
        // A cgroup with controlled children cannot hold a process, except the root, so create a sibling.
        let parent = match home.parent() {
            Some(parent) if path != Path::new("/") => parent.to_path_buf(),
            _ => home.clone(),
        };
        Some(MemoryController {
            version: Version::Two,
            home,
            parent,
        })
    }
}

/// Returns the folder of the cgroup `path` in the first mount that `matches`.
fn home(mounts: &[Mount], path: &Path, matches: impl Fn(&Mount) -> bool) -> Option<PathBuf> {
    let mount = mounts.iter().find(|mount| matches(mount))?;
    // In a container the mount may show only a part of the tree.
    let below = path.strip_prefix(&mount.root).unwrap_or(Path::new(""));
    Some(mount.point.join(below))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc_files::parse_mounts;

    fn find(mounts: &str, cgroups: &str) -> Option<MemoryController> {
        MemoryController::find(&parse_mounts(mounts.as_bytes()), cgroups.as_bytes())
    }

    #[test]
    fn version_one_is_recognized_by_its_controller() {
        let mounts = "30 25 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      32 25 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";
        let controller = find(mounts, "4:memory:/a/b\n1:cpu:/\n0::/").unwrap();
        assert_eq!(controller.version, Version::One);
        assert_eq!(controller.home, Path::new("/sys/fs/cgroup/memory/a/b"));
        assert_eq!(controller.parent, controller.home);
    }

    #[test]
    fn in_version_two_the_new_cgroup_is_a_sibling() {
        let mounts = "32 25 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw";
        let controller = find(mounts, "0::/user.slice/shell").unwrap();
        assert_eq!(controller.version, Version::Two);
        assert_eq!(
            controller.home,
            Path::new("/sys/fs/cgroup/user.slice/shell")
        );
        assert_eq!(controller.parent, Path::new("/sys/fs/cgroup/user.slice"));
        let root = find(mounts, "0::/").unwrap();
        assert_eq!(root.parent, Path::new("/sys/fs/cgroup"));
    }

    #[test]
    fn in_a_container_the_root_of_the_mount_is_stripped() {
        let mounts = "31 25 0:27 /box /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory";
        let controller = find(mounts, "4:memory:/box/in").unwrap();
        assert_eq!(controller.home, Path::new("/sys/fs/cgroup/memory/in"));
        assert_eq!(find("", "4:memory:/"), None);
    }
}
