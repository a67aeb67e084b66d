//! Whether the device under a file has queues that can be polled (IOPOLL), as sysfs tells; if not, what
//! to do about it. Asked when a direct file is opened on an engine that polls.

use std::fmt;
use std::io;

use rustix::fs::{Access, Dir, FileType, Mode, OFlags, access, open, readlink};

use super::call;
use super::probe::read_text;

/// Why reads and writes of a file are not polled for, but answered by the device's interrupt. `Display`
/// ends with what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotPolled {
    /// The engine has no ring for it: none was asked for, or it was refused.
    NoRing,
    /// The file goes through the page cache; only direct files can be polled for.
    Buffered,
    /// The file system is not on one block device that it names: tmpfs, overlay, btrfs, NFS.
    NoDevice {
        /// The number it has in place of a device's, `major:minor`.
        number: String,
    },
    /// The device has no queues to poll.
    NoQueues {
        /// Its name in `/sys/block`.
        device: String,
    },
    /// The device is made of others (dm, md, loop), and polling does not go through it.
    Stacked {
        /// Its name in `/sys/block`.
        device: String,
    },
    /// The kernel took no polled read or write of this file, although its device has queues to poll;
    /// the file has gone back to interrupts.
    Refused,
    /// The kernel would not tell which device it is.
    Unknown {
        /// What it answered, an errno.
        errno: i32,
    },
}

impl fmt::Display for NotPolled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotPolled::NoRing => f.write_str(
                "the engine has no ring that polls; build it with EngineBuilder::iopoll, and see Engine::backend",
            ),
            NotPolled::Buffered => f.write_str(
                "the file goes through the page cache; open it with OpenOptions::direct",
            ),
            NotPolled::NoDevice { number } => write!(
                f,
                "its file system ({number}) names no block device of its own; put the file on ext4 or XFS on \
                 an NVMe drive, or open the device itself"
            ),
            NotPolled::NoQueues { device } => {
                write!(f, "{device} has no queues to poll; {}", steps(device))
            }
            NotPolled::Stacked { device } => write!(
                f,
                "{device} is made of other devices, and its queue/io_poll is not 1; put the file on a plain \
                 NVMe drive"
            ),
            NotPolled::Refused => f.write_str(
                "the kernel answered EOPNOTSUPP to a polled transfer of this file; open it again when the \
                 device's queue/io_poll is 1",
            ),
            NotPolled::Unknown { errno } => write!(
                f,
                "the kernel does not tell its device ({}); see that /sys is mounted",
                io::Error::from_raw_os_error(*errno)
            ),
        }
    }
}

impl std::error::Error for NotPolled {}

/// What makes a device of this name have queues to poll. The number of queues is the kernel's to bound.
fn steps(device: &str) -> String {
    let check = format!("then look that /sys/block/{device}/queue/io_poll is 1");
    if device.starts_with("nvme") {
        return format!(
            "as root, with nothing of it mounted: modprobe -r nvme && modprobe nvme poll_queues=1; or, where \
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
    "its driver knows none; use an NVMe drive".to_owned()
}

/// Whether the device under an open file can be polled.
pub(crate) fn of_file(fd: i32) -> Result<(), NotPolled> {
    let mut stat = call::empty_statx();
    if let Err(error) = call::statx_fd(fd, &mut stat) {
        let errno = error.raw_os_error().unwrap_or_default();
        return Err(NotPolled::Unknown { errno });
    }
    let kind = FileType::from_raw_mode(u32::from(stat.stx_mode));
    let (major, minor) = if kind == FileType::BlockDevice {
        (stat.stx_rdev_major, stat.stx_rdev_minor)
    } else {
        (stat.stx_dev_major, stat.stx_dev_minor)
    };
    of_device("/sys", major, minor)
}

/// The same by the device's number. `sys` is where sysfs is.
fn of_device(sys: &str, major: u32, minor: u32) -> Result<(), NotPolled> {
    let number = format!("{major}:{minor}");
    let path = format!("{sys}/dev/block/{number}");
    // A link to the device's folder; a partition's lies in its disk's, which has the queue.
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
    if is_there(&format!("{disk}/partition")) {
        disk.push_str("/..");
        device = names.next().unwrap_or_default();
    }
    if says_one(&format!("{disk}/queue/io_poll")) {
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

/// Each block device by its name in `/sys/block`, and whether it has queues to poll; not those that are
/// made of files or memory.
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
            let polls = says_one(&format!("{BLOCK}/{name}/queue/io_poll"));
            (name, polls)
        })
        .collect();
    devices.sort();
    devices
}

fn says_one(path: &str) -> bool {
    read_text(path).is_some_and(|says| says.trim() == "1")
}

fn is_there(path: &str) -> bool {
    access(path, Access::EXISTS).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// A sysfs with one disk of this name and one partition, 8:0 and 8:1.
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
    fn a_disk_and_its_partition_are_polled_where_the_queue_says_so() {
        let sys = sysfs("nvme0n1", "1\n");
        assert_eq!(check_disk(&sys, 8, 0), Ok(()));
        assert_eq!(check_disk(&sys, 8, 1), Ok(()));
    }

    #[test]
    fn a_disk_without_such_queues_gets_the_steps_of_its_driver() {
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
    fn what_is_made_of_other_devices_is_told_apart() {
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
    fn a_file_system_without_a_device_is_told_from_a_sysfs_that_is_not_there() {
        let sys = sysfs("sda", "0\n");
        let number = "0:42".to_owned();
        assert_eq!(check_disk(&sys, 0, 42), Err(NotPolled::NoDevice { number }));
        assert!(matches!(
            check_disk(&sys, 8, 99),
            Err(NotPolled::Unknown { .. })
        ));
    }
}
