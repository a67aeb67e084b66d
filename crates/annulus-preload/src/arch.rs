//! All that differs by processor: the entry points in assembly, addresses, pages, and missing system calls. The files
//! in `arch/` have the same items.

#[cfg_attr(target_arch = "x86_64", path = "arch/x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "arch/aarch64.rs")]
mod own;

pub(crate) use own::*;
