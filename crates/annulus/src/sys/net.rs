//! # Safety
//!
//! Socket calls for the readiness fallback. They take the arguments of the corresponding SQE and return the same result
//! (`res`: a count, a descriptor, or minus an errno). None of them waits. Pointers come from an operation that owns the
//! memory they point to (Lent). The call returns before the operation is touched again.
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::io;
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketAddrUnix, SocketFlags,
    SocketType, sockopt,
};

use super::call::{IoVec, borrow_fd};
use crate::narrow::to_u32;

/// `MSG_WAITALL`: a send continues until all bytes are sent, if the kernel supports that.
pub(crate) const MSG_WAITALL: u32 = libc::MSG_WAITALL as u32;
/// `MSG_DONTWAIT`: fails with `EAGAIN` in place of a wait.
pub(crate) const MSG_DONTWAIT: u32 = libc::MSG_DONTWAIT as u32;
/// `MSG_MORE`: more data or the end follows immediately. The kernel may delay an incomplete segment until then.
pub(crate) const MSG_MORE: u32 = libc::MSG_MORE as u32;
/// `SOCK_CLOEXEC`, for `accept4`.
pub(crate) const SOCK_CLOEXEC: u32 = libc::SOCK_CLOEXEC as u32;

/// The type of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketKind {
    Stream,
    Datagram,
}

impl From<SocketKind> for SocketType {
    fn from(kind: SocketKind) -> SocketType {
        match kind {
            SocketKind::Stream => SocketType::STREAM,
            SocketKind::Datagram => SocketType::DGRAM,
        }
    }
}

/// An address to bind or connect to, in the kernel's format.
pub(crate) type Address = SocketAddrAny;

fn res(result: Result<usize, Errno>) -> i32 {
    match result {
        // The kernel limits a transfer to less than 2^31 bytes.
        Ok(n) => i32::try_from(n).unwrap_or(i32::MAX),
        Err(errno) => -errno.raw_os_error(),
    }
}

/// Converts an internet address.
pub(crate) fn internet(address: SocketAddr) -> Address {
    address.into()
}

/// Converts a path to a Unix address. A path that begins with a NUL byte is an abstract address.
pub(crate) fn unix(path: &std::path::Path) -> io::Result<Address> {
    let address = match path.as_os_str().as_bytes() {
        [0, name @ ..] => SocketAddrUnix::new_abstract_name(name),
        _ => SocketAddrUnix::new(path),
    };
    Ok(address?.into())
}

/// Converts `address` to an internet address; `None` if it has another family.
pub(crate) fn to_internet(address: Address) -> Option<SocketAddr> {
    SocketAddr::try_from(address).ok()
}

/// Converts `address` to a path, as `unix` takes it; `None` if it has another family or no path.
pub(crate) fn to_path(address: Address) -> Option<std::path::PathBuf> {
    let unix = SocketAddrUnix::try_from(address).ok()?;
    let path = match unix.abstract_name() {
        Some(name) => [&[0], name].concat(),
        None => {
            let path = unix.path_bytes()?;
            path.strip_suffix(&[0]).unwrap_or(path).to_vec()
        }
    };
    Some(OsString::from_vec(path).into())
}

/// Returns a pointer to the `struct sockaddr`, and its length in bytes.
pub(crate) fn raw(address: &Address) -> (*const u8, u32) {
    (address.as_ptr().cast(), address.addr_len())
}

