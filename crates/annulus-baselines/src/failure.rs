//! Why a variant has no result. Two kinds, because only one of them is somebody's fault.

use std::fmt;
use std::io;

/// Why a variant could not be measured.
#[derive(Debug)]
pub enum Failure {
    /// This machine or this job does not offer what the variant needs (a kernel without io_uring, a
    /// process without `CAP_SYS_NICE`); the measurement of the others stands.
    Unavailable(String),
    /// It should have run and did not: the run as a whole has failed.
    Failed(String),
}

impl Failure {
    /// A failure with what was being done and what the kernel said.
    pub fn failed(doing: &str, error: &io::Error) -> Failure {
        Failure::Failed(format!("{doing}: {error}"))
    }

    /// Sorts an error of a set-up call: "not there" and "not allowed" are the machine's, the rest ours.
    pub fn of_setup(doing: &str, error: &io::Error) -> Failure {
        match error.raw_os_error() {
            // ENOSYS: not in this kernel. EPERM and EACCES: a sysctl or a seccomp filter forbids it.
            // EINVAL: this kernel does not know a set-up flag.
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
