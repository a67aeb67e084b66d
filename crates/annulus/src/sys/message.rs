//! # Safety
//!
//! `struct msghdr` and the data that it points to: one buffer and an address. An operation owns a boxed `MessageHeader`
//! (Lent, Still). It sets the pointers before each submission, so the buffer may move between two of them.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::RawFd;

use rustix::fs::{FileType, OFlags};
use rustix::net::addr::SocketAddrStorage;

use super::call::{IoVec, borrow_fd};
use super::net::{self, Address, Message};
use crate::narrow::to_u32;

/// The size of an address of any family, bytes.
const NAME_BYTES: usize = size_of::<SocketAddrStorage>();
/// The largest size of an internet address (`struct sockaddr_in6`), bytes.
pub(crate) const INTERNET_NAME_BYTES: usize = size_of::<libc::sockaddr_in6>();
/// The largest size of a Unix address (`struct sockaddr_un`), bytes.
pub(crate) const UNIX_NAME_BYTES: usize = size_of::<libc::sockaddr_un>();
/// The size of `struct io_uring_recvmsg_out`: three lengths and flags before each message of a multishot receive.
pub(crate) const HEADER_BYTES: usize = 16;

#[repr(C, align(8))]
struct Name([u8; NAME_BYTES]);

/// A message with one buffer and an address.
pub(crate) struct MessageHeader {
    message: Message,
    vector: IoVec,
    name: Name,
    /// The length of the address to send to, or the space for a received one, bytes.
    name_bytes: usize,
}

impl MessageHeader {
    /// Returns a header with space for the sender's address.
    pub(crate) fn from_anybody() -> Box<MessageHeader> {
        MessageHeader::with(Name([0; NAME_BYTES]), NAME_BYTES)
    }

    /// Returns a header for a message to `address`; `None` is the connected peer.
    pub(crate) fn to(address: Option<&Address>) -> Box<MessageHeader> {
        let mut name = Name([0; NAME_BYTES]);
        let bytes = address.map_or(0, |address| {
            let (base, bytes) = net::raw(address);
            // SAFETY: Lent: the address owns `bytes` initialised bytes.
            let from = unsafe { std::slice::from_raw_parts(base, bytes as usize) };
            name.0[..from.len()].copy_from_slice(from);
            from.len()
        });
        MessageHeader::with(name, bytes)
    }

    fn with(name: Name, name_bytes: usize) -> Box<MessageHeader> {
        let vector = IoVec {
            base: std::ptr::null_mut(),
            bytes: 0,
        };
        Box::new(MessageHeader {
            message: net::no_message(),
            vector,
            name,
            name_bytes,
        })
    }

    /// Points the header at a buffer. The result is valid until the box or the buffer is used otherwise.
    pub(crate) fn aim(&mut self, base: *mut u8, bytes: usize) -> *mut Message {
        self.vector = IoVec { base, bytes };
        let name_bytes = to_u32(self.name_bytes);
        let name = if name_bytes == 0 {
            std::ptr::null_mut()
        } else {
            self.name.0.as_mut_ptr()
        };
        self.message = net::message(name, name_bytes, std::slice::from_mut(&mut self.vector));
        &raw mut self.message
    }

    /// Returns the sender of the received message; `None` if the sender has no address.
    pub(crate) fn sender(&self) -> Option<Address> {
        let bytes = (self.message.msg_namelen as usize).min(NAME_BYTES);
        address(&self.name.0[..bytes])
    }

    /// Returns whether the received message was longer than the buffer.
    pub(crate) fn is_truncated(&self) -> bool {
        self.message.msg_flags & libc::MSG_TRUNC != 0
    }
}

