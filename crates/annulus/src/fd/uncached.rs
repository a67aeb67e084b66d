//! Whether the reads and writes of a file leave its pages in the page cache (`RWF_DONTCACHE`).

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use super::Fd;
use crate::sys::errno::{EINVAL, EOPNOTSUPP};
use crate::sys::transfer_flags::{RWF_DONTCACHE, TransferFlags};

/// The reason why the pages that a file's reads and writes bring into the page cache stay there. `Display` ends with
/// the remedy.
///
/// It is not an `io::Error`, because such a file works all the same.
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// # let path = dir.path().join("data"); std::fs::write(&path, "0123")?;
/// use annulus::{OpenOptions, fs::NotUncached};
///
/// let file = engine.open_with(OpenOptions::new().read(true).uncached(true), &path).await?;
/// file.read_exact_at(vec![0; 4], 0).await?; // works all the same
/// match file.uncached_support() {
///     Ok(()) => println!("the page cache stays as it was"),
///     Err(NotUncached::Refused { errno }) => println!("ordinary reads, errno {errno}"),
///     Err(reason) => println!("{reason}"),
/// }
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotUncached {
    /// The file was opened without [`OpenOptions::uncached`](crate::OpenOptions::uncached).
    NotRequested,
    /// The file was opened with `O_DIRECT`, and does not use the page cache.
    Direct,
    /// The kernel or the file system refused such a read or write. The file uses ordinary ones.
    Refused {
        /// The errno of the refused transfer.
        errno: i32,
    },
}

impl fmt::Display for NotUncached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotUncached::NotRequested => {
                f.write_str("not requested; open the file with OpenOptions::uncached")
            }
            NotUncached::Direct => f.write_str(
                "direct I/O does not use the page cache; open the file without OpenOptions::direct",
            ),
            NotUncached::Refused { errno } => write!(
                f,
                "the kernel refused an uncached transfer of this file ({}); it needs Linux 6.14, and a file system \
                 such as ext4",
                io::Error::from_raw_os_error(*errno)
            ),
        }
    }
}

impl std::error::Error for NotUncached {}

/// One of the constants below, or the errno with which the kernel has refused uncached transfers of the file.
#[derive(Debug, Default)]
pub(super) struct Uncached(AtomicI32);

const NOT_REQUESTED: i32 = 0;
const UNCACHED: i32 = -1;
const DIRECT: i32 = -2;

impl Fd {
    /// Makes the transfers of the file uncached, unless they are direct.
    pub(crate) fn request_uncached(&self, is_direct: bool) {
        let state = if is_direct { DIRECT } else { UNCACHED };
        self.0.uncached.0.store(state, Relaxed);
    }

    /// Returns the reason why the transfers of the file are not uncached.
    pub(crate) fn uncached_support(&self) -> Result<(), NotUncached> {
        match self.0.uncached.0.load(Relaxed) {
            UNCACHED => Ok(()),
            NOT_REQUESTED => Err(NotUncached::NotRequested),
            DIRECT => Err(NotUncached::Direct),
            errno => Err(NotUncached::Refused { errno }),
        }
    }

    /// Returns the flags of a transfer: `own`, and those of the file. The only place where the file's are added.
    #[inline]
    pub(crate) fn flags(&self, own: u32) -> TransferFlags {
        match self.0.uncached.0.load(Relaxed) {
            UNCACHED => TransferFlags::new(own | RWF_DONTCACHE),
            _ => TransferFlags::new(own),
        }
    }

    /// Removes the file's flags from `flags` if `res` may be due to them. Returns whether it did. The transfer has had
    /// no effect then, and is repeated.
    #[inline]
    pub(crate) fn remove_refused(&self, flags: &mut TransferFlags, res: i32) -> bool {
        if !flags.has(RWF_DONTCACHE) || !matches!(-res, EOPNOTSUPP | EINVAL) {
            return false;
        }
        *flags = flags.without(RWF_DONTCACHE);
        self.0.uncached.0.store(-res, Relaxed);
        true
    }

    /// Records a read of the page cache that failed with `res`, minus an errno. The refusal of an uncached read says
    /// nothing about ordinary ones.
    pub(crate) fn note_cached_refusal(&self, res: i32) {
        match self.uncached_support() {
            Ok(()) => self.cached().miss(),
            Err(_) => self.cached().note_refusal(res),
        }
    }
}
