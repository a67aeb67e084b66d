//! The file system and the device of PATH, which is only read. A temporary file in PATH has no name.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use annulus::Engine;
use annulus::buf::AlignedBuf;
use rustix::fs::{OFlags, major, minor, seek};
use serde::Serialize;

use super::device::Device;
use crate::fault::Fault;
use crate::proc_files::{Mount, mounts};

/// The least length of a measured file. A shorter one has too few distinct blocks.
const SAMPLE_BYTES_MIN: u64 = 1 << 20;
/// The length of a temporary file.
const OWN_BYTES: usize = 4 << 20;

/// The length of a test read, which every device supports.
const PAGE_BYTES: usize = 4096;

/// Facts about PATH.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Location {
    /// The path on the command line. Bytes that are not UTF-8 are replaced.
    pub(crate) path: String,
    pub(crate) kind: Kind,
    /// The type of the file system in the mount table.
    pub(crate) filesystem: Option<String>,
    pub(crate) mount_point: Option<String>,
    pub(crate) direct: Direct,
    /// `true` if reads and writes can be polled; absent if no file could be opened for the test.
    pub(crate) can_poll: Option<bool>,
    /// The reason, and the remedy, from the library.
    pub(crate) poll_refusal: Option<String>,
    /// The block device, if there is one.
    pub(crate) device: Option<Device>,
    /// The file or device that reads are measured on.
    pub(crate) sample: Option<String>,
    /// The reason why reads are not measured.
    pub(crate) no_sample: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    Directory,
    File,
    BlockDevice,
}

/// The properties of `O_DIRECT` at a location.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Direct {
    /// Absent if the test could not run.
    pub(crate) works: Option<bool>,
    /// The reason if it does not work.
    pub(crate) why: Option<String>,
    /// The required alignment of memory.
    pub(crate) memory_bytes: Option<usize>,
    /// The required alignment of offsets and lengths.
    pub(crate) offset_bytes: Option<usize>,
}

/// A file to measure reads on, opened through the page cache and with `O_DIRECT`.
#[derive(Default)]
pub(crate) struct Sample {
    pub(crate) buffered: Option<File>,
    pub(crate) direct: Option<File>,
    pub(crate) bytes: u64,
}

impl Location {
    /// Inspects PATH. Returns files to measure reads on if `measured` is set.
    pub(crate) fn at(path: &Path, measured: bool) -> Result<(Location, Sample), Fault> {
        let meta =
            fs::metadata(path).map_err(|error| Fault::usage(cannot("inspect", path, &error)))?;
        let kind = match meta.file_type() {
            kind if kind.is_dir() => Kind::Directory,
            kind if kind.is_file() => Kind::File,
            kind if kind.is_block_device() => Kind::BlockDevice,
            _ => {
                return Err(usage!(
                    "{} is not a file, a directory or a block device; name one of these",
                    path.display()
                ));
            }
        };
        let number = match kind {
            Kind::BlockDevice => meta.rdev(),
            _ => meta.dev(),
        };
        let (filesystem, mount_point) = match kind {
            Kind::BlockDevice => (None, None),
            _ => mounted(path, number).unzip(),
        };
        let in_memory = filesystem
            .as_deref()
            .is_some_and(|name| ["tmpfs", "ramfs"].contains(&name));
        let mut opened = Opened::of(path, kind, measured, in_memory);
        let (direct, poll) = match &opened.direct {
            Ok(file) => direct_facts(file),
            Err(why) => (not_direct(why, opened.is_tested), None),
        };
        if direct.works != Some(true) {
            opened.direct = Err(direct.why.clone().unwrap_or_default());
        }
        let location = Location {
            path: path.to_string_lossy().into_owned(),
            kind,
            filesystem,
            mount_point,
            direct,
            can_poll: poll.as_ref().map(Result::is_ok),
            poll_refusal: poll.and_then(Result::err),
            device: Device::below(Path::new("/sys"), major(number), minor(number)),
            sample: opened.description,
            no_sample: opened.failure,
        };
        let sample = Sample {
            buffered: opened.buffered,
            direct: opened.direct.ok(),
            bytes: opened.bytes,
        };
        Ok((location, sample))
    }
}