/// Converts an address from the kernel's format; `None` if it is empty or too long.
fn address(bytes: &[u8]) -> Option<Address> {
    if bytes.len() <= size_of::<libc::sa_family_t>() || bytes.len() > NAME_BYTES {
        return None;
    }
    let mut storage = MaybeUninit::<SocketAddrStorage>::zeroed();
    // SAFETY: Owned: `storage` is a local of `NAME_BYTES` bytes, and any bytes are valid in it.
    let space = unsafe { std::slice::from_raw_parts_mut(storage.as_mut_ptr().cast(), NAME_BYTES) };
    space[..bytes.len()].copy_from_slice(bytes);
    // SAFETY: Written: all of it is initialised, and the length was checked above.
    Some(unsafe { Address::read(storage.as_ptr(), to_u32(bytes.len())) })
}

/// Returns the header for a multishot receive, with space for an address of `name_bytes` bytes.
pub(crate) fn shape(name_bytes: usize) -> Message {
    let mut message = net::no_message();
    message.msg_namelen = to_u32(name_bytes);
    message
}

/// A message within a buffer of a multishot receive.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) sender: Option<Address>,
    /// The offset of the payload.
    pub(crate) from: usize,
    pub(crate) is_truncated: bool,
}

/// Parses the header that the kernel puts before a message (`struct io_uring_recvmsg_out`). `buffer` is the part of the
/// buffer that the CQE reports as filled, and `name_bytes_max` the space for an address. No length in the header is
/// trusted beyond the end of `buffer` (trap 33). Returns `None` if the header is invalid.
pub(crate) fn parse(buffer: &[u8], name_bytes_max: usize) -> Option<Parsed> {
    let number = |at: usize| -> Option<u32> {
        let bytes = buffer.get(at..at.checked_add(4)?)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    };
    let (name_bytes, control_bytes) = (number(0)? as usize, number(4)?);
    let (payload_bytes, flags) = (number(8)? as usize, number(12)?);
    if control_bytes != 0 {
        // No space for control data was provided.
        return None;
    }
    let from = HEADER_BYTES.checked_add(name_bytes_max)?;
    let there = buffer.len().checked_sub(from)?;
    let name =
        buffer.get(HEADER_BYTES..HEADER_BYTES.checked_add(name_bytes.min(name_bytes_max))?)?;
    Some(Parsed {
        sender: address(name),
        from,
        is_truncated: payload_bytes > there || flags & libc::MSG_TRUNC as u32 != 0,
    })
}

/// Polls `fd` without waiting. Returns the mask of `events` that occurred, 0 for none, or minus an errno.
pub(crate) fn poll(fd: RawFd, events: u32) -> i32 {
    let mut request = libc::pollfd {
        fd,
        events: u16::try_from(events).unwrap_or(u16::MAX).cast_signed(),
        revents: 0,
    };
    let no_time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mask = std::ptr::null::<u8>();
    // SAFETY: Lent: `request` and `no_time` live on this stack for the call.
    let res = super::call::last(unsafe {
        libc::syscall(
            libc::SYS_ppoll,
            &raw mut request,
            1,
            &raw const no_time,
            mask,
            8,
        )
    });
    if res > 0 {
        return i32::from(request.revents);
    }
    res
}

/// `splice(2)` from the current positions, without waiting for a pipe.
pub(crate) fn splice(from: RawFd, into: RawFd, bytes: usize) -> i32 {
    let none = std::ptr::null_mut::<u8>();
    let flags = libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MOVE;
    // SAFETY: Open: a wrong descriptor leads to a wrong result and nothing worse; no memory is passed.
    super::call::last(unsafe {
        libc::syscall(libc::SYS_splice, from, none, into, none, bytes, flags)
    })
}

/// Calls [`splice`] on descriptors that may be in blocking mode. Neither blocks during the call.
pub(crate) fn splice_without_waiting(from: RawFd, into: RawFd, bytes: usize) -> i32 {
    let _modes = [NonBlocking::during(from), NonBlocking::during(into)];
    splice(from, into, bytes)
}

/// Makes a descriptor non-blocking until it is dropped. The mode belongs to the open file, so other descriptors of the
/// same file are affected too.
struct NonBlocking(Option<(RawFd, OFlags)>);

