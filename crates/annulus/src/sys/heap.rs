//! # Safety
//!
//! What the C library's allocator keeps of freed memory.
#![allow(unsafe_code)]

/// `malloc_trim(3)`, where there is one (glibc).
pub(crate) fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: Owned: touches no memory that is allocated. It may be called by any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