fn cannot(verb: &str, path: &Path, error: &io::Error) -> String {
    let hint = match error.kind() {
        io::ErrorKind::NotFound => "; name an existing file, directory or device",
        io::ErrorKind::PermissionDenied => "; run as a user who may read it, or name another path",
        _ => "",
    };
    format!("cannot {verb} {}: {error}{hint}", path.display())
}

/// The handles for tests and measurements.
struct Opened {
    buffered: Option<File>,
    /// The handle with `O_DIRECT`, or the reason why there is none.
    direct: Result<File, String>,
    /// `false` if no file could be opened, so that nothing is known about direct I/O.
    is_tested: bool,
    bytes: u64,
    /// The description of the measured file.
    description: Option<String>,
    /// The reason why reads are not measured.
    failure: Option<String>,
}

impl Opened {
    fn of(path: &Path, kind: Kind, measured: bool, in_memory: bool) -> Opened {
        let mut opened = match kind {
            Kind::Directory => Opened::temporary(path, measured),
            _ => Opened::existing(path),
        };
        if in_memory {
            opened.is_tested = true;
            opened.direct =
                Err("the file system is in memory, so there is no page cache to bypass".to_owned());
        }
        opened
    }

    fn existing(path: &Path) -> Opened {
        let buffered = match File::open(path) {
            Ok(file) => file,
            Err(error) => return Opened::nothing(cannot("open", path, &error)),
        };
        let direct = OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::DIRECT.bits() as i32)
            .open(path)
            .map_err(|error| why_no_direct(&error));
        let bytes = seek(&buffered, rustix::fs::SeekFrom::End(0)).unwrap_or(0);
        let is_enough = bytes >= SAMPLE_BYTES_MIN;
        Opened {
            buffered: is_enough.then_some(buffered),
            direct,
            is_tested: true,
            bytes,
            description: is_enough.then(|| path.display().to_string()),
            failure: (!is_enough).then(|| {
                format!(
                    "{} has {bytes} bytes, but the measurement needs 1 MiB; name its directory instead",
                    path.display()
                )
            }),
        }
    }

    /// Opens an unnamed temporary file in a directory.
    fn temporary(dir: &Path, measured: bool) -> Opened {
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags(OFlags::TMPFILE.bits() as i32)
            .open(dir);
        let file = match opened {
            Ok(file) => file,
            Err(error) => return Opened::nothing(no_temporary_file(dir, &error)),
        };
        if let Some(Err(error)) = measured.then(|| fill(&file)) {
            return Opened::nothing(format!(
                "cannot write a temporary file of 4 MiB in {}: {error}",
                dir.display()
            ));
        }
        use std::os::fd::AsRawFd;
        let again = format!("/proc/self/fd/{}", file.as_raw_fd());
        let direct = OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::DIRECT.bits() as i32)
            .open(again)
            .map_err(|error| why_no_direct(&error));
        Opened {
            buffered: measured.then_some(file),
            direct,
            is_tested: true,
            bytes: OWN_BYTES as u64,
            description: measured
                .then(|| format!("a temporary file of 4 MiB in {}", dir.display())),
            failure: None,
        }
    }

    fn nothing(why: String) -> Opened {
        Opened {
            buffered: None,
            direct: Err(why.clone()),
            is_tested: false,
            bytes: 0,
            description: None,
            failure: Some(why),
        }
    }
}

fn no_temporary_file(dir: &Path, error: &io::Error) -> String {
    let shown = dir.display();
    match error
        .raw_os_error()
        .map(rustix::io::Errno::from_raw_os_error)
    {
        Some(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM | rustix::io::Errno::ROFS) => {
            format!(
                "this user cannot write in {shown} ({error}); name a folder that it can write in, or a readable file of \
             at least 1 MiB"
            )
        }
        Some(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR) => format!(
            "the file system of {shown} does not support unnamed files (O_TMPFILE); name a file of at least 1 MiB"
        ),
        _ => format!(
            "cannot create a temporary file in {shown}: {error}; name a file of at least 1 MiB"
        ),
    }
}

