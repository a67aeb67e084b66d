//! Sockets that several tasks share, and the operations that dropped tasks have left behind.

use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;

use annulus::net::{UnixDatagram, UnixStream};
use annulus::runtime::{spawn, yield_now};
use annulus::time::timeout;

use crate::dropped::polled;
use crate::fixtures::for_each_way;

/// Fills the receiver's queue. Returns the number of datagrams that it took.
async fn fill(sender: &UnixDatagram) -> u32 {
    let mut sent = 0u32;
    while let Some(one) = polled(sender.send(sent.to_le_bytes().to_vec()), 2).await {
        one.unwrap();
        sent += 1;
    }
    sent
}

/// Besides the datagram that did not fit, whose future is dropped, two more are queued.
#[test]
fn datagrams_of_dropped_senders_are_all_sent_when_there_is_space() {
    for_each_way(|_| async {
        let (sender, receiver) = UnixDatagram::pair().unwrap();
        let sent = fill(&sender).await;
        for late in sent + 1..sent + 3 {
            let begun = polled(sender.send(late.to_le_bytes().to_vec()), 2).await;
            assert!(begun.is_none(), "there is no room");
        }
        let mut got = Vec::new();
        for _ in 0..sent + 3 {
            let (bytes, buf) = receiver.recv(vec![0; 4]).await.unwrap();
            assert_eq!(bytes, 4);
            got.push(u32::from_le_bytes(buf.try_into().unwrap()));
        }
        got.sort_unstable();
        assert_eq!(got, (0..sent + 3).collect::<Vec<_>>());
    });
}

#[test]
fn each_of_several_tasks_that_wait_for_space_is_woken() {
    for_each_way(|_| async {
        let (sender, receiver) = UnixDatagram::pair().unwrap();
        let sender = Rc::new(sender);
        let sent = fill(&sender).await;
        let senders: Vec<_> = (0..40)
            .map(|_| {
                let sender = Rc::clone(&sender);
                spawn(async move { sender.send(vec![1; 4]).await.unwrap() })
            })
            .collect();
        for _ in 0..3 {
            yield_now().await;
        }
        for _ in 0..sent + 1 + 40 {
            receiver.recv(vec![0; 4]).await.unwrap();
        }
        for sender in senders {
            sender.await.unwrap();
        }
    });
}

/// A connect either waits until there is space and then succeeds, or reports that there is none.
#[test]
fn a_connect_to_a_full_backlog_does_not_wait_forever() {
    for_each_way(|_| async {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let first = UnixStream::connect(&path).await.unwrap();
        let mut second = Box::pin(UnixStream::connect(&path));
        match timeout(Duration::from_millis(20), second.as_mut()).await {
            Ok(Err(error)) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            Ok(Ok(_)) => panic!("there was no room"),
            Err(_) => {
                listener.accept().unwrap();
                second.await.unwrap();
            }
        }
        drop(first);
    });
}

/// The queue is full of datagrams of another sender, whose receipt reports nothing to this one.
#[test]
fn a_datagram_to_a_path_is_sent_when_its_receiver_has_space() {
    for is_connected in [false, true] {
        for_each_way(move |_| async move {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("socket");
            let receiver = UnixDatagram::bind(&path).unwrap();
            let other = std::os::unix::net::UnixDatagram::unbound().unwrap();
            other.set_nonblocking(true).unwrap();
            let mut left = 0;
            while other.send_to(b"fill", &path).is_ok() {
                left += 1;
            }
            let sender = UnixDatagram::unbound().unwrap();
            if is_connected {
                sender.connect(&path).await.unwrap();
            }
            let mut send = Box::pin(async {
                match is_connected {
                    true => sender.send("here").await,
                    false => sender.send_to("here", &path).await,
                }
            });
            assert!(polled(send.as_mut(), 3).await.is_none());
            while left > 0 {
                receiver.recv(vec![0; 4]).await.unwrap();
                left -= 1;
            }
            send.await.unwrap();
            assert_eq!(receiver.recv(vec![0; 4]).await.unwrap().1, b"here");
        });
    }
}