/// Creates a socket. The readiness fallback needs `nonblocking`; a ring would return EAGAIN for such a socket.
pub(crate) fn socket(family: &Address, kind: SocketKind, nonblocking: bool) -> io::Result<OwnedFd> {
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

/// Sets the blocking mode that the driver needs.
pub(crate) fn set_nonblocking(fd: RawFd, nonblocking: bool) -> io::Result<()> {
    Ok(rustix::io::ioctl_fionbio(borrow_fd(fd), nonblocking)?)
}

/// Creates a Unix socket without a path.
pub(crate) fn unix_socket(kind: SocketKind, nonblocking: bool) -> io::Result<OwnedFd> {
    let flags = flags(nonblocking);
    Ok(net::socket_with(
        AddressFamily::UNIX,
        kind.into(),
        flags,
        None,
    )?)
}

/// Creates two connected Unix sockets.
pub(crate) fn pair(kind: SocketKind, nonblocking: bool) -> io::Result<(OwnedFd, OwnedFd)> {
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

/// `accept4(2)`. Returns a descriptor or minus an errno.
pub(crate) fn accept(fd: RawFd, nonblocking: bool) -> i32 {
    match net::accept_with(borrow_fd(fd), flags(nonblocking)) {
        Ok(fd) => fd.into_raw_fd(),
        Err(errno) => -errno.raw_os_error(),
    }
}

/// `connect(2)` of a non-blocking socket. Returns minus EINPROGRESS until the socket is writable.
pub(crate) fn connect(fd: RawFd, address: &Address) -> i32 {
    res(net::connect(borrow_fd(fd), address).map(|()| 0))
}

/// Returns the pending error of a connect or transfer in the background (`SO_ERROR`): 0, or minus an errno.
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
    // SAFETY: Lent: the caller upholds the contract in `# Safety`; the bytes are only written.
    let into = unsafe { std::slice::from_raw_parts_mut(base.cast(), bytes) };
    recv_into(fd, into)
}

/// `recv(2)` into `memory`, without waiting. The result is the number of bytes at its front that are initialised now,
/// or a negated errno.
#[inline]
pub(crate) fn recv_into(fd: RawFd, memory: &mut [MaybeUninit<u8>]) -> i32 {
    res(net::recv(borrow_fd(fd), memory, RecvFlags::DONTWAIT).map(|(_, n)| n))
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

/// Sends the last bytes of a stream, otherwise as [`send`]: the end follows immediately, and the kernel may wait for
/// it.
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

/// `send(2)`, without waiting, with more data to follow immediately (`MSG_MORE`): the kernel may wait for that data.
pub(crate) fn send_more(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL | SendFlags::MORE;
    Ok(net::send(borrow_fd(fd), bytes, flags)?)
}

/// `sendfile(2)`. Blocks while the send buffer is full unless the socket is non-blocking.
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

/// Sets `TCP_DEFER_ACCEPT`, which rustix does not support.
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

/// The length of the start of `struct tcp_info` (`linux/tcp.h`), up to the field for bytes not yet sent, in words of
/// four bytes. The struct only grows at its end. Its field `tcpi_bytes_acked` exists since Linux 4.1.
const TCP_INFO_WORDS: usize = 37;
const UNACKED_WORD: usize = 6;
const BYTES_ACKED_WORD: usize = 30;
const NOTSENT_BYTES_WORD: usize = 36;

/// Returns the progress of a send: a number that changes when the peer takes data, and whether all sent data has been
/// taken. For TCP the number is the count of acknowledged bytes (`TCP_INFO`, which rustix does not support). Other
/// streams only report the bytes still queued, which are subtracted from the largest number.
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
    // The system call's last argument is a pointer to an int.
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
    // An older kernel writes fewer words; the others stay 0.
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

/// Returns a message without data and address.
pub(crate) fn no_message() -> Message {
    // SAFETY: Typed: all-zero bytes are an empty `msghdr`.
    unsafe { std::mem::zeroed() }
}

/// Returns a message with the parts `vectors` and the address `name`.
pub(crate) fn message(name: *mut u8, name_bytes: u32, vectors: &mut [IoVec]) -> Message {
    // Not a struct literal: musl's `msghdr` has additional private fields.
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
/// Lent: all memory that `message` points to is valid until this returns. Open: so is `fd`.
pub(crate) unsafe fn send_message(fd: RawFd, message: *const Message) -> i32 {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: Lent and Open: the caller upholds the contract in `# Safety`.
    super::call::last(unsafe { libc::syscall(libc::SYS_sendmsg, fd, message, flags) })
}

/// `recvmsg(2)`, without waiting.
///
/// # Safety
///
/// As for `send_message`; the memory that `message` points to is valid for writes.
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

/// Ends a connection immediately, without sending queued data: by a reset, or by shutting down both directions where
/// resets do not exist (Unix sockets). Operations in flight fail.
pub(crate) fn abort(fd: RawFd) {
    if net::connect_unspec(borrow_fd(fd)).is_err() {
        // A refusal with ENOTCONN means that there is no connection.
        let _ = shutdown(fd, Shutdown::Both);
    }
}

/// Returns whether `address` is that of a Unix socket.
pub(crate) fn is_path(address: &Address) -> bool {
    address.address_family() == AddressFamily::UNIX
}

/// Returns whether `fd` is a Unix socket.
pub(crate) fn is_unix(fd: RawFd) -> bool {
    sockopt::socket_domain(borrow_fd(fd)) == Ok(AddressFamily::UNIX)
}

/// Takes ownership of a descriptor that an accept returned.
pub(crate) fn accepted(res: i32) -> OwnedFd {
    // SAFETY: Open: the kernel has just created it for the caller, and it is not used elsewhere.
    unsafe { OwnedFd::from_raw_fd(res) }
}

/// Returns the process, user and group of the peer of a Unix socket at the time of the connect. Not through rustix,
/// which rejects the process id 0 of a peer in another namespace.
pub(crate) fn peer_credentials(fd: RawFd) -> io::Result<(i32, u32, u32)> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut bytes: libc::socklen_t = to_u32(size_of::<libc::ucred>());
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    let (into, length) = (&raw mut peer, &raw mut bytes);
    // SAFETY: Lent: both live on this stack for the call, and `bytes` is the size of `peer`.
    let res = super::call::last(unsafe {
        libc::syscall(libc::SYS_getsockopt, fd, level, name, into, length)
    });
    super::errno::check(res)?;
    Ok((peer.pid, peer.uid, peer.gid))
}
