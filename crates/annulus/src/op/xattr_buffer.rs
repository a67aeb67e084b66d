//! The buffer for the value of an extended attribute, or for a list of them. The kernel reports if it is too small.

use super::{Resume, retry_interrupted};
use crate::sys::errno::ERANGE;

/// The first size of the buffer, bytes; enough for most attributes.
const FIRST_BYTES: usize = 256;
/// The largest value or list of names (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`), bytes.
const VALUE_BYTES_MAX: usize = 64 << 10;

/// Returns the first buffer for a value or a list.
pub(super) fn first_buffer() -> Vec<u8> {
    vec![0; FIRST_BYTES]
}

/// Enlarges a buffer that was too small for a value or a list.
pub(super) fn enlarge(buffer: &mut Vec<u8>, res: i32) -> Resume {
    if res != -ERANGE || buffer.len() == VALUE_BYTES_MAX {
        return retry_interrupted(res);
    }
    *buffer = vec![0; VALUE_BYTES_MAX];
    Resume::Again
}
