//! # Safety
//!
//! Socket calls as the readiness fallback makes them: the same arguments as the SQE, the same answer
//! (`res`: a count, a descriptor, or minus an errno), and none of them waits. Pointers come from an op
//! that owns what they point to (Lent); the call returns before the op is touched again.
#![allow(unsafe_code)]

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketAddrUnix, SocketFlags,
    SocketType, sockopt,
};

use super::call::{IoVec, borrow_fd};
use crate::narrow::to_u32;

/// `MSG_WAITALL`: a send goes on until all of it is sent, where the kernel can.
pub(crate) const MSG_WAITALL: u32 = libc::MSG_WAITALL as u32;
/// `MSG_MORE`: more follows immediately, or the end; the kernel may wait for it with what does not fill a segment.
pub(crate) const MSG_MORE: u32 = libc::MSG_MORE as u32;
/// `SOCK_CLOEXEC`, for `accept4`.
pub(crate) const SOCK_CLOEXEC: u32 = libc::SOCK_CLOEXEC as u32;

/// What kind of socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Stream,
    Datagram,
}

impl From<Kind> for SocketType {
    fn from(kind: Kind) -> SocketType {
        match kind {
            Kind::Stream => SocketType::STREAM,
            Kind::Datagram => SocketType::DGRAM,
        }
    }
}

/// Where a socket is bound or connected to, as the kernel takes it.
pub(crate) type Address = SocketAddrAny;

fn res(result: Result<usize, Errno>) -> i32 {
    match result {
        // The kernel's own bound on a transfer is below 2^31.
        Ok(n) => i32::try_from(n).unwrap_or(i32::MAX),
        Err(errno) => -errno.raw_os_error(),
    }
}

/// The address of an internet socket.
pub(crate) fn internet(address: SocketAddr) -> Address {
    address.into()
}

/// The address of a path.
pub(crate) fn unix(path: &std::path::Path) -> io::Result<Address> {
    Ok(SocketAddrUnix::new(path)?.into())
}

/// The internet address that `address` is, if it is one.
pub(crate) fn to_internet(address: Address) -> Option<SocketAddr> {
    SocketAddr::try_from(address).ok()
}

/// The path that `address` is, if it is one.
pub(crate) fn to_path(address: Address) -> Option<std::path::PathBuf> {
    let unix = SocketAddrUnix::try_from(address).ok()?;
    let path = unix.path_bytes()?;
    let path = path.strip_suffix(&[0]).unwrap_or(path);
    Some(std::ffi::OsStr::from_bytes(path).into())
}

/// `struct sockaddr` and its length, bytes.
pub(crate) fn raw(address: &Address) -> (*const u8, u32) {
    (address.as_ptr().cast(), address.addr_len())
}

/// A new socket. `nonblocking` for the readiness fallback; a ring would answer EAGAIN for such a one.
pub(crate) fn socket(family: &Address, kind: Kind, nonblocking: bool) -> io::Result<OwnedFd> {
    let flags = flags(nonblocking);
    Ok(net::socket_with(
        family.address_family(),
        kind.into(),
        flags,
        None,
    )?)
}

fn flags(nonblocking: bool) -> SocketFlags {
    if nonblocking {
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK
    } else {
        SocketFlags::CLOEXEC
    }
}

/// Gives a descriptor of this process the mode that its driver needs.
pub(crate) fn set_nonblocking(fd: RawFd, nonblocking: bool) -> io::Result<()> {
    Ok(rustix::io::ioctl_fionbio(borrow_fd(fd), nonblocking)?)
}

/// A Unix socket without a path.
pub(crate) fn unix_socket(kind: Kind, nonblocking: bool) -> io::Result<OwnedFd> {
    let flags = flags(nonblocking);
    Ok(net::socket_with(
        AddressFamily::UNIX,
        kind.into(),
        flags,
        None,
    )?)
}

/// Two Unix sockets, connected to each other.
pub(crate) fn pair(kind: Kind, nonblocking: bool) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = flags(nonblocking);
    Ok(net::socketpair(
        AddressFamily::UNIX,
        kind.into(),
        flags,
        None,
    )?)
}

pub(crate) fn bind(fd: RawFd, address: &Address) -> io::Result<()> {
    Ok(net::bind(borrow_fd(fd), address)?)
}

pub(crate) fn listen(fd: RawFd, backlog: i32) -> io::Result<()> {
    Ok(net::listen(borrow_fd(fd), backlog)?)
}

pub(crate) fn local_address(fd: RawFd) -> io::Result<Address> {
    Ok(net::getsockname(borrow_fd(fd))?)
}

pub(crate) fn peer_address(fd: RawFd) -> io::Result<Address> {
    let peer = net::getpeername(borrow_fd(fd))?;
    peer.ok_or_else(|| io::ErrorKind::NotConnected.into())
}

