//! `kernel.io_uring_disabled` and its group at other values: they hold for the whole machine.

use std::fs;

use crate::skip::{root_or_skip, skip};

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

/// Whether this is the moment to change it; says so if not.
pub(crate) fn may_change() -> bool {
    match std::env::var("ANNULUS_TEST_SYSCTL").as_deref() {
        Ok("1") => {}
        Ok("0") => {
            println!("not now: it has a turn of its own (ANNULUS_TEST_SYSCTL=0)");
            return false;
        }
        _ => {
            skip(
                "changing kernel.io_uring_disabled needs ANNULUS_TEST_SYSCTL=1, and the machine for itself",
            );
            return false;
        }
    }
    if fs::metadata(DISABLED).is_err() {
        skip("kernel.io_uring_disabled needs Linux 6.6 or later");
        return false;
    }
    root_or_skip("changing kernel.io_uring_disabled")
}
