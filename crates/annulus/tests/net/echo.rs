//! Sent data is echoed, for any size and any segmentation.

use std::net::{Shutdown, SocketAddr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net as std_unix;
use std::rc::Rc;

use annulus::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use annulus::runtime::spawn;

use crate::bytes::{Expected, ask, bytes};
use crate::fixtures::for_each_way;

/// Returns a listener on a free port.
pub(crate) fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Returns the two ends of a connection, with `TCP_NODELAY` set.
pub(crate) async fn connection() -> (TcpStream, TcpStream) {
    let (listener, address) = listen();
    let connecting = spawn(TcpStream::connect(address));
    let accepted = listener.accept().await.unwrap();
    let connected = connecting.await.unwrap().unwrap();
    accepted.set_nodelay(true).unwrap();
    connected.set_nodelay(true).unwrap();
    (connected, accepted)
}

/// Echoes on each connection until it ends. Errors of one connection do not affect others.
pub(crate) async fn serve(listener: TcpListener) {
    let mut incoming = listener.accept_multishot();
    while let Some(Ok(stream)) = incoming.next().await {
        drop(spawn(echo_all(stream)));
    }
}

pub(crate) async fn echo_all(stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut chunks = stream.recv_multishot();
    while let Some(Ok(chunk)) = chunks.next().await {
        if stream.send_all(chunk).await.is_err() {
            return;
        }
    }
}

/// Echoes received data through a caller's buffer.
async fn answer_with_a_buffer(stream: TcpStream) {
    let mut buf = Vec::with_capacity(1000);
    while let Ok((1.., received)) = stream.recv(buf).await {
        let Ok(mut sent) = stream.send_all(received).await else {
            return;
        };
        sent.clear();
        buf = sent;
    }
}

const SIZES: [usize; 14] = [
    1, 2, 63, 64, 65, 4095, 4096, 4097, 16_384, 65_535, 65_536, 65_537, 262_145, 1_000_003,
];

/// Sends on one side of `stream` while the other side receives, because the data exceeds the
/// kernel's buffers.
async fn there_and_back(stream: Rc<TcpStream>, seed: u64, size: usize) {
    let sends = Rc::clone(&stream);
    let sender = spawn(async move {
        sends.send_all(bytes(seed, 0, size)).await.unwrap();
    });
    let mut expected = Expected::new(seed);
    let mut chunks = stream.recv_multishot();
    while expected.count < size as u64 {
        expected.check(&chunks.next().await.unwrap().unwrap());
    }
    assert_eq!(expected.count, size as u64);
    sender.await.unwrap();
}

#[test]
fn an_echo_of_any_size_returns_every_byte() {
    for_each_way(|_| async {
        for with_a_buffer in [false, true] {
            let (client, server) = connection().await;
            let client = Rc::new(client);
            let serving = if with_a_buffer {
                spawn(answer_with_a_buffer(server))
            } else {
                spawn(echo_all(server))
            };
            for (seed, size) in SIZES.into_iter().enumerate() {
                there_and_back(Rc::clone(&client), seed as u64, size).await;
            }
            drop(client);
            serving.await.unwrap();
        }
    });
}

#[test]
fn a_unix_stream_returns_every_byte_and_then_its_end() {
    for_each_way(|_| async {
        let (client, server) = UnixStream::pair().unwrap();
        let serving = spawn(async move {
            let mut chunks = server.recv_multishot();
            while let Some(chunk) = chunks.next().await {
                server.send_all(chunk.unwrap()).await.unwrap();
            }
        });
        let client = Rc::new(client);
        let sends = Rc::clone(&client);
        let size: usize = SIZES.iter().sum();
        let sender = spawn(async move {
            let mut from = 0;
            for size in SIZES {
                sends.send_all(bytes(7, from, size)).await.unwrap();
                from += size as u64;
            }
            sends.shutdown(Shutdown::Write).unwrap();
        });
        let mut expected = Expected::new(7);
        let mut chunks = client.recv_multishot();
        while let Some(chunk) = chunks.next().await {
            expected.check(&chunk.unwrap());
        }
        assert_eq!(expected.count, size as u64);
        sender.await.unwrap();
        serving.await.unwrap();
    });
}

#[test]
fn segments_of_one_byte_are_put_together_again() {
    for_each_way(|_| async {
        let (client, server) = connection().await;
        let serving = spawn(echo_all(server));
        for position in 0..500 {
            ask(&client, bytes(1, position, 1)).await;
        }
        // Many segments at the same time.
        for position in 0..2000 {
            client.send_all(bytes(2, position, 1)).await.unwrap();
        }
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(crate::bytes::receive_all(&client, 2).await, 2000);
        serving.await.unwrap();
    });
}

#[test]
fn several_tasks_that_receive_from_one_stream_all_get_data() {
    for_each_way(|_| async {
        let (sender, receiver) = connection().await;
        let receiver = Rc::new(receiver);
        let tasks: Vec<_> = (0..5)
            .map(|_| {
                let receiver = Rc::clone(&receiver);
                spawn(async move { receiver.recv(Vec::with_capacity(1)).await.unwrap() })
            })
            .collect();
        // All of them wait by now.
        annulus::runtime::yield_now().await;
        annulus::runtime::yield_now().await;
        sender.send_all(bytes(3, 0, 5)).await.unwrap();
        let mut got = Vec::new();
        for task in tasks {
            let (count, buf) = task.await.unwrap();
            assert_eq!(count, 1);
            got.extend(buf);
        }
        got.sort_unstable();
        let mut sent = bytes(3, 0, 5);
        sent.sort_unstable();
        assert_eq!(got, sent);
    });
}

#[test]
fn an_abstract_address_has_no_file_and_any_bytes_and_is_free_after_its_end() {
    for_each_way(|way| async move {
        let name = format!("\0annulus/{}/{way:?}\0\u{e9}", std::process::id());
        for round in 0..2 {
            let listener = UnixListener::bind(&name).unwrap();
            let error = UnixListener::bind(&name).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse, "{round}");
            let client = UnixStream::connect(&name).await.unwrap();
            let server = listener.accept().await.unwrap();
            client.send_all("question").await.unwrap();
            let question = server.recv_exact(vec![0; 8]).await.unwrap();
            assert_eq!(question, b"question");
            // Sockets of std have the same name for it.
            let address = std_unix::SocketAddr::from_abstract_name(&name[1..]).unwrap();
            let std_client = std_unix::UnixStream::connect_addr(&address).unwrap();
            listener.accept().await.unwrap();
            drop((std_client, client, server));
            drop(listener);
            freed(&address).await;
        }
        let error = UnixStream::connect(&name).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
        let long = format!("\0{}", "x".repeat(108));
        let error = UnixListener::bind(long).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENAMETOOLONG));
        let error = UnixListener::bind("a\0b").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    });
}

/// Waits until no socket listens at `address`: the kernel may close a listener of a ring a moment later.
async fn freed(address: &std_unix::SocketAddr) {
    while std_unix::UnixStream::connect_addr(address).is_ok() {
        annulus::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}
