//! `kernel.io_uring_disabled` and its group at other values. They hold for the whole machine, so tests that change them
//! are ignored, and `ci/kernel` runs them in a virtual machine.

use std::fs;

pub(crate) const DISABLED: &str = "/proc/sys/kernel/io_uring_disabled";

/// A sysctl at another value; the old one comes back at the end, whatever happens.
pub(crate) struct Changed(&'static str, String);

impl Changed {
    pub(crate) fn to(path: &'static str, value: &str) -> Changed {
        let before = Changed(path, fs::read_to_string(path).unwrap());
        fs::write(path, value).unwrap();
        before
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        fs::write(self.0, self.1.trim()).unwrap();
    }
}
