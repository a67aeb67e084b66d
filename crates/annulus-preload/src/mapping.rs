//! Zeroed memory from the kernel, without the program's allocator.
#![allow(unsafe_code)]

use std::ptr;

use crate::errno;

/// Maps zeroed memory, whose pages are allocated at first use. None is a huge page: where the system gives these to
/// each mapping, the first byte that a set receives would take 2 MiB.
pub(crate) fn map_zeroed(bytes: usize) -> Option<*mut u8> {
    // SAFETY: Owned: a new mapping.
    let base = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: Owned: the mapping above, whose contents stay. A kernel without huge pages refuses it.
    errno::keep(|| unsafe { libc::madvise(base, bytes, libc::MADV_NOHUGEPAGE) });
    Some(base.cast())
}
