//! Changes of `kernel.io_uring_disabled` and `kernel.io_uring_group`. A sysctl applies to the whole machine, so tests
//! that change one are ignored, and `ci/kernel` runs them in a virtual machine.

use std::fs;

/// The file of `kernel.io_uring_disabled`.
pub const DISABLED: &str = "/proc/sys/kernel/io_uring_disabled";

/// A changed sysctl. Dropping it restores the old value.
pub struct ChangedSysctl(&'static str, String);

impl ChangedSysctl {
    /// Writes `value` to the file `path`.
    pub fn to(path: &'static str, value: &str) -> ChangedSysctl {
        let before = ChangedSysctl(path, fs::read_to_string(path).unwrap());
        fs::write(path, value).unwrap();
        before
    }
}

impl Drop for ChangedSysctl {
    fn drop(&mut self) {
        fs::write(self.0, self.1.trim()).unwrap();
    }
}
