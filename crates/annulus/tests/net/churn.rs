//! Short connections: nothing is left of those that have ended.

use annulus::net::TcpStream;
use annulus::runtime::spawn;
use annulus_testing::skip;

use crate::bytes::{ask, bytes};
use crate::echo::{listen, serve};
use crate::fixtures::{BACKENDS, for_each_way};
use crate::kernel::{all_but, all_gone, close_wait};

/// Makes `count` connections with one request each, `abreast` at a time.
pub(crate) async fn come_and_go(address: std::net::SocketAddr, count: u64, abreast: u64) {
    let clients: Vec<_> = (0..abreast)
        .map(|first| {
            spawn(async move {
                let mut number = first;
                while number < count {
                    let client = TcpStream::connect(address).await.unwrap();
                    ask(&client, bytes(number, 0, 16)).await;
                    number += abreast;
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
}

#[test]
fn twenty_thousand_connections_leave_nothing_behind() {
    for_each_way(|way| async move {
        let count = if way.is_large() { 20_000 } else { 2_000 };
        let (listener, address) = listen();
        let serving = spawn(serve(listener));
        come_and_go(address, count, 8).await;
        all_but(1, address.port()).await;
        serving.abort();
        let _ = serving.await;
        all_but(0, address.port()).await;
    });
}

/// If a receive in flight on one connection keeps another's socket alive (trap 39), all connections that have ended
/// since then stay in CLOSE_WAIT.
#[test]
fn idle_connections_keep_no_other_in_close_wait() {
    for_each_way(|way| async move {
        let count = if way.is_large() { 10_000 } else { 1_000 };
        let (listener, address) = listen();
        let serving = spawn(serve(listener));
        let mut idle = Vec::new();
        for seed in 0..50 {
            let client = TcpStream::connect(address).await.unwrap();
            ask(&client, bytes(seed, 0, 16)).await;
            idle.push(client);
        }
        come_and_go(address, count, 8).await;
        // The listener, and both ends of the idle connections.
        all_but(101, address.port()).await;
        assert_eq!(close_wait(address.port()), 0);
        for client in &idle {
            ask(client, bytes(1, 0, 16)).await;
        }
        serving.abort();
    });
}

/// A core ends with accepts, receives, sends and connects in flight.
#[test]
fn a_runtime_that_ends_with_everything_in_flight_leaves_nothing() {
    for way in BACKENDS {
        let (sender, receiver) = std::sync::mpsc::channel();
        let main = move |_| {
            let sender = sender.clone();
            async move {
                let (listener, address) = listen();
                sender.send(address.port()).unwrap();
                drop(spawn(serve(listener)));
                for number in 0..64 {
                    let client = TcpStream::connect(address).await?;
                    drop(spawn(async move {
                        if number % 2 == 0 {
                            // More than the socket buffers hold, and the response is never read.
                            let _ = client.send_all(vec![7; 16 << 20]).await;
                        }
                        let _ = client.recv(Vec::with_capacity(100)).await;
                        let _ = client.recv_multishot().next().await;
                    }));
                }
                for _ in 0..64 {
                    drop(spawn(TcpStream::connect(address)));
                }
                Ok(())
            }
        };
        match way.builder().run(main) {
            Ok(()) => all_gone(receiver.recv().unwrap()),
            Err(error) => skip::skip(format_args!("{way:?}: {error}")),
        }
    }
}
