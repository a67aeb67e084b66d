//! Compares the events of a connection, as a function of its states, with those of a socket in these states.

use std::io::{ErrorKind, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::events::tests::all;
use crate::events::{ERR, HUP, IN, OUT, RDHUP, Readiness};
use crate::outbound::{Fin, Outbound};

/// Waits for one of the events, and returns all that hold. Errors and the end of both directions are events as well.
fn events(stream: &TcpStream, awaited: u32, wait_s: i64) -> u32 {
    let flags = |events: u32| PollFlags::from_bits_retain(events as u16);
    let poll = |events: u32, tv_sec: i64| {
        let mut polled = [PollFd::new(stream, flags(events))];
        let timeout = Timespec { tv_sec, tv_nsec: 0 };
        poll(&mut polled, Some(&timeout)).unwrap();
        u32::from(polled[0].revents().bits())
    };
    assert!(
        wait_s == 0 || poll(awaited, wait_s) != 0,
        "no event arrives"
    );
    poll(IN | OUT | RDHUP | HUP | ERR, 0)
}

fn fill(mut stream: &TcpStream) {
    while events(stream, 0, 0) & OUT != 0 {
        match stream.write(&[0; 1 << 16]) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            Ok(bytes) => assert_ne!(bytes, 0),
        }
    }
}

/// Brings a socket into the states, and returns its events. `None`: its peer cannot bring it there.
fn of_kernel(row: Readiness) -> Option<u32> {
    let (is_dead, is_shut) = (row.outbound == Outbound::Dead, row.fin != Fin::Open);
    let is_full = row.outbound == Outbound::Full;
    // An error ends the connection. A connection with two ends cannot be reset.
    let is_elsewhere = row.outbound == Outbound::Broken || is_dead && row.ended && is_shut;
    if is_elsewhere || row.has_error && !is_dead {
        return None;
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut own, _) = listener.accept().unwrap();
    own.set_nonblocking(true).unwrap();
    if row.has_bytes {
        peer.write_all(b"x").unwrap();
        events(&own, IN, 10);
    }
    if is_full {
        fill(&own);
    }
    if is_dead {
        // A close with unread bytes is a reset.
        own.write_all(b"x").unwrap();
        events(&peer, IN, 10);
    }
    if is_shut {
        own.shutdown(Shutdown::Write).unwrap();
    }
    if row.ended {
        peer.shutdown(Shutdown::Write).unwrap();
        events(&own, RDHUP, 10);
    }
    let _peer = match is_dead {
        true => {
            drop(peer);
            // Not RDHUP, which holds already if the peer has sent FIN.
            events(&own, 0, 10);
            None
        }
        false => Some(peer),
    };
    if is_dead && !row.has_error {
        assert!(own.take_error().unwrap().is_some());
    }
    if is_full && !is_shut {
        // The kernel may have moved bytes to the peer's receive buffer since.
        fill(&own);
    }
    Some(events(&own, 0, 0))
}

#[test]
fn a_connection_has_the_events_that_the_kernel_reports_in_the_same_states() {
    let mut compared = 0;
    for row in all() {
        if let Some(expected) = of_kernel(row) {
            assert_eq!(row.events(), expected, "{row:?}");
            compared += 1;
        }
    }
    // Writable or full without an error; dead with and without one, unless both sides have sent FIN.
    assert_eq!(
        compared,
        2 * 3 * 4 + 2 * (3 * 4 - 2 * 2),
        "some states were not reached"
    );
}
