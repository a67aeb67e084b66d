//! Tests of the echo servers: each returns the received bytes in any segmentation, and releases closed connections.

use std::convert::Infallible;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::{epoll_echo, ring_echo, tokio_echo};

type Serve = fn(TcpListener) -> io::Result<Infallible>;

const SERVERS: [(&str, Serve); 3] = [
    ("epoll", epoll_echo::serve),
    ("ring", ring_echo::serve),
    ("tokio", tokio_echo::serve),
];

/// Much longer than any step takes. A server that stalls fails the test instead of blocking it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts each server that can run on this machine, with its own thread and port, until the process ends.
fn servers() -> impl Iterator<Item = (&'static str, SocketAddr)> {
    let here = SERVERS.into_iter().filter(|(name, _)| {
        let refused = io_uring::IoUring::new(1).err().filter(|_| *name == "ring");
        if let Some(why) = &refused {
            println!("skip: {name}: {why}");
        }
        refused.is_none()
    });
    here.map(|(name, serve)| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let Err(error) = serve(listener);
            println!("{name} has ended: {error}");
        });
        (name, address)
    })
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn message(bytes: usize, seed: u64) -> Vec<u8> {
    let mut message = vec![0; bytes];
    fastrand::Rng::with_seed(seed).fill(&mut message);
    message
}

/// Sends from a second thread, as a large message does not fit into a socket's buffers.
fn exchange(stream: &TcpStream, sent: &[u8], name: &str) {
    thread::scope(|scope| {
        scope.spawn(|| (&*stream).write_all(sent).unwrap());
        let mut back = vec![0; sent.len()];
        (&*stream).read_exact(&mut back).unwrap();
        assert!(
            back == sent,
            "{name}: {} bytes came back changed",
            sent.len()
        );
    });
}

/// Returns the number of bytes before the end of the stream. Continues after EINTR, as the kernel interrupts a thread
/// once for a ring that it has closed.
fn rest(stream: &mut TcpStream) -> usize {
    stream.read_to_end(&mut Vec::new()).unwrap()
}

#[test]
fn what_several_connections_send_comes_back_whole() {
    const SIZES: [usize; 9] = [1, 2, 127, 512, 4_095, 4_096, 4_097, 65_537, 200_000];
    for (name, address) in servers() {
        thread::scope(|scope| {
            for client in 0..8 {
                scope.spawn(move || {
                    let stream = connect(address);
                    for (round, bytes) in SIZES.into_iter().cycle().take(27).enumerate() {
                        exchange(&stream, &message(bytes, client * 100 + round as u64), name);
                    }
                });
            }
        });
    }
}

#[test]
fn more_connections_than_buffers_all_get_their_response() {
    for (name, address) in servers() {
        let streams: Vec<TcpStream> = (0..300).map(|_| connect(address)).collect();
        // 300 messages of three buffers each. All are sent before the first is read.
        for (index, mut stream) in streams.iter().enumerate() {
            stream.write_all(&message(10_000, index as u64)).unwrap();
        }
        for (index, mut stream) in streams.iter().enumerate() {
            let mut back = vec![0; 10_000];
            stream.read_exact(&mut back).unwrap();
            assert!(
                back == message(10_000, index as u64),
                "{name}: connection {index}"
            );
        }
        for stream in &streams {
            exchange(stream, b"still there", name);
        }
    }
}

#[test]
fn after_a_half_close_the_rest_still_comes_back() {
    for (name, address) in servers() {
        let mut stream = connect(address);
        let sent = message(200_000, 1);
        thread::scope(|scope| {
            scope.spawn(|| {
                (&stream).write_all(&sent).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
            });
            let mut back = Vec::new();
            (&stream).read_to_end(&mut back).unwrap();
            assert!(
                back == sent,
                "{name}: {} of {} bytes",
                back.len(),
                sent.len()
            );
        });
        assert_eq!(rest(&mut stream), 0, "{name}");
    }
}

#[test]
fn two_hundred_connections_that_went_leave_no_socket() {
    for (name, address) in servers() {
        let stays = connect(address);
        exchange(&stays, b"before", name);
        for round in 0..200u64 {
            let mut stream = connect(address);
            match round % 4 {
                // The client sends nothing.
                0 => {}
                1 => exchange(&stream, b"once", name),
                // The client leaves before the response, so the server's send may fail with a reset.
                2 => stream.write_all(&message(30_000, round)).unwrap(),
                _ => {
                    exchange(&stream, &message(5_000, round), name);
                    stream.shutdown(Shutdown::Write).unwrap();
                    assert_eq!(rest(&mut stream), 0, "{name}");
                }
            }
        }
        exchange(&stays, b"after", name);
        let deadline = Instant::now() + PATIENCE;
        while held(address) != [stays.local_addr().unwrap().port()] {
            let held = held(address);
            assert!(Instant::now() < deadline, "{name} holds {held:?}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Returns the remote ports of the connections that a server at `address` still holds: established, or closed by the
/// peer only. Sockets that the server has closed may linger in the kernel, and are not counted.
fn held(address: SocketAddr) -> Vec<u16> {
    const ESTABLISHED: &str = "01";
    const CLOSE_WAIT: &str = "08";
    let port = |end: &str| u16::from_str_radix(end.rsplit(':').next().unwrap(), 16).unwrap();
    let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
    let rows = table.lines().skip(1).filter_map(|row| {
        let mut cells = row.split_whitespace().skip(1);
        let (local, remote, state) = (cells.next()?, cells.next()?, cells.next()?);
        let counts = port(local) == address.port() && [ESTABLISHED, CLOSE_WAIT].contains(&state);
        counts.then(|| port(remote))
    });
    rows.collect()
}
