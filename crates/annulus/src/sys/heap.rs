//! # Safety
//!
//! Control of the C library's allocator.
#![allow(unsafe_code)]

/// `malloc_trim(3)` where it exists (glibc): returns freed memory to the kernel.
pub(crate) fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: Owned: touches no allocated memory. Any thread may call it.
    unsafe {
        libc::malloc_trim(0);
    }
}
