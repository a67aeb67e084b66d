//! Checks the meaning of each error of a send, for all errno values and with the kernel's sockets.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use crate::send_errors::{SendFailure, keeps_bytes, meaning};

/// The highest errno of Linux, EHWPOISON.
const HIGHEST: i32 = 133;

#[test]
fn each_errno_of_a_send_has_one_meaning() {
    let retry = [
        libc::EAGAIN,
        libc::EINTR,
        libc::ENOMEM,
        libc::ENOBUFS,
        libc::ECANCELED,
    ];
    let call = [
        libc::EFAULT,
        libc::EINVAL,
        libc::EMSGSIZE,
        libc::EOPNOTSUPP,
        libc::EPERM,
        libc::EACCES,
        libc::ENOSYS,
    ];
    for errno in 1..=HIGHEST {
        let expected = match errno {
            errno if retry.contains(&errno) => SendFailure::Retry,
            errno if call.contains(&errno) => SendFailure::Call,
            _ => SendFailure::Ended,
        };
        assert_eq!(meaning(errno), expected, "errno {errno}");
        assert_eq!(keeps_bytes(errno), retry.contains(&errno), "errno {errno}");
    }
}

fn connected() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    (stream, peer)
}

/// Writes until a write fails. Returns its errno.
fn fail(stream: &mut TcpStream) -> i32 {
    loop {
        if let Err(error) = stream.write(&[0; 65536]) {
            return error.raw_os_error().unwrap();
        }
    }
}

#[test]
fn a_full_socket_can_be_written_later() {
    let (mut stream, mut peer) = connected();
    assert_eq!(meaning(fail(&mut stream)), SendFailure::Retry);
    let mut bytes = vec![0; 65536];
    while let Err(error) = stream.write(&[0]) {
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert!(peer.read(&mut bytes).unwrap() > 0);
    }
}

#[test]
fn a_socket_that_was_shut_or_reset_has_ended() {
    let (mut stream, _peer) = connected();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(fail(&mut stream), libc::EPIPE);
    assert_eq!(meaning(libc::EPIPE), SendFailure::Ended);

    let (mut stream, peer) = connected();
    stream.write_all(b"never read").unwrap();
    // Unread bytes make the close a reset. It may arrive later.
    peer.peek(&mut [0]).unwrap();
    drop(peer);
    let errno = loop {
        match fail(&mut stream) {
            libc::EAGAIN => std::thread::yield_now(),
            errno => break errno,
        }
    };
    assert_eq!(errno, libc::ECONNRESET);
    assert_eq!(meaning(errno), SendFailure::Ended);
    assert_eq!(fail(&mut stream), libc::EPIPE);
}
