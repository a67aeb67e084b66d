//! The reasons for which a variant has no result: it is not available here, or it failed.

use std::fmt;
use std::io;

/// The reason for which a variant could not be measured.
#[derive(Debug)]
pub enum Failure {
    /// This machine or this job lacks a requirement of the variant (a kernel with io_uring, `CAP_SYS_NICE`). The
    /// results of the other variants are valid.
    Unavailable(String),
    /// The variant should have run and did not. The whole run has failed.
    Failed(String),
}

impl Failure {
    /// Returns a `Failed` with the step that failed and the kernel's error.
    pub fn failed(doing: &str, error: &io::Error) -> Failure {
        Failure::Failed(format!("{doing}: {error}"))
    }

    /// Classifies an error of a set-up call. `ENOSYS`, `EPERM`, `EACCES` and `EINVAL` mean `Unavailable`; any other
    /// error means `Failed`.
    pub fn of_setup(doing: &str, error: &io::Error) -> Failure {
        match error.raw_os_error() {
            // ENOSYS: the kernel lacks the call. EPERM, EACCES: a sysctl or a seccomp filter forbids it. EINVAL: the
            // kernel does not know a set-up flag.
            Some(libc::ENOSYS | libc::EPERM | libc::EACCES | libc::EINVAL) => {
                Failure::Unavailable(format!("{doing}: {error}"))
            }
            _ => Failure::failed(doing, error),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Unavailable(why) | Failure::Failed(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Failure {}