impl NonBlocking {
    /// Has no effect on files and pipes: files have no such mode, and a splice is told not to wait for pipes.
    fn during(fd: RawFd) -> NonBlocking {
        let waits = |mode: &OFlags| !mode.contains(OFlags::NONBLOCK);
        let mode = match rustix::fs::fstat(borrow_fd(fd)) {
            Ok(stat) if has_mode(FileType::from_raw_mode(stat.st_mode)) => {
                rustix::fs::fcntl_getfl(borrow_fd(fd)).ok().filter(waits)
            }
            _ => None,
        };
        let set = |mode: &OFlags| rustix::fs::fcntl_setfl(borrow_fd(fd), *mode | OFlags::NONBLOCK);
        NonBlocking(mode.filter(|mode| set(mode).is_ok()).map(|mode| (fd, mode)))
    }
}

fn has_mode(kind: FileType) -> bool {
    !matches!(
        kind,
        FileType::Fifo | FileType::RegularFile | FileType::BlockDevice
    )
}

impl Drop for NonBlocking {
    fn drop(&mut self) {
        if let Some((fd, mode)) = self.0.take() {
            let _ = rustix::fs::fcntl_setfl(borrow_fd(fd), mode);
        }
    }
}

/// The flags of a splice through a ring.
pub(crate) const SPLICE_FLAGS: u32 = libc::SPLICE_F_MOVE;

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(numbers: [u32; 4], name: &[u8], payload: &[u8]) -> Vec<u8> {
        let header = numbers.into_iter().flat_map(u32::to_ne_bytes);
        let mut buffer: Vec<u8> = header.collect();
        buffer.extend(name);
        buffer.extend(payload);
        buffer
    }

    fn name() -> Vec<u8> {
        let address = net::internet("127.0.0.1:7000".parse().unwrap());
        let header = MessageHeader::to(Some(&address));
        let mut name = header.name.0[..INTERNET_NAME_BYTES].to_vec();
        name.truncate(header.name_bytes);
        name.resize(INTERNET_NAME_BYTES, 0);
        name
    }

    #[test]
    fn the_payload_follows_the_space_for_the_address() {
        let buffer = buffer([16, 0, 5, 0], &name(), b"hello");
        let parsed = parse(&buffer, INTERNET_NAME_BYTES).unwrap();
        assert_eq!(&buffer[parsed.from..], b"hello");
        assert!(!parsed.is_truncated);
        let sender = parsed.sender.and_then(net::to_internet);
        assert_eq!(sender, Some("127.0.0.1:7000".parse().unwrap()));
    }

    #[test]
    fn a_message_that_was_cut_short_is_reported_as_truncated() {
        let longer = buffer([16, 0, 9, 0], &name(), b"hello");
        assert!(parse(&longer, INTERNET_NAME_BYTES).unwrap().is_truncated);
        let flagged = buffer([16, 0, 5, libc::MSG_TRUNC as u32], &name(), b"hello");
        assert!(parse(&flagged, INTERNET_NAME_BYTES).unwrap().is_truncated);
    }

    #[test]
    fn lengths_that_reach_beyond_the_buffer_are_not_trusted() {
        let most = u32::MAX;
        let name = name();
        assert!(parse(&[], 28).is_none());
        assert!(parse(&buffer([16, 0, 5, 0], &[], &[]), 28).is_none());
        assert!(parse(&buffer([16, most, 5, 0], &name, b"hello"), 28).is_none());
        assert!(parse(&buffer([16, 0, 5, 0], &name, b""), usize::MAX).is_none());
        let parsed = parse(&buffer([most, 0, most, 0], &name, b"hello"), 28).unwrap();
        assert!(parsed.is_truncated);
        assert_eq!(parsed.from, HEADER_BYTES + 28);
    }

    #[test]
    fn a_peer_without_an_address_has_no_sender_address() {
        let unnamed = 1u16.to_ne_bytes();
        assert!(address(&[]).is_none());
        assert!(address(&unnamed).is_none());
    }
}
