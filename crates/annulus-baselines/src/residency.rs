//! The part of a file that is in the page cache, by `mincore` on a map of the file. The tool checks it before every
//! run.
//!
//! # Safety
//!
//! The map is never read or written, so changes of the file by other processes have no effect.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;

use memmap2::MmapOptions;

/// The size of one `mincore` call, which limits the result (one byte per page) to 256 KiB.
const WINDOW_BYTES: u64 = 1 << 30;

/// Returns the number of bytes of `file` between `offset` and `offset + len` that are in the page cache, in whole
/// pages.
pub fn resident_bytes(file: &File, offset: u64, len: u64) -> io::Result<u64> {
    let page = rustix::param::page_size() as u64;
    let (mut at, end) = (offset - offset % page, offset + len);
    let mut resident = 0;
    while at < end {
        let bytes = WINDOW_BYTES.min(end - at);
        resident += resident_pages(file, at, bytes, page)? * page;
        at += bytes;
    }
    Ok(resident.min(len))
}

fn resident_pages(file: &File, at: u64, bytes: u64, page: u64) -> io::Result<u64> {
    let map = MmapOptions::new()
        .offset(at)
        .len(bytes as usize)
        .map_raw_read_only(file)?;
    let mut pages = vec![0u8; bytes.div_ceil(page) as usize];
    // SAFETY: the range is exactly the map created above, which begins on a page because `at` does. The vector has one
    // byte for each of its pages.
    let code = unsafe { libc::mincore(map.as_mut_ptr().cast(), map.len(), pages.as_mut_ptr()) };
    if code != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(pages.iter().filter(|page| *page & 1 == 1).count() as u64)
}
