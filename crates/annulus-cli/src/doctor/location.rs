//! The file system and the device of PATH. It is only read; where that takes a file of our own, the file has no name.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use annulus::Engine;
use annulus::buf::AlignedBuf;
use rustix::fs::{OFlags, major, minor, seek};
use schemars::JsonSchema;
use serde::Serialize;

use super::device::Device;
use crate::fault::Fault;

/// A file that is shorter is not measured: its reads would be all the same few.
const SAMPLE_BYTES_MIN: u64 = 1 << 20;
/// How long a file of our own is.
const OWN_BYTES: usize = 4 << 20;

/// What every device takes.
const PAGE_BYTES: usize = 4096;

/// Facts about PATH.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Location {
    /// As it was given.
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
    /// The type of the file system, as the mount table calls it.
    pub(crate) filesystem: Option<String>,
    pub(crate) mount_point: Option<String>,
    pub(crate) direct: Direct,
    /// Whether reads and writes can be polled for; absent where no file could be opened to ask.
    pub(crate) can_poll: Option<bool>,
    /// Why not, and what to do; in the library's words.
    pub(crate) poll_refusal: Option<String>,
    /// The block device below, where there is one.
    pub(crate) device: Option<Device>,
    /// What reads are measured on.
    pub(crate) sample: Option<String>,
    /// Why there is nothing to measure reads on.
    pub(crate) no_sample: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    Directory,
    File,
    BlockDevice,
}

/// What `O_DIRECT` needs there.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub(crate) struct Direct {
    /// Absent where it could not be tried.
    pub(crate) works: Option<bool>,
    /// Why not.
    pub(crate) why: Option<String>,
    /// Alignment of memory, and of offsets and lengths.
    pub(crate) memory_bytes: Option<usize>,
    pub(crate) offset_bytes: Option<usize>,
}

/// The same 4 KiB blocks, through the page cache and past it.
#[derive(Default)]
pub(crate) struct Sample {
    pub(crate) buffered: Option<File>,
    pub(crate) direct: Option<File>,
    pub(crate) bytes: u64,
}

