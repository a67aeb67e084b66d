//! Whether a runtime has an I/O driver. Tokio offers no function for this, and panics if a descriptor is registered
//! with a runtime that has none (checked with 1.54). A Tokio runtime with I/O has an epoll instance. If the process has
//! none, nothing has to be registered to find out.

use std::fs;
use std::os::fd::{AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::thread;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;

/// No descriptor. `epoll_ctl(2)` refuses it with EBADF, so nothing stays registered.
struct NoDescriptor;

impl AsRawFd for NoDescriptor {
    fn as_raw_fd(&self) -> RawFd {
        -1
    }
}

/// Returns whether `runtime` was built with I/O. `None` if that is not known: with `panic = "abort"`, during a panic,
/// without `/proc`, and without a free descriptor.
pub(super) fn has_io(runtime: &Handle) -> Option<bool> {
    if !has_epoll(Path::new("/proc/self/fd"))? {
        return Some(false);
    }
    if thread::panicking() || cfg!(panic = "abort") {
        return None;
    }
    let register = || {
        let _inside = runtime.enter();
        #[expect(
            deprecated,
            reason = "sound because this descriptor never changes; the new form is unsafe"
        )]
        drop(AsyncFd::with_interest(NoDescriptor, Interest::READABLE));
    };
    // A panic if this runtime has no I/O, but another one, or other code, has an epoll instance.
    Some(catch_unwind(AssertUnwindSafe(register)).is_ok())
}

/// Returns whether the process has an epoll instance. `None` if its descriptors cannot be listed.
fn has_epoll(descriptors: &Path) -> Option<bool> {
    let mut links = fs::read_dir(descriptors).ok()?.filter_map(Result::ok);
    // Instances are created early, so a process with many descriptors looks at few of them.
    Some(links.any(|link| {
        fs::read_link(link.path()).is_ok_and(|kind| kind == Path::new("anon_inode:[eventpoll]"))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn an_epoll_instance_is_found_among_descriptors_and_nothing_is_known_without_a_list() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(has_epoll(&folder.path().join("missing")), None);
        symlink("/dev/null", folder.path().join("0")).unwrap();
        assert_eq!(has_epoll(folder.path()), Some(false));
        symlink("anon_inode:[eventpoll]", folder.path().join("1")).unwrap();
        assert_eq!(has_epoll(folder.path()), Some(true));
    }

    #[test]
    fn the_runtimes_of_tokio_have_epoll_instances_as_the_kernel_names_them() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build();
        let runtime = runtime.unwrap();
        assert_eq!(has_epoll(Path::new("/proc/self/fd")), Some(true));
        assert_eq!(has_io(runtime.handle()), Some(true));
    }
}
