//! The capabilities and limits of this kernel and this process, and the reasons for refusals.
//!
//! Reads `/proc` and `/sys` by direct system calls (Sealed). Uses no environment variables.

use std::io;

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, CpuSet, capabilities, sched_getaffinity};

use super::errno::{EACCES, EINVAL, EMFILE, ENFILE, ENOMEM, ENOSYS, EPERM};
use crate::error::SetupError;

/// The maximum length of a text. All files of `/proc` that are read here are much shorter; longer texts are cut.
const TEXT_BYTES_MAX: usize = 16 << 10;

/// Reads a small file; `None` if it does not exist or `/proc` is not mounted.
pub(super) fn read_text(path: &str) -> Option<String> {
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = vec![0; TEXT_BYTES_MAX];
    let mut bytes = 0;
    while let Some(rest) = text.get_mut(bytes..).filter(|rest| !rest.is_empty()) {
        match rustix::io::read(&file, rest) {
            Ok(0) => break,
            Ok(more) => bytes += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    text.truncate(bytes);
    String::from_utf8(text).ok()
}

/// Returns the kernel release, as `uname -r` prints it.
pub(crate) fn kernel_release() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
}

/// Returns the first two numbers of the release: `6.18.44-cloud` is `(6, 18)`.
pub(crate) fn kernel_version() -> (u32, u32) {
    parse_version(&kernel_release())
}

pub(crate) fn parse_version(release: &str) -> (u32, u32) {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Returns the value of `kernel.io_uring_disabled`; `None` before Linux 6.6.
pub(crate) fn io_uring_disabled() -> Option<u32> {
    read_text("/proc/sys/kernel/io_uring_disabled").and_then(|text| parse_number(&text))
}

/// Returns the value of `kernel.io_uring_group`, the group that may use io_uring if `kernel.io_uring_disabled` is 1.
/// `None` before Linux 6.6, and if no group is set (-1).
pub(crate) fn io_uring_group() -> Option<u32> {
    read_text("/proc/sys/kernel/io_uring_group").and_then(|text| parse_number(&text))
}

/// Returns whether the system grants transparent huge pages on request.
pub(crate) fn has_transparent_huge_pages() -> bool {
    read_text("/sys/kernel/mm/transparent_hugepage/enabled")
        .is_some_and(|text| !text.contains("[never]"))
}

fn parse_number(text: &str) -> Option<u32> {
    text.trim().parse().ok()
}

/// Returns whether this thread has a seccomp filter. Filters are per thread; a new thread inherits those of its
/// creator.
pub(crate) fn seccomp_filters() -> bool {
    read_text("/proc/thread-self/status").is_some_and(|status| parse_seccomp(&status))
}

/// Mode 2 in the line `Seccomp:` is "filter". Mode 0 is off; 1 is the strict mode, in which this code cannot run.
fn parse_seccomp(status: &str) -> bool {
    let mode = status
        .lines()
        .find_map(|line| line.strip_prefix("Seccomp:"));
    mode.is_some_and(|mode| mode.trim() == "2")
}

/// Returns the number of seccomp filters of this thread. `None` before Linux 5.9, and without `/proc`.
pub(crate) fn seccomp_filters_count() -> Option<u32> {
    status_number("Seccomp_filters:")
}

/// Returns the number of threads of this process. `None` without `/proc`.
pub(crate) fn threads_count() -> Option<u32> {
    status_number("Threads:")
}

fn status_number(key: &str) -> Option<u32> {
    let status = read_text("/proc/thread-self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    parse_number(line?)
}

/// Returns the processors that this thread may use.
pub(crate) fn processors() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU)
        .filter(|&processor| set.is_set(processor))
        .collect()
}

/// The minimum number of processors for which a polling thread is advised. With fewer, the poller, the driver and the
/// caller leave no processor for other work.
pub(crate) const SQPOLL_PROCESSORS: usize = 4;

/// Returns whether `processors` are enough for one of them to poll.
pub(crate) fn sqpoll_advised(processors: usize) -> bool {
    processors >= SQPOLL_PROCESSORS
}

/// Returns `RLIMIT_MEMLOCK` in bytes; `None` is unlimited.
pub(crate) fn memlock_bytes() -> Option<u64> {
    limit(Resource::Memlock)
}

/// Returns `RLIMIT_NOFILE`; `None` is unlimited.
pub(crate) fn nofile() -> Option<u64> {
    limit(Resource::Nofile)
}

/// Returns a limit of this process. Miri does not have the call.
fn limit(resource: Resource) -> Option<u64> {
    match cfg!(miri) {
        true => None,
        false => getrlimit(resource).current,
    }
}

/// Returns whether this thread has `CAP_IPC_LOCK` in the initial user namespace. With it, rings and registered buffers
/// are not charged to the user. Root in another user namespace does not count.
pub(crate) fn memlock_waived() -> bool {
    let effective =
        capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    effective && read_text("/proc/self/uid_map").is_none_or(|map| parse_initial_namespace(&map))
}

/// Returns whether this is the map of the initial user namespace, which maps every user to itself.
fn parse_initial_namespace(uid_map: &str) -> bool {
    uid_map.split_whitespace().eq(["0", "0", "4294967295"])
}

const SECCOMP_HINT: &str = "allow io_uring_setup, io_uring_enter and io_uring_register in the \
    container's seccomp profile (Docker, Podman: --security-opt seccomp=PROFILE.json)";

pub(crate) fn explain_enosys() -> SetupError {
    let kernel = kernel_release();
    let hint = if seccomp_filters() && kernel_version() >= (5, 1) {
        format!("a seccomp filter causes this: {SECCOMP_HINT}")
    } else if kernel_version() < (5, 1) {
        "boot Linux 5.11 or later".to_owned()
    } else {
        "boot a kernel built with CONFIG_IO_URING".to_owned()
    };
    SetupError::Missing { kernel, hint }
}

pub(crate) fn explain_eperm() -> SetupError {
    match io_uring_disabled() {
        Some(2) => SetupError::Refused {
            by: "kernel.io_uring_disabled = 2".to_owned(),
            hint: "sysctl -w kernel.io_uring_disabled=0 (as root)".to_owned(),
        },
        Some(1) if !seccomp_filters() => SetupError::Refused {
            by: "kernel.io_uring_disabled = 1".to_owned(),
            hint: "run as a member of kernel.io_uring_group, or sysctl -w kernel.io_uring_disabled=0 (as root)"
                .to_owned(),
        },
        _ if seccomp_filters() => SetupError::Refused {
            by: "a seccomp filter (EPERM)".to_owned(),
            hint: SECCOMP_HINT.to_owned(),
        },
        _ => SetupError::Refused {
            by: "a security module (EPERM)".to_owned(),
            hint: "allow io_uring for this program in SELinux or AppArmor".to_owned(),
        },
    }
}

/// Explains that a call of io_uring would end the process.
pub(crate) fn explain_kill() -> SetupError {
    SetupError::Refused {
        by: "a seccomp filter that kills the process (SIGSYS)".to_owned(),
        hint: SECCOMP_HINT.to_owned(),
    }
}

/// Explains that the kernel created no child to test the filter in.
pub(crate) fn explain_no_child(error: io::Error) -> SetupError {
    SetupError::Refused {
        by: format!(
            "a seccomp filter that may kill the process, as no child could test it: {error}"
        ),
        hint: "raise the limit on processes (ulimit -u; systemd: TasksMax=), or remove the filter"
            .to_owned(),
    }
}

/// Explains ENOMEM. `what` is the ring, or the thing that could not be registered with it.
pub(crate) fn explain_enomem(what: &'static str) -> SetupError {
    let have_bytes = if memlock_waived() {
        None
    } else {
        memlock_bytes()
    };
    let hint = match have_bytes {
        Some(_) if what == A_RING => {
            "raise it (ulimit -l 65536; systemd: LimitMEMLOCK=64M) or run Linux 7.2 or later, which does not \
            charge rings"
        }
        Some(_) => {
            "raise it (ulimit -l 65536; systemd: LimitMEMLOCK=64M) or register less: all processes of a user \
            share the limit"
        }
        None if what == A_RING => "free memory, or request fewer ring entries",
        None => "free memory, or register less",
    };
    SetupError::Memlock {
        what,
        have_bytes,
        hint: hint.to_owned(),
    }
}

/// The `what` of a refusal that concerns the whole ring.
pub(crate) const A_RING: &str = "a ring";

/// Explains an error of the ring's set-up.
pub(crate) fn explain_setup(error: io::Error) -> SetupError {
    match error.raw_os_error() {
        Some(ENOSYS) => explain_enosys(),
        Some(EPERM | EACCES) => explain_eperm(),
        Some(ENOMEM) => explain_enomem(A_RING),
        Some(EINVAL) => SetupError::TooOld {
            have: kernel_release(),
            need: "5.11",
            what: "the set-up flags CQSIZE and CLAMP",
        },
        Some(EMFILE) => SetupError::Descriptors { have: nofile() },
        Some(ENFILE) => SetupError::Descriptors { have: None },
        _ => SetupError::Os {
            what: "io_uring_setup",
            error,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_parsed_up_to_its_second_number() {
        assert_eq!(parse_version("6.18.44-fc-v595"), (6, 18));
        assert_eq!(parse_version("5.10.0-32-amd64"), (5, 10));
        assert_eq!(parse_version("7"), (7, 0));
        assert_eq!(parse_version("garbage"), (0, 0));
    }

    #[test]
    fn a_sysctl_is_a_number_or_missing() {
        let values: Vec<_> = ["0\n", "1\n", "2\n", "-1\n", "", "garbage"]
            .map(parse_number)
            .into();
        assert_eq!(values, [Some(0), Some(1), Some(2), None, None, None]);
        assert_eq!(read_text("/proc/sys/kernel/there_is_no_such_file"), None);
    }

    #[test]
    fn a_seccomp_filter_is_recognised_by_the_mode() {
        assert!(!parse_seccomp(
            "Name:\tx\nSeccomp:\t0\nSeccomp_filters:\t0\n"
        ));
        assert!(!parse_seccomp(
            "NoNewPrivs:\t1\nSeccomp:\t1\nSeccomp_filters:\t2\n"
        ));
        assert!(parse_seccomp(
            "NoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t1\n"
        ));
        assert!(!parse_seccomp("Name:\ta kernel without seccomp\n"));
    }

    #[test]
    fn root_of_a_user_namespace_is_not_root() {
        assert!(parse_initial_namespace(
            "         0          0 4294967295\n"
        ));
        assert!(!parse_initial_namespace(
            "         0       1000          1\n"
        ));
        assert!(!parse_initial_namespace("0 100000 65536\n65536 300000 1\n"));
    }

    #[test]
    fn a_text_longer_than_a_page_is_read_up_to_the_limit() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        for (written, read) in [(0, 0), (10_000, 10_000), (20_000, TEXT_BYTES_MAX)] {
            std::fs::write(path, "a".repeat(written)).unwrap();
            assert_eq!(read_text(path).map(|text| text.len()), Some(read));
        }
        let status = read_text("/proc/thread-self/status").unwrap();
        assert!(status.contains("\nThreads:"), "{status}");
    }
}
