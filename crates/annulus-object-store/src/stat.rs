//! The metadata of a file that a store needs.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::{SystemTime, UNIX_EPOCH};

/// The metadata of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stat {
    pub(crate) identity: Identity,
    pub(crate) bytes: u64,
    pub(crate) modified: SystemTime,
    pub(crate) is_dir: bool,
    pub(crate) is_file: bool,
}

/// The properties that an open file must share with the file at its path. Otherwise the path has another file, or the
/// file has another owner or other permissions, which an open would check again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
    mode: u32,
    owner: (u32, u32),
}

impl Stat {
    /// Returns the ETag of `LocalFileSystem`, without quotes.
    pub(crate) fn e_tag(&self) -> String {
        let since = self.modified.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (inode, micros, bytes) = (self.identity.inode, since.as_micros(), self.bytes);
        format!("{inode:x}-{micros:x}-{bytes:x}")
    }
}

impl From<&Metadata> for Stat {
    fn from(metadata: &Metadata) -> Stat {
        Stat {
            identity: Identity {
                device: metadata.dev(),
                inode: metadata.ino(),
                mode: metadata.mode() & 0o7777,
                owner: (metadata.uid(), metadata.gid()),
            },
            bytes: metadata.len(),
            // Fails only on platforms without the time.
            modified: metadata.modified().unwrap_or(UNIX_EPOCH),
            is_dir: metadata.is_dir(),
            is_file: metadata.is_file(),
        }
    }
}

impl From<&annulus::fs::Metadata> for Stat {
    fn from(metadata: &annulus::fs::Metadata) -> Stat {
        let device = metadata.device();
        Stat {
            identity: Identity {
                device: nix::sys::stat::makedev(device.major.into(), device.minor.into()),
                inode: metadata.inode(),
                mode: metadata.mode(),
                owner: (metadata.uid(), metadata.gid()),
            },
            bytes: metadata.len(),
            modified: metadata.modified(),
            is_dir: metadata.is_dir(),
            is_file: metadata.is_file(),
        }
    }
}