impl Location {
    /// Looks at PATH; with files to measure reads on if `measured`.
    pub(crate) fn at(path: &Path, measured: bool) -> Result<(Location, Sample), Fault> {
        let meta =
            fs::metadata(path).map_err(|error| Fault::usage(cannot("look at", path, &error)))?;
        let kind = match meta.file_type() {
            kind if kind.is_dir() => Kind::Directory,
            kind if kind.is_file() => Kind::File,
            kind if kind.is_block_device() => Kind::BlockDevice,
            _ => {
                return Err(Fault::usage(format!(
                    "{} is neither a file nor a directory nor a block device; name one of these",
                    path.display()
                )));
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
            Err(why) => (refused(why), None),
        };
        if direct.works != Some(true) {
            opened.direct = Err(direct.why.clone().unwrap_or_default());
        }
        let location = Location {
            path: path.to_path_buf(),
            kind,
            filesystem,
            mount_point,
            direct,
            can_poll: poll.as_ref().map(Result::is_ok),
            poll_refusal: poll.and_then(Result::err),
            device: Device::below(Path::new("/sys"), major(number), minor(number)),
            sample: opened.what,
            no_sample: opened.why_not,
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
        io::ErrorKind::NotFound => "; name a file, a directory or a device that is there",
        io::ErrorKind::PermissionDenied => "; run as a user who may, or choose another",
        _ => "",
    };
    format!("cannot {verb} {}: {error}{hint}", path.display())
}

/// Handles to ask and to measure with.
struct Opened {
    buffered: Option<File>,
    /// Or why there is none.
    direct: Result<File, String>,
    bytes: u64,
    what: Option<String>,
    why_not: Option<String>,
}

impl Opened {
    fn of(path: &Path, kind: Kind, measured: bool, in_memory: bool) -> Opened {
        let mut opened = match kind {
            Kind::Directory => Opened::own(path, measured),
            _ => Opened::existing(path),
        };
        if in_memory {
            opened.direct = Err("it lives in memory: there is nothing to bypass".to_owned());
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
            bytes,
            what: is_enough.then(|| path.display().to_string()),
            why_not: (!is_enough).then(|| {
                format!(
                    "{} has {bytes} bytes, and 1 MiB are needed; name its directory",
                    path.display()
                )
            }),
        }
    }

    /// A temporary file that never has a name, in a directory.
    fn own(dir: &Path, measured: bool) -> Opened {
        let made = OpenOptions::new()
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags(OFlags::TMPFILE.bits() as i32)
            .open(dir);
        let file = match made {
            Ok(file) => file,
            Err(error) => return Opened::nothing(no_nameless(dir, &error)),
        };
        if let Some(Err(error)) = measured.then(|| filled(&file)) {
            return Opened::nothing(format!(
                "writing a file of 4 MiB in {}: {error}",
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
            bytes: OWN_BYTES as u64,
            what: measured.then(|| format!("a file of 4 MiB without a name in {}", dir.display())),
            why_not: None,
        }
    }

    fn nothing(why: String) -> Opened {
        Opened {
            buffered: None,
            direct: Err(why.clone()),
            bytes: 0,
            what: None,
            why_not: Some(why),
        }
    }
}

fn no_nameless(dir: &Path, error: &io::Error) -> String {
    let shown = dir.display();
    match error
        .raw_os_error()
        .map(rustix::io::Errno::from_raw_os_error)
    {
        Some(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR) => format!(
            "the file system of {shown} makes no files without a name (O_TMPFILE); name a file of 1 MiB or more"
        ),
        _ => format!("making a file in {shown}: {error}; name a file of 1 MiB or more"),
    }
}

/// Bytes that no layer below can leave out, and on the device, so that direct reads find them there.
fn filled(mut file: &File) -> io::Result<()> {
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
        Some(rustix::io::Errno::INVAL) => "the file system refuses O_DIRECT".to_owned(),
        _ => format!("opening with O_DIRECT: {error}"),
    }
}

fn refused(why: &str) -> Direct {
    Direct {
        works: Some(false),
        why: Some(why.to_owned()),
        ..Direct::default()
    }
}

/// What the engine finds out when such a file is opened on it.
fn direct_facts(direct: &File) -> (Direct, Option<Result<(), String>>) {
    let file = direct.try_clone().and_then(|copy| {
        let engine = Engine::builder().iopoll(true).build()?;
        engine.file(copy)
    });
    let file = match file {
        Ok(file) => file,
        Err(error) => {
            let why = format!("asking for its alignment: {error}");
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

/// What sysfs tells, and where it says yes, whether the kernel takes a read: not every file system polls.
fn polled(file: &annulus::File) -> Result<(), String> {
    let refused = |why: annulus::fs::NotPolled| why.to_string();
    file.poll_support().map_err(refused)?;
    let page = AlignedBuf::with_len(PAGE_BYTES, PAGE_BYTES);
    futures_executor::block_on(file.read_at(page, 0))
        .map_err(|error| format!("a read that was polled for: {}", error.error()))?;
    file.poll_support().map_err(refused)
}

/// The type and the mount point of the file system that a path is on.
fn mounted(path: &Path, number: u64) -> Option<(String, String)> {
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let canonical = fs::canonicalize(path).ok()?;
    find_mount(&table, &canonical, (major(number), minor(number)))
}

/// By the longest mount point above the path, among those with the path's device number if there are any: a
/// subvolume of btrfs has a number that the table does not know.
fn find_mount(table: &str, path: &Path, (major, minor): (u32, u32)) -> Option<(String, String)> {
    let number = format!("{major}:{minor}");
    let rows = table.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(2);
        let (device, _root, point) = (left.next()?, left.next()?, left.next()?);
        // The kernel writes a blank as \040.
        let point = point.replace("\\040", " ");
        let kind = right.split(' ').next()?.to_owned();
        path.starts_with(&point)
            .then_some((device == number, point.len(), kind, point))
    });
    let best = rows.max_by_key(|(is_it, length, ..)| (*is_it, *length))?;
    Some((best.2, best.3))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
        22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
        23 22 0:21 / /proc rw - proc proc rw\n\
        24 22 0:30 /sub /data rw shared:1 - btrfs /dev/vdb rw\n\
        25 22 0:31 / /data/my\\040files rw - fuse.sshfs host: rw\n";

    fn mount_of(path: &str, number: (u32, u32)) -> String {
        find_mount(TABLE, Path::new(path), number).unwrap().0
    }

    #[test]
    fn the_file_system_is_that_of_the_nearest_mount_point() {
        assert_eq!(mount_of("/home/a", (254, 0)), "ext4");
        assert_eq!(mount_of("/proc/self", (0, 21)), "proc");
        // A subvolume, whose number is its own.
        assert_eq!(mount_of("/data/x", (0, 77)), "btrfs");
        assert_eq!(mount_of("/data/my files/a", (0, 31)), "fuse.sshfs");
        assert_eq!(find_mount("", Path::new("/"), (0, 0)), None);
    }
}
