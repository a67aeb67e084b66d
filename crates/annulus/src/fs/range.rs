//! The checks of a transfer's range.

use std::io;

use crate::buf::{IoBufMut, check_capacity};

/// Returns how many bytes a read into `buf` may fill, starting at `offset`; at least 1.
#[inline]
pub(crate) fn check_read<B: IoBufMut>(buf: &mut B, offset: u64) -> io::Result<usize> {
    let bytes = check_capacity(buf)?;
    check_range(offset, bytes).map(|()| bytes)
}

/// Rejects ranges that the kernel's signed offsets cannot express. An offset with all bits set would mean "the current
/// position" to io_uring (trap 49).
pub(crate) fn check_range(offset: u64, bytes: usize) -> io::Result<()> {
    match offset.checked_add(bytes as u64) {
        Some(end) if i64::try_from(end).is_ok() => Ok(()),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "the range of {bytes} bytes at offset {offset} ends beyond the largest file offset, {}",
                i64::MAX
            ),
        )),
    }
}
