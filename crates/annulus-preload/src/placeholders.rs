//! # Safety
//!
//! Placeholders: copies of one file that take all free numbers below a number for a moment, so that the kernel gives
//! the next files higher ones. A message brings many copies with one call, and many numbers are closed with one.
//! Pointers are valid for the call (Lent). A number is closed only if its file looks like a placeholder (Open).
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_void};
use std::ptr;

use crate::raw_libc as libc;
use crate::sys;

/// The copies in a message. The kernel accepts 253. It limits the copies that a user has sent and no process has
/// received yet (`RLIMIT_NOFILE`), and the program may send some, too.
const COPIES_MAX: usize = 64;

/// A message with copies of one file.
#[repr(C)]
struct Copies {
    header: libc::cmsghdr,
    fds: [i32; COPIES_MAX],
}

impl Copies {
    /// Returns a message with `count` copies of `fd`.
    fn new(fd: i32, count: usize) -> Copies {
        Copies {
            header: libc::cmsghdr {
                cmsg_len: size_of::<libc::cmsghdr>() + count * size_of::<i32>(),
                cmsg_level: libc::SOL_SOCKET,
                cmsg_type: libc::SCM_RIGHTS,
            },
            fds: [fd; COPIES_MAX],
        }
    }

    /// Makes `sendmsg` or `recvmsg` of this message, with a byte of data. Returns whether it succeeded.
    fn transfer(&mut self, call: c_long, socket: i32, flags: c_int) -> bool {
        let mut data = 0_u8;
        let mut vector = libc::iovec {
            iov_base: (&raw mut data).cast(),
            iov_len: 1,
        };
        let mut message: libc::msghdr = sys::zeroed();
        message.msg_iov = &raw mut vector;
        message.msg_iovlen = 1;
        message.msg_controllen = self.header.cmsg_len;
        message.msg_control = ptr::from_mut(self).cast();
        // SAFETY: Lent: all of this stack, and `self` has the length.
        let done = unsafe { libc::syscall(call, socket, &raw mut message, flags) } == 1;
        done && message.msg_controllen > 0
    }

    fn received(&self) -> &[i32] {
        let bytes = (self.header.cmsg_len).saturating_sub(size_of::<libc::cmsghdr>());
        &self.fds[..COPIES_MAX.min(bytes / size_of::<i32>())]
    }
}

/// Two sockets, between which a message with copies of a file waits. Each look at the message makes new copies.
struct Source {
    ends: [i32; 2],
}

impl Source {
    fn new(file: i32) -> Option<Source> {
        let mut ends = [-1; 2];
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: Lent: of this stack.
        let made =
            unsafe { libc::syscall(libc::SYS_socketpair, libc::AF_UNIX, kind, 0, &raw mut ends) };
        (made == 0).then(|| {
            // If it is not sent, no copies come, and single ones are made.
            Copies::new(file, COPIES_MAX).transfer(libc::SYS_sendmsg, ends[0], libc::MSG_NOSIGNAL);
            Source { ends }
        })
    }

    /// Returns new descriptors, at most `count`.
    fn copies(&self, count: usize) -> Copies {
        let mut copies = Copies::new(-1, count);
        let flags = libc::MSG_PEEK | libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
        if !copies.transfer(libc::SYS_recvmsg, self.ends[1], flags) {
            copies.header.cmsg_len = 0;
        }
        copies
    }
}

/// Takes all free numbers below `end`, and perhaps some above. Returns them in order, and whether there were enough.
/// `None`: no descriptor can be made.
pub(crate) fn take_below(end: i32) -> Option<(Vec<i32>, bool)> {
    let [file, write] = sys::pipe().ok()?;
    let _ = sys::close(write);
    let mut taken = vec![file];
    let source = (file < end).then(|| Source::new(file)).flatten();
    taken.extend(source.iter().flat_map(|source| source.ends));
    let mut is_enough = true;
    // Half of the numbers from `end` on stay free for other threads.
    let limit = i32::try_from(sys::fd_limit()).unwrap_or(i32::MAX);
    let spare = (limit - end) / 2;
    while let Some(&last) = taken.iter().max()
        && last < end
        && is_enough
    {
        let count =
            usize::try_from(spare.min(end - last)).map_or(1, |count| count.clamp(1, COPIES_MAX));
        let copies = source.as_ref().map(|source| source.copies(count));
        let received = copies.as_ref().map_or(&[][..], Copies::received);
        taken.extend(received);
        if received.is_empty() {
            let single = sys::dup_above(file, 0);
            is_enough = single.is_ok();
            taken.extend(single);
        }
    }
    // The sockets become placeholders, too.
    for end in source.iter().flat_map(|source| source.ends) {
        let _ = sys::dup_to(file, end, libc::O_CLOEXEC);
    }
    taken.sort_unstable();
    Some((taken, is_enough))
}

/// Closes placeholders. A number that another thread has reused stays open.
pub(crate) fn close(fds: &[i32]) {
    let request = |&fd: &i32| libc::pollfd {
        fd,
        events: libc::POLLIN | libc::POLLOUT,
        revents: 0,
    };
    let mut polled: Vec<libc::pollfd> = fds.iter().map(request).collect();
    let time = sys::time(0);
    // SAFETY: Lent: borrowed for the call, or of this stack.
    let reported = unsafe {
        libc::syscall(
            libc::SYS_ppoll,
            polled.as_mut_ptr(),
            polled.len(),
            &raw const time,
            ptr::null::<c_void>(),
            8,
        )
    };
    // Only the reading end of a pipe without bytes and writers reports nothing else. If a filter refuses the call, all
    // are closed: a number that another thread has reused is far less likely than one that stays taken.
    polled.retain(|polled| reported < 0 || polled.revents == libc::POLLHUP);
    for run in polled.chunk_by(|one, next| one.fd + 1 == next.fd) {
        let (first, last) = (run[0].fd, run[run.len() - 1].fd);
        // SAFETY: Open: placeholders.
        if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } != 0 {
            // A filter refuses the call.
            run.iter().for_each(|polled| _ = sys::close(polled.fd));
        }
    }
}
