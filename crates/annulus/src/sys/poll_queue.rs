//! Detection of poll queues (IOPOLL) through sysfs. Runs when a direct file is opened on an engine that polls. If the
//! device has no poll queues, the result describes how to get some.

use std::fmt;
use std::io;

use rustix::fs::{Access, Dir, FileType, Mode, OFlags, access, open, readlink};

use super::mount::Identity;
use super::probe::read_text;

/// The reason why reads and writes of a file are completed by interrupts and not by polling. `Display` ends with the
/// remedy.
///
/// The variants are the steps from an engine to its device, so that a program can report what is missing. It is not an
/// `io::Error`, because such a file works all the same.
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// # let path = dir.path().join("data"); std::fs::write(&path, "0123")?;
/// use annulus::fs::NotPolled;
///
/// let file = engine.open(&path).await?;
/// match file.poll_support() {
///     Ok(()) => println!("the device is polled"),
///     Err(NotPolled::NoRing) => {} // `EngineBuilder::iopoll` was not called
///     Err(reason) => println!("{reason}"),
/// }
/// # Ok(()) }) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotPolled {
    /// The engine has no ring that polls: none was requested, or the kernel refused it.
    NoRing,
    /// The file goes through the page cache; only direct files can be polled.
    Buffered,
    /// The file system is not on a single block device: tmpfs, overlay, btrfs, NFS.
    NoDevice {
        /// The file system's device number, `major:minor`.
        number: String,
    },
    /// The device has no poll queues.
    NoQueues {
        /// The name in `/sys/block`.
        device: String,
    },
    /// The device is stacked on others (dm, md, loop) and does not pass polling through.
    Stacked {
        /// The name in `/sys/block`.
        device: String,
    },
    /// The kernel refused polled reads and writes of this file, although its device has poll queues. The file uses
    /// interrupts again.
    Refused,
    /// The device of the file could not be determined.
    Unknown {
        /// The errno of the failed call.
        errno: i32,
    },
}

impl fmt::Display for NotPolled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotPolled::NoRing => f.write_str(
                "the engine has no ring that polls; build it with EngineBuilder::iopoll, and check Engine::backend",
            ),
            NotPolled::Buffered => f.write_str(
                "the file goes through the page cache; open it with OpenOptions::direct",
            ),
            NotPolled::NoDevice { number } => write!(
                f,
                "the file system ({number}) is not on a single block device; put the file on ext4 or XFS on \
                 an NVMe drive, or open the device itself"
            ),
            NotPolled::NoQueues { device } => {
                write!(f, "{device} has no queues to poll; {}", steps(device))
            }
            NotPolled::Stacked { device } => write!(
                f,
                "{device} is stacked on other devices, and its queue/io_poll is not 1; put the file on a plain \
                 NVMe drive"
            ),
            NotPolled::Refused => f.write_str(
                "the kernel refused a polled transfer of this file (EOPNOTSUPP); open it again when the \
                 device's queue/io_poll is 1",
            ),
            NotPolled::Unknown { errno } => write!(
                f,
                "the file's device could not be determined ({}); check that /sys is mounted",
                io::Error::from_raw_os_error(*errno)
            ),
        }
    }
}

impl std::error::Error for NotPolled {}

/// Returns the steps that give a device of this name poll queues. The kernel limits their number.
fn steps(device: &str) -> String {
    let check = format!("then check that /sys/block/{device}/queue/io_poll is 1");
    if device.starts_with("nvme") {
        return format!(
            "as root, with none of its file systems mounted: modprobe -r nvme && modprobe nvme poll_queues=1; or, if \
             the driver is built in or holds the root file system, boot with nvme.poll_queues=1; {check}"
        );
    }
    if device.starts_with("vd") {
        return format!(
            "boot with virtio_blk.poll_queues=1 (since Linux 5.19) and give the virtual machine's disk at least \
             two queues (QEMU: num-queues=2); {check}"
        );
    }
    if device.starts_with("nullb") {
        return format!("modprobe null_blk poll_queues=1 (since Linux 5.17); {check}");
    }
    "its driver has none; use an NVMe drive".to_owned()
}

/// Checks that the device under an open file can be polled.
pub(crate) fn of_file(fd: i32) -> Result<(), NotPolled> {
    let stat = match Identity::of(fd) {
        Ok(identity) => identity.statx,
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or_default();
            return Err(NotPolled::Unknown { errno });
        }
    };
    let kind = FileType::from_raw_mode(u32::from(stat.stx_mode));
    let (major, minor) = if kind == FileType::BlockDevice {
        (stat.stx_rdev_major, stat.stx_rdev_minor)
    } else {
        (stat.stx_dev_major, stat.stx_dev_minor)
    };
    of_device("/sys", major, minor)
}