/// `accept4(2)`: a descriptor.
pub(crate) fn accept(fd: RawFd, nonblocking: bool) -> i32 {
    match net::accept_with(borrow_fd(fd), flags(nonblocking)) {
        Ok(fd) => fd.into_raw_fd(),
        Err(errno) => -errno.raw_os_error(),
    }
}

/// `connect(2)` of a socket that does not block: minus EINPROGRESS until it is writable.
pub(crate) fn connect(fd: RawFd, address: &Address) -> i32 {
    res(net::connect(borrow_fd(fd), address).map(|()| 0))
}

/// What became of a connect or a transfer in the background: 0, or minus an errno.
pub(crate) fn take_error(fd: RawFd) -> i32 {
    match sockopt::socket_error(borrow_fd(fd)) {
        Ok(Ok(())) => 0,
        Ok(Err(errno)) | Err(errno) => -errno.raw_os_error(),
    }
}

/// `recv(2)`, without waiting.
///
/// # Safety
///
/// Lent: `base` is valid for writes of `bytes` until this returns. Open: so is `fd`.
#[inline]
pub(crate) unsafe fn recv(fd: RawFd, base: *mut u8, bytes: usize) -> i32 {
    // SAFETY: Lent: the caller upholds the contract in `# Safety`; the bytes are only written to.
    let into = unsafe { std::slice::from_raw_parts_mut(base.cast(), bytes) };
    let fd = borrow_fd(fd);
    let into: &mut [std::mem::MaybeUninit<u8>] = into;
    res(net::recv(fd, into, RecvFlags::DONTWAIT).map(|(_, n)| n))
}

/// `send(2)`, without waiting and without SIGPIPE.
///
/// # Safety
///
/// Lent: `base` is valid for reads of `bytes` until this returns. Open: so is `fd`.
#[inline]
pub(crate) unsafe fn send(fd: RawFd, base: *const u8, bytes: usize) -> i32 {
    // SAFETY: Lent, Open: the caller upholds the contract in `# Safety`.
    unsafe { send_with(fd, base, bytes, SendFlags::empty()) }
}

/// The same, of the last bytes: the end follows immediately, and the kernel may wait for it.
///
/// # Safety
///
/// As [`send`].
pub(crate) unsafe fn send_last(fd: RawFd, base: *const u8, bytes: usize) -> i32 {
    // SAFETY: Lent, Open: the caller upholds the contract in `# Safety`.
    unsafe { send_with(fd, base, bytes, SendFlags::MORE) }
}

/// # Safety
///
/// As [`send`].
#[inline]
unsafe fn send_with(fd: RawFd, base: *const u8, bytes: usize, flags: SendFlags) -> i32 {
    // SAFETY: Lent: the caller upholds the contract in `# Safety`.
    let from = unsafe { std::slice::from_raw_parts(base, bytes) };
    let fd = borrow_fd(fd);
    let flags = flags | SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    res(net::send(fd, from, flags))
}

/// `send`, without waiting, of what more follows immediately: the kernel may wait for that.
pub(crate) fn send_more(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL | SendFlags::MORE;
    Ok(net::send(borrow_fd(fd), bytes, flags)?)
}

/// `sendfile`. It waits for room unless the socket is told not to.
pub(crate) fn send_file(
    fd: RawFd,
    file: BorrowedFd<'_>,
    offset: &mut u64,
    bytes: usize,
) -> io::Result<usize> {
    Ok(rustix::fs::sendfile(
        borrow_fd(fd),
        file,
        Some(offset),
        bytes,
    )?)
}

/// `TCP_DEFER_ACCEPT`, for which rustix has no function.
pub(crate) fn set_defer_accept(fd: RawFd, seconds: u32) -> io::Result<()> {
    // SAFETY: Open: the caller's socket. Lent: the kernel reads the four bytes during the call.
    let res = unsafe {
        libc::syscall(
            libc::SYS_setsockopt,
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_DEFER_ACCEPT,
            &raw const seconds,
            size_of::<u32>(),
        )
    };
    super::errno::check(super::call::last(res)).map(drop)
}

/// The start of `struct tcp_info` (`linux/tcp.h`), to its field for the bytes not yet sent, as words of four bytes: to
/// it fields are only added. Before it stands `tcpi_bytes_acked`, since Linux 4.1.
const TCP_INFO_WORDS: usize = 37;
const UNACKED_WORD: usize = 6;
const BYTES_ACKED_WORD: usize = 30;
const NOTSENT_BYTES_WORD: usize = 36;

/// How far what is being sent has come: a number that changes when the peer takes something of it, and whether that
/// is all that the kernel was given. Of TCP, the bytes that were acknowledged (`TCP_INFO`, for which rustix has no
/// function); other streams only know what is still waiting, so it is counted down from the largest number.
pub(crate) fn acknowledged(fd: RawFd) -> io::Result<(u64, bool)> {
    match acknowledged_by_tcp(fd) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            let mut waiting = 0i32;
            let into = &raw mut waiting;
            // SAFETY: Open: the caller's socket. Lent: the kernel writes the four bytes, which live on this stack,
            // during the call.
            let res = unsafe { libc::syscall(libc::SYS_ioctl, fd, libc::TIOCOUTQ, into) };
            super::errno::check(super::call::last(res))?;
            Ok((u64::MAX - u64::from(waiting.unsigned_abs()), waiting == 0))
        }
        result => result,
    }
}