/// Writes random bytes, which no lower layer can omit, and flushes them, so that direct reads reach the device.
fn fill(mut file: &File) -> io::Result<()> {
    let mut bytes = vec![0; OWN_BYTES];
    fastrand::fill(&mut bytes);
    io::Write::write_all(&mut file, &bytes)?;
    file.sync_all()
}

fn why_no_direct(error: &io::Error) -> String {
    match error
        .raw_os_error()
        .map(rustix::io::Errno::from_raw_os_error)
    {
        Some(rustix::io::Errno::INVAL) => "the file system does not support O_DIRECT".to_owned(),
        _ => format!("cannot open the file with O_DIRECT: {error}"),
    }
}

fn not_direct(why: &str, is_tested: bool) -> Direct {
    Direct {
        works: is_tested.then_some(false),
        why: Some(why.to_owned()),
        ..Direct::default()
    }
}

/// Returns the properties that an engine determines for a file with `O_DIRECT`.
fn direct_facts(direct: &File) -> (Direct, Option<Result<(), String>>) {
    let file = direct.try_clone().and_then(|copy| {
        let engine = Engine::builder().iopoll(true).build()?;
        annulus::File::from_std(copy, &engine)
    });
    let file = match file {
        Ok(file) => file,
        Err(error) => {
            let why = format!("cannot determine the alignment: {error}");
            let direct = Direct {
                why: Some(why),
                ..Direct::default()
            };
            return (direct, None);
        }
    };
    let align = file.direct_alignment();
    let (memory_bytes, offset_bytes) = align
        .map(|align| (align.memory_bytes, align.offset_bytes))
        .unzip();
    let direct = Direct {
        works: Some(true),
        why: None,
        memory_bytes,
        offset_bytes,
    };
    (direct, Some(polled(&file)))
}

/// Returns whether reads can be polled. sysfs must list poll queues, and a read must succeed, because some file
/// systems do not poll.
fn polled(file: &annulus::File) -> Result<(), String> {
    let refused = |why: annulus::fs::NotPolled| why.to_string();
    file.poll_support().map_err(refused)?;
    let page = AlignedBuf::with_len(PAGE_BYTES, PAGE_BYTES);
    futures_executor::block_on(file.read_at(page, 0))
        .map_err(|error| format!("a polled read failed: {}", error.error()))?;
    file.poll_support().map_err(refused)
}

/// Returns the type and the mount point of the file system of a path.
fn mounted(path: &Path, number: u64) -> Option<(String, String)> {
    let canonical = fs::canonicalize(path).ok()?;
    let mount = find_mount(&mounts(), &canonical, (major(number), minor(number)))?.clone();
    Some((mount.kind, mount.point.to_string_lossy().into_owned()))
}

/// Returns the longest mount point above the path. Mounts with the device number of the path are preferred. A
/// subvolume of btrfs has a number that is not in the table.
fn find_mount<'a>(
    mounts: &'a [Mount],
    path: &Path,
    (major, minor): (u32, u32),
) -> Option<&'a Mount> {
    let number = format!("{major}:{minor}");
    let above = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    above.max_by_key(|mount| (mount.device == number, mount.point.as_os_str().len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc_files::parse_mounts;

    const TABLE: &str = "\
        22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
        23 22 0:21 / /proc rw - proc proc rw\n\
        24 22 0:30 /sub /data rw shared:1 - btrfs /dev/vdb rw\n\
        25 22 0:31 / /data/my\\040files rw - fuse.sshfs host: rw\n";

    fn mount_of(path: &str, number: (u32, u32)) -> String {
        let mounts = parse_mounts(TABLE.as_bytes());
        let mount = find_mount(&mounts, Path::new(path), number);
        mount.unwrap().kind.clone()
    }

    #[test]
    fn the_file_system_belongs_to_the_nearest_mount_point() {
        assert_eq!(mount_of("/home/a", (254, 0)), "ext4");
        assert_eq!(mount_of("/proc/self", (0, 21)), "proc");
        // A subvolume has its own device number.
        assert_eq!(mount_of("/data/x", (0, 77)), "btrfs");
        assert_eq!(mount_of("/data/my files/a", (0, 31)), "fuse.sshfs");
        assert_eq!(find_mount(&[], Path::new("/"), (0, 0)), None);
    }
}
