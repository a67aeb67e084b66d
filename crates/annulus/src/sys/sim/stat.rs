//! The simulated kernel's statx result, in the structure of the real one.

use super::super::call::{self, Statx, StatxTimestamp, Timespec};
use super::body::SECTOR_BYTES;
use super::files::Inode;
use super::tree::Ino;

/// The preferred transfer size of ext4 and XFS, bytes.
const BLOCK_BYTES: u32 = 4096;

pub(super) fn statx(ino: Ino, inode: &Inode, links: u32) -> Statx {
    let mut out = call::empty_statx();
    out.stx_mask = call::STATX_BASIC_STATS | call::STATX_BTIME;
    out.stx_blksize = BLOCK_BYTES;
    out.stx_nlink = links;
    out.stx_mode = u16::try_from(inode.mode).unwrap_or(0);
    out.stx_ino = ino;
    out.stx_size = inode.body.bytes();
    out.stx_blocks = inode.body.sectors() * (SECTOR_BYTES as u64) / 512;
    out.stx_btime = stamp(inode.born_ns);
    out.stx_ctime = stamp(inode.changed_ns);
    let [accessed, modified] = inode.times.map(|time| time.map(stamp_of));
    out.stx_mtime = modified.unwrap_or(out.stx_ctime);
    out.stx_atime = accessed.unwrap_or(out.stx_mtime);
    // A device number that no real file system has.
    out.stx_dev_minor = 1;
    out
}

fn stamp_of(time: Timespec) -> StatxTimestamp {
    let mut stamp = call::empty_statx().stx_btime;
    stamp.tv_sec = time.tv_sec;
    // Below a thousand millions.
    stamp.tv_nsec = u32::try_from(time.tv_nsec).unwrap_or_default();
    stamp
}

fn stamp(at_ns: u64) -> StatxTimestamp {
    let mut stamp = call::empty_statx().stx_btime;
    stamp.tv_sec = (at_ns / 1_000_000_000).cast_signed();
    stamp.tv_nsec = (at_ns % 1_000_000_000) as u32;
    stamp
}