fn acknowledged_by_tcp(fd: RawFd) -> io::Result<(u64, bool)> {
    let mut info = [0_u32; TCP_INFO_WORDS];
    // The type of the system call's last argument is a pointer to an int.
    let mut bytes = to_u32(size_of_val(&info));
    // SAFETY: Open: the caller's socket. Lent: the kernel writes at most `bytes` bytes to `info`, during the call.
    let res = unsafe {
        libc::syscall(
            libc::SYS_getsockopt,
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr(),
            &raw mut bytes,
        )
    };
    super::errno::check(super::call::last(res))?;
    // An older kernel writes less: what it does not tell stays 0.
    let word = |at: usize| u64::from(info[at]);
    let [low, high] = match cfg!(target_endian = "little") {
        true => [BYTES_ACKED_WORD, BYTES_ACKED_WORD + 1],
        false => [BYTES_ACKED_WORD + 1, BYTES_ACKED_WORD],
    };
    let all = word(UNACKED_WORD) == 0 && word(NOTSENT_BYTES_WORD) == 0;
    Ok((word(low) | word(high) << 32, all))
}

/// `struct msghdr`.
pub(crate) type Message = libc::msghdr;

/// A message of nothing, from or to nobody.
pub(crate) fn no_message() -> Message {
    // SAFETY: Typed: all-zero bytes are an empty `msghdr`.
    unsafe { std::mem::zeroed() }
}

/// A message whose parts are `vectors`, and whose address is `name`.
pub(crate) fn message(name: *mut u8, name_bytes: u32, vectors: &mut [IoVec]) -> Message {
    // Not by a literal: musl's has private fields besides.
    let mut message = no_message();
    message.msg_name = name.cast();
    message.msg_namelen = name_bytes;
    message.msg_iov = vectors.as_mut_ptr().cast();
    message.msg_iovlen = vectors.len() as _;
    message
}

/// `sendmsg(2)`, without waiting and without SIGPIPE.
///
/// # Safety
///
/// Lent: all that `message` points to is valid until this returns. Open: so is `fd`.
pub(crate) unsafe fn send_message(fd: RawFd, message: *const Message) -> i32 {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: Lent and Open: the caller upholds the contract in `# Safety`.
    super::call::last(unsafe { libc::syscall(libc::SYS_sendmsg, fd, message, flags) })
}

/// `recvmsg(2)`, without waiting.
///
/// # Safety
///
/// As for `send_message`; what `message` points to is valid for writes.
pub(crate) unsafe fn receive_message(fd: RawFd, message: *mut Message) -> i32 {
    // SAFETY: Lent and Open: the caller upholds the contract in `# Safety`.
    super::call::last(unsafe { libc::syscall(libc::SYS_recvmsg, fd, message, libc::MSG_DONTWAIT) })
}

/// `shutdown(2)`.
pub(crate) fn shutdown(fd: RawFd, how: Shutdown) -> io::Result<()> {
    let how = match how {
        Shutdown::Read => net::Shutdown::Read,
        Shutdown::Write => net::Shutdown::Write,
        Shutdown::Both => net::Shutdown::Both,
    };
    Ok(net::shutdown(borrow_fd(fd), how)?)
}

/// Ends a connection immediately, without waiting for what is to be sent: by a reset, or, where there is none (Unix),
/// by an end of both directions. What is under way fails.
pub(crate) fn abort(fd: RawFd) {
    if net::connect_unspec(borrow_fd(fd)).is_err() {
        // Refused (ENOTCONN), there is no connection.
        let _ = shutdown(fd, Shutdown::Both);
    }
}

/// Takes over a descriptor that an accept has answered.
pub(crate) fn accepted(res: i32) -> OwnedFd {
    // SAFETY: Open: the kernel has just made it for us, and nobody else knows the number.
    unsafe { OwnedFd::from_raw_fd(res) }
}

/// Who is at the other end of a Unix socket, as it was when it connected: process, user and group. By hand,
/// for a process of another namespace is 0, and rustix takes that for impossible.
pub(crate) fn peer_credentials(fd: RawFd) -> io::Result<(i32, u32, u32)> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut bytes: libc::socklen_t = to_u32(size_of::<libc::ucred>());
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    let (into, length) = (&raw mut peer, &raw mut bytes);
    // SAFETY: Lent: both live on this stack for the call, and `bytes` is what `peer` has.
    let res = super::call::last(unsafe {
        libc::syscall(libc::SYS_getsockopt, fd, level, name, into, length)
    });
    super::errno::check(res)?;
    Ok((peer.pid, peer.uid, peer.gid))
}