/// Checks the device with this number. `sys` is the mount point of sysfs.
fn of_device(sys: &str, major: u32, minor: u32) -> Result<(), NotPolled> {
    let number = format!("{major}:{minor}");
    let path = format!("{sys}/dev/block/{number}");
    // A link to the device's folder. A partition's folder is inside that of its disk, which has the queue.
    let link = match readlink(path.as_str(), Vec::new()) {
        Ok(link) => link.to_string_lossy().into_owned(),
        Err(rustix::io::Errno::NOENT) if major == 0 => return Err(NotPolled::NoDevice { number }),
        Err(errno) => {
            let errno = errno.raw_os_error();
            return Err(NotPolled::Unknown { errno });
        }
    };
    let mut names = link.rsplit('/');
    let mut disk = path;
    let mut device = names.next().unwrap_or_default();
    if exists(&format!("{disk}/partition")) {
        disk.push_str("/..");
        device = names.next().unwrap_or_default();
    }
    if contains_one(&format!("{disk}/queue/io_poll")) {
        return Ok(());
    }
    let device = device.to_owned();
    let stacked = ["dm-", "md", "loop"]
        .iter()
        .any(|kind| device.starts_with(kind));
    Err(if stacked {
        NotPolled::Stacked { device }
    } else {
        NotPolled::NoQueues { device }
    })
}

/// Returns the name in `/sys/block` of each block device, and whether it has poll queues. Devices made of files or
/// memory are left out.
pub(crate) fn devices() -> Vec<(String, bool)> {
    const BLOCK: &str = "/sys/block";
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(dir) = open(BLOCK, flags, Mode::empty()).and_then(Dir::new) else {
        return Vec::new();
    };
    let names = dir
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| {
            !["loop", "ram", "zram", "."]
                .iter()
                .any(|kind| name.starts_with(kind))
        });
    let mut devices: Vec<_> = names
        .map(|name| {
            let polls = contains_one(&format!("{BLOCK}/{name}/queue/io_poll"));
            (name, polls)
        })
        .collect();
    devices.sort();
    devices
}

fn contains_one(path: &str) -> bool {
    read_text(path).is_some_and(|text| text.trim() == "1")
}

fn exists(path: &str) -> bool {
    access(path, Access::EXISTS).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// Creates a sysfs that has one disk of this name, 8:0, with one partition, 8:1.
    fn sysfs(device: &str, io_poll: &str) -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        let disk = sys.path().join("devices/block").join(device);
        let part = disk.join(format!("{device}p1"));
        fs::create_dir_all(disk.join("queue")).unwrap();
        fs::create_dir_all(&part).unwrap();
        fs::write(disk.join("queue/io_poll"), io_poll).unwrap();
        fs::write(part.join("partition"), "1\n").unwrap();
        let dev = sys.path().join("dev/block");
        fs::create_dir_all(&dev).unwrap();
        symlink(format!("../../devices/block/{device}"), dev.join("8:0")).unwrap();
        let target = format!("../../devices/block/{device}/{device}p1");
        symlink(target, dev.join("8:1")).unwrap();
        sys
    }

    fn check_disk(sys: &tempfile::TempDir, major: u32, minor: u32) -> Result<(), NotPolled> {
        of_device(sys.path().to_str().unwrap(), major, minor)
    }

    #[test]
    fn a_disk_and_its_partition_are_polled_if_the_queue_has_io_poll() {
        let sys = sysfs("nvme0n1", "1\n");
        assert_eq!(check_disk(&sys, 8, 0), Ok(()));
        assert_eq!(check_disk(&sys, 8, 1), Ok(()));
    }

    #[test]
    fn a_disk_without_poll_queues_gets_the_steps_of_its_driver() {
        for (device, step) in [
            ("nvme0n1", "modprobe -r nvme && modprobe nvme poll_queues=1"),
            ("nvme0n1", "boot with nvme.poll_queues=1"),
            ("nvme0n1", "/sys/block/nvme0n1/queue/io_poll is 1"),
            ("vda", "virtio_blk.poll_queues=1"),
            ("vda", "/sys/block/vda/queue/io_poll is 1"),
            ("sda", "use an NVMe drive"),
        ] {
            let sys = sysfs(device, "0\n");
            for minor in [0, 1] {
                let why = check_disk(&sys, 8, minor).unwrap_err();
                assert_eq!(
                    why,
                    NotPolled::NoQueues {
                        device: device.to_owned()
                    }
                );
                assert!(why.to_string().contains(step), "no {step:?} in: {why}");
            }
        }
    }

    #[test]
    fn stacked_devices_are_recognised() {
        for device in ["dm-0", "md127", "loop3"] {
            let why = check_disk(&sysfs(device, "0\n"), 8, 0).unwrap_err();
            assert_eq!(
                why,
                NotPolled::Stacked {
                    device: device.to_owned()
                }
            );
        }
        assert_eq!(check_disk(&sysfs("dm-0", "1\n"), 8, 0), Ok(()));
    }

    #[test]
    fn a_file_system_without_a_device_differs_from_a_missing_sysfs() {
        let sys = sysfs("sda", "0\n");
        let number = "0:42".to_owned();
        assert_eq!(check_disk(&sys, 0, 42), Err(NotPolled::NoDevice { number }));
        assert!(matches!(
            check_disk(&sys, 8, 99),
            Err(NotPolled::Unknown { .. })
        ));
    }
}
