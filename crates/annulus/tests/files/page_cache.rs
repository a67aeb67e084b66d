//! The contents of the page cache, and pinning pages in it.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;
use std::thread;
use std::time::Duration;

use crate::fixtures::uncache;

/// The number of attempts to drop a page before it counts as permanent.
const ATTEMPTS: u32 = 2000;

/// A mapping of the start of a file.
struct Mapping {
    base: NonNull<libc::c_void>,
    bytes: usize,
}

impl Mapping {
    fn new(path: &Path, bytes: usize, flags: libc::c_int) -> Mapping {
        let file = File::open(path).unwrap();
        let (read, flags) = (libc::PROT_READ, libc::MAP_SHARED | flags);
        // SAFETY: a new mapping at an address that the kernel chooses; no code reads through it.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                read,
                flags,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(
            base,
            libc::MAP_FAILED,
            "{}",
            std::io::Error::last_os_error()
        );
        let base = NonNull::new(base).unwrap();
        Mapping { base, bytes }
    }

    /// Returns how many bytes of its pages are in the page cache.
    fn resident_bytes(&self) -> usize {
        // SAFETY: only a number is passed.
        let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let mut pages = vec![0; self.bytes.div_ceil(page_bytes)];
        // SAFETY: the pages of the mapping, and a byte for the result of each.
        let status = unsafe { libc::mincore(self.base.as_ptr(), self.bytes, pages.as_mut_ptr()) };
        assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
        pages.iter().filter(|&page| page & 1 == 1).count() * page_bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and not referenced any more.
        unsafe { libc::munmap(self.base.as_ptr(), self.bytes) };
    }
}

/// Pins a file's pages in the page cache, even if another process needs memory or drops all caches of the machine.
pub(crate) struct Pinned(#[allow(dead_code, reason = "what counts is that it is there")] Mapping);

impl Pinned {
    pub(crate) fn new(path: &Path, bytes: usize) -> Pinned {
        let mapping = Mapping::new(path, bytes, libc::MAP_POPULATE);
        // SAFETY: the mapping's own pages. The call fails if hardly any memory may be locked; but mapped pages that
        // were just used are among the last to be dropped.
        let locked = unsafe { libc::mlock(mapping.base.as_ptr(), bytes) };
        if locked != 0 {
            println!("not locked: {}", std::io::Error::last_os_error());
        }
        Pinned(mapping)
    }
}

/// Returns whether the file system can read cached pages without waiting for others.
pub(crate) fn reads_cached_without_waiting(path: &Path) -> bool {
    let file = File::open(path).unwrap();
    let mut byte = [0];
    let into = &mut [std::io::IoSliceMut::new(&mut byte)];
    let read = rustix::io::preadv2(&file, into, 0, rustix::io::ReadWriteFlags::NOWAIT);
    read != Err(rustix::io::Errno::OPNOTSUPP)
}

/// Returns how many bytes of the first pages of a file are in the page cache.
pub(crate) fn resident_bytes(path: &Path, bytes: usize) -> usize {
    Mapping::new(path, bytes, 0).resident_bytes()
}

/// Drops a file from the page cache until its first `bytes` bytes are gone. The kernel keeps a page that is still
/// referenced at that moment, for example by another processor's list of new pages. Returns `false` if a page stays, as
/// on tmpfs.
pub(crate) async fn uncache_surely(file: &annulus::File, path: &Path, bytes: usize) -> bool {
    let mapping = Mapping::new(path, bytes, 0);
    for attempt in 0..ATTEMPTS {
        uncache(file).await;
        if mapping.resident_bytes() == 0 {
            return true;
        }
        if attempt > 10 {
            thread::sleep(Duration::from_millis(1));
        }
    }
    println!("it can't be thrown out of the page cache");
    false
}
