//! The properties of a block device, from sysfs.

use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::proc_files::{chosen, text};

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Device {
    /// The name in `/sys/block`.
    pub(crate) name: String,
    pub(crate) model: Option<String>,
    pub(crate) scheduler: Option<String>,
    /// The available schedulers.
    pub(crate) schedulers: Vec<String>,
    pub(crate) nr_requests: Option<u64>,
    /// The number of hardware queues.
    pub(crate) queues: Option<usize>,
    pub(crate) is_rotational: Option<bool>,
    pub(crate) logical_block_bytes: Option<u64>,
    pub(crate) physical_block_bytes: Option<u64>,
    /// `write back` or `write through`.
    pub(crate) write_cache: Option<String>,
    /// `true` if the device has poll queues.
    pub(crate) has_poll_queues: bool,
    /// The underlying devices.
    pub(crate) made_of: Vec<String>,
}

impl Device {
    /// Reads the properties of the device with this number. `sys` is the mount point of sysfs.
    pub(crate) fn below(sys: &Path, major: u32, minor: u32) -> Option<Device> {
        let link = sys.join(format!("dev/block/{major}:{minor}"));
        let mut folder = fs::canonicalize(link).ok()?;
        // A partition has no queue. Its disk is the parent directory.
        if folder.join("partition").exists() {
            folder = folder.parent()?.to_path_buf();
        }
        let queue = folder.join("queue");
        let number = |name: &str| -> Option<u64> { text(&queue.join(name))?.parse().ok() };
        let schedulers = text(&queue.join("scheduler"));
        Some(Device {
            name: folder.file_name()?.to_string_lossy().into_owned(),
            model: text(&folder.join("device/model")),
            scheduler: schedulers.as_deref().map(|line| chosen(line).to_owned()),
            schedulers: (schedulers.as_deref().unwrap_or_default())
                .split_whitespace()
                .map(|name| name.trim_matches(['[', ']']).to_owned())
                .collect(),
            nr_requests: number("nr_requests"),
            queues: count(&folder.join("mq")),
            is_rotational: number("rotational").map(|value| value != 0),
            logical_block_bytes: number("logical_block_size"),
            physical_block_bytes: number("physical_block_size"),
            write_cache: text(&queue.join("write_cache")),
            has_poll_queues: number("io_poll") == Some(1),
            made_of: names(&folder.join("slaves")),
        })
    }

    pub(crate) fn is_nvme(&self) -> bool {
        self.name.starts_with("nvme")
    }
}

fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    let mut names: Vec<String> = names
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn count(folder: &Path) -> Option<usize> {
    Some(names(folder).len()).filter(|&count| count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_partition_has_the_properties_of_its_disk() {
        let sys = tempfile::tempdir().unwrap();
        let disk = sys.path().join("devices/pci/nvme0n1");
        for (path, content) in [
            ("queue/scheduler", "[none] mq-deadline bfq\n"),
            ("queue/nr_requests", "1023\n"),
            ("queue/rotational", "0\n"),
            ("queue/logical_block_size", "512\n"),
            ("queue/physical_block_size", "4096\n"),
            ("queue/write_cache", "write back\n"),
            ("queue/io_poll", "1\n"),
            ("device/model", "A DRIVE        \n"),
            ("mq/0/cpu_list", "0\n"),
            ("mq/1/cpu_list", "1\n"),
            ("nvme0n1p2/partition", "2\n"),
        ] {
            let path = disk.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        fs::create_dir_all(sys.path().join("dev/block")).unwrap();
        for (number, target) in [("259:0", "nvme0n1"), ("259:2", "nvme0n1/nvme0n1p2")] {
            let target = format!("../../devices/pci/{target}");
            symlink(target, sys.path().join("dev/block").join(number)).unwrap();
        }
        let device = Device::below(sys.path(), 259, 2).unwrap();
        assert_eq!(Device::below(sys.path(), 259, 0).unwrap(), device);
        assert_eq!(device.name, "nvme0n1");
        assert_eq!(device.model.as_deref(), Some("A DRIVE"));
        assert_eq!(device.scheduler.as_deref(), Some("none"));
        assert_eq!(device.schedulers, ["none", "mq-deadline", "bfq"]);
        assert_eq!(device.nr_requests, Some(1023));
        assert_eq!(device.queues, Some(2));
        assert_eq!(device.is_rotational, Some(false));
        assert_eq!(device.physical_block_bytes, Some(4096));
        assert!(device.has_poll_queues && device.is_nvme());
        assert_eq!(Device::below(sys.path(), 0, 42), None);
    }
}
