//! A listener with a limit: it does not accept more connections than the program can take.

use annulus::net::TcpStream;
use annulus::runtime::spawn;

use crate::bytes::{ask, bytes};
use crate::echo::{echo_all, listen};
use crate::fixtures::for_each_way;

const CLIENTS: usize = 20;

#[test]
fn connections_above_the_limit_wait_in_the_backlog_until_it_is_raised() {
    for_each_way(|_| async {
        let (listener, address) = listen();
        let mut incoming = listener.accept_multishot();
        incoming.set_limit(1);
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(TcpStream::connect(address).await.unwrap());
        }
        let first = incoming.next().await.unwrap().unwrap();
        // After a round trip, the core has processed all events of the kernel.
        drop(spawn(echo_all(first)));
        ask(&clients[0], bytes(1, 0, 100)).await;
        assert_eq!(incoming.queued(), 0, "accepted without a request");
        incoming.set_limit(usize::MAX);
        let mut accepted = Vec::new();
        while accepted.len() < CLIENTS - 1 {
            accepted.push(incoming.next().await.unwrap().unwrap());
        }
        // A multishot accept is cancelled, and the connections that it has already accepted are not lost.
        incoming.set_limit(1);
        for _ in 0..CLIENTS {
            clients.push(TcpStream::connect(address).await.unwrap());
        }
        while accepted.len() < 2 * CLIENTS - 1 {
            accepted.push(incoming.next().await.unwrap().unwrap());
        }
        assert_eq!(incoming.queued(), 0);
    });
}
