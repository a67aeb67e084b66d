//! What the page cache holds of a file, and holding it there.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;
use std::thread;
use std::time::Duration;

use crate::grounds::uncache;

/// So often a page is thrown out before it is believed to stay.
const ATTEMPTS: u32 = 2000;

/// The first bytes of a file in this process's address space.
struct Mapping {
    base: NonNull<libc::c_void>,
    bytes: usize,
}

impl Mapping {
    fn new(path: &Path, bytes: usize, flags: libc::c_int) -> Mapping {
        let file = File::open(path).unwrap();
        let (read, flags) = (libc::PROT_READ, libc::MAP_SHARED | flags);
        // SAFETY: a new mapping at a place that the kernel chooses; nobody reads through it.
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

    /// Whether the page at its beginning is in the page cache.
    fn begins_cached(&self) -> bool {
        let mut page = 0;
        // SAFETY: one page of the mapping, and a byte for it.
        let asked = unsafe { libc::mincore(self.base.as_ptr(), 1, &raw mut page) };
        assert_eq!(asked, 0, "{}", std::io::Error::last_os_error());
        page & 1 == 1
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nothing refers to it any more.
        unsafe { libc::munmap(self.base.as_ptr(), self.bytes) };
    }
}

/// Holds a file's pages in the page cache: although another process needs the memory, or drops all caches of the
/// machine, does not get them.
pub(crate) struct Pinned(#[allow(dead_code, reason = "what counts is that it is there")] Mapping);

impl Pinned {
    pub(crate) fn new(path: &Path, bytes: usize) -> Pinned {
        let mapping = Mapping::new(path, bytes, libc::MAP_POPULATE);
        // SAFETY: the mapping's own pages. Refused where hardly any memory may be locked: a page that is mapped and
        // was used just now is among the last to go nevertheless.
        let locked = unsafe { libc::mlock(mapping.base.as_ptr(), bytes) };
        if locked != 0 {
            println!("not locked: {}", std::io::Error::last_os_error());
        }
        Pinned(mapping)
    }
}

/// Whether the file system can read what is cached without waiting for what is not.
pub(crate) fn answers_immediately(path: &Path) -> bool {
    let file = File::open(path).unwrap();
    let mut byte = [0];
    let into = &mut [std::io::IoSliceMut::new(&mut byte)];
    let read = rustix::io::preadv2(&file, into, 0, rustix::io::ReadWriteFlags::NOWAIT);
    read != Err(rustix::io::Errno::OPNOTSUPP)
}

/// Throws a file out of the page cache until its first page is seen to be gone: the kernel keeps one that something
/// still refers to at that moment, such as another processor's list of new pages. False: it stays, as on tmpfs.
pub(crate) async fn uncache_surely(file: &annulus::File, path: &Path) -> bool {
    let mapping = Mapping::new(path, 1, 0);
    for attempt in 0..ATTEMPTS {
        uncache(file).await;
        if !mapping.begins_cached() {
            return true;
        }
        if attempt > 10 {
            thread::sleep(Duration::from_millis(1));
        }
    }
    println!("its first page can't be thrown out of the page cache");
    false
}
