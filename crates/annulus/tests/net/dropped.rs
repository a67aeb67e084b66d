//! Futures that are dropped at any point: received data goes to the next receive, and a started send is sent
//! completely.

use std::future::{Future, poll_fn};
use std::net::Shutdown;
use std::pin::pin;
use std::task::Poll;

use annulus::net::{TcpListener, TcpStream};
use annulus::runtime::{spawn, yield_now};

use crate::bytes::{Expected, ask, bytes};
use crate::echo::{connection, listen, serve};
use crate::fixtures::for_each_way;
use crate::kernel::all_but;

/// Polls `future` at most `polls` times, lets the core poll in between, and drops it.
pub(crate) async fn polled<F: Future>(future: F, polls: u32) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        if let Poll::Ready(value) = future.as_mut().poll(context) {
            return Poll::Ready(Some(value));
        }
        if left == 0 {
            return Poll::Ready(None);
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

#[test]
fn dropped_receives_lose_no_data_and_keep_the_order() {
    for_each_way(|_| async {
        let (client, server) = connection().await;
        let sending = spawn(async move {
            let mut random = fastrand::Rng::with_seed(1);
            let mut from = 0;
            while from < 400_000 {
                let count = random.usize(1..3000);
                client.send_all(bytes(5, from, count)).await.unwrap();
                from += count as u64;
                if random.bool() {
                    yield_now().await;
                }
            }
            client.shutdown(Shutdown::Write).unwrap();
            from
        });
        let mut random = fastrand::Rng::with_seed(2);
        let mut expected = Expected::new(5);
        loop {
            let polls = random.u32(0..4);
            if random.bool() {
                let capacity = random.usize(1..2000);
                match polled(server.recv(Vec::with_capacity(capacity)), polls).await {
                    Some(Ok((0, _))) => break,
                    Some(Ok((_, buf))) => expected.check(&buf),
                    Some(Err(error)) => panic!("{error:?}"),
                    None => {}
                }
            } else {
                match polled(server.recv_multishot().next(), polls).await {
                    Some(Some(chunk)) => expected.check(&chunk.unwrap()),
                    Some(None) => break,
                    None => {}
                }
            }
        }
        assert_eq!(expected.count, sending.await.unwrap());
    });
}

/// The first receive is dropped while its request is in the kernel; both have data waiting.
#[test]
fn a_receive_after_a_dropped_one_gets_the_data_it_received() {
    for_each_way(|_| async {
        for round in 0..50 {
            let (client, server) = connection().await;
            client.send_all(bytes(6, 0, 1000)).await.unwrap();
            yield_now().await;
            let mut expected = Expected::new(6);
            for _ in 0..round % 4 {
                let dropped = polled(server.recv(Vec::with_capacity(10)), 1).await;
                if let Some(Ok((_, buf))) = dropped {
                    expected.check(&buf);
                }
            }
            while expected.count < 1000 {
                let (_, buf) = server.recv(Vec::with_capacity(10)).await.unwrap();
                expected.check(&buf);
            }
        }
    });
}

/// Each message has a number. Those that arrive are whole and in order, and no awaited one is missing.
#[test]
fn sends_that_are_dropped_send_all_or_nothing() {
    for_each_way(|_| async {
        let (client, server) = connection().await;
        let sending = spawn(async move {
            let mut random = fastrand::Rng::with_seed(3);
            let mut sure = Vec::new();
            for number in 0..300_u32 {
                let count = if random.u8(..) < 30 { 600_000 } else { 300 };
                let mut message = bytes(u64::from(number), 0, count);
                message[..4].copy_from_slice(&number.to_le_bytes());
                message[4..8].copy_from_slice(&(count as u32).to_le_bytes());
                let polls = if random.bool() {
                    u32::MAX
                } else {
                    random.u32(0..4)
                };
                if let Some(sent) = polled(client.send_all(message), polls).await {
                    sent.unwrap();
                    sure.push(number);
                }
            }
            // Waits until all started sends are complete.
            client.send_all(vec![0xff; 8]).await.unwrap();
            sure
        });
        let mut received = Vec::new();
        let mut stream = Vec::new();
        let mut chunks = server.recv_multishot();
        while let Some(chunk) = chunks.next().await {
            stream.extend_from_slice(&chunk.unwrap());
        }
        let mut rest = &stream[..];
        while rest.len() > 8 {
            let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
            let (number, count) = (word(0), word(4) as usize);
            assert!(count <= rest.len(), "half a message");
            assert_eq!(rest[8..count], bytes(u64::from(number), 8, count - 8));
            received.push(number);
            rest = &rest[count..];
        }
        assert_eq!(rest, [0xff; 8]);
        assert!(received.is_sorted(), "{received:?}");
        let sure = sending.await.unwrap();
        let missing = sure.iter().find(|number| !received.contains(number));
        assert_eq!(missing, None, "was awaited, and did not come");
    });
}

#[test]
fn accepts_and_connects_that_are_dropped_leave_no_connection_open() {
    for_each_way(|_| async {
        let (listener, address) = listen();
        for polls in 0..40 {
            let connecting = spawn(async move {
                drop(polled(TcpStream::connect(address), polls % 4).await);
            });
            drop(polled(listener.accept(), polls % 3).await);
            connecting.await.unwrap();
        }
        // Queued connections are kept for the next accept, which still works.
        let serving = spawn(serve(listener));
        let client = TcpStream::connect(address).await.unwrap();
        ask(&client, bytes(1, 0, 100)).await;
        drop(client);
        all_but(1, address.port()).await;
        serving.abort();
    });
}

#[test]
fn connections_that_were_accepted_and_not_claimed_are_closed() {
    for_each_way(|_| async {
        let (listener, address) = listen();
        let port = address.port();
        let mut incoming = TcpListener::accept_multishot(listener);
        let first = spawn(TcpStream::connect(address));
        let accepted = incoming.next().await.unwrap().unwrap();
        let mut clients = vec![first.await.unwrap().unwrap()];
        for _ in 0..20 {
            clients.push(TcpStream::connect(address).await.unwrap());
        }
        drop(incoming);
        drop(accepted);
        for client in &clients {
            // The end or a reset, because the connections are not used any more.
            let result = client.recv(Vec::with_capacity(1)).await;
            assert!(!matches!(result, Ok((1.., _))));
        }
        drop(clients);
        all_but(0, port).await;
    });
}

#[test]
fn an_operation_that_is_kept_without_a_poll_holds_up_others_until_it_is_dropped() {
    for_each_way(|_| async {
        let (client, server) = connection().await;
        let mut kept = Box::pin(server.recv(vec![0; 4]));
        let early = poll_fn(|context| Poll::Ready(kept.as_mut().poll(context).is_ready())).await;
        assert!(!early);
        client.send_all("data").await.unwrap();
        // The kernel may have given the data to the receive that is kept.
        assert!(polled(server.recv(vec![0; 4]), 100).await.is_none());
        drop(kept);
        assert_eq!(server.recv_exact(vec![0; 4]).await.unwrap(), b"data");

        let mut kept = Box::pin(server.send_all("one, "));
        let _ = poll_fn(|context| Poll::Ready(kept.as_mut().poll(context).is_ready())).await;
        drop(kept);
        server.send_all("two").await.unwrap();
        assert_eq!(client.recv_exact(vec![0; 8]).await.unwrap(), b"one, two");
    });
}
