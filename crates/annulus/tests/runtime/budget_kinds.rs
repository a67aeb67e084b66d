//! Each kind of future that may be ready many times in a row takes from the budget of its task's poll. These tests
//! count operations, and no time.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};
use std::rc::Rc;
use std::time::Duration;

use annulus::net::{AsyncStream, TcpListener, UdpSocket, UnixStream};
use annulus::{runtime, time};

use crate::ways::{each_way, listener};

/// The operations of one poll.
const OPERATIONS_MAX: usize = 128;
/// The bytes of one poll.
const BYTES_MAX: usize = 1 << 20;
/// More operations than one poll may complete.
const MANY: usize = 200;

/// Runs `ready` several times. Returns the largest number of calls between two turns of another task.
async fn longest_run(times: usize, mut ready: impl AsyncFnMut()) -> usize {
    let turns = Rc::new(Cell::new(0_u64));
    let counted = Rc::clone(&turns);
    let other = runtime::spawn(async move {
        loop {
            counted.set(counted.get() + 1);
            runtime::yield_now().await;
        }
    });
    runtime::yield_now().await;
    let (mut longest, mut run, mut last) = (0, 0, turns.get());
    for _ in 0..times {
        ready().await;
        run = if turns.get() == last { run + 1 } else { 1 };
        last = turns.get();
        longest = longest.max(run);
    }
    other.abort();
    longest
}

/// Returns a stream with unread bytes, and its peer.
async fn with_unread_bytes() -> (UnixStream, UnixStream) {
    let (near, far) = UnixStream::pair().unwrap();
    far.send_all(vec![1; 2048]).await.unwrap();
    let mut chunks = near.recv_multishot();
    let chunk = chunks.next().await.unwrap().unwrap();
    assert!(chunk.len() > MANY);
    chunks.unread(chunk);
    (near, far)
}

#[test]
fn a_read_of_an_async_stream() {
    each_way(|builder| {
        let longest = builder.block_on(async {
            let (near, _far) = with_unread_bytes().await;
            let mut stream = AsyncStream::new(near);
            longest_run(MANY, async || {
                let filled =
                    poll_fn(|context| stream.fill(context).map_ok(|bytes| bytes.is_empty()));
                assert!(!filled.await.unwrap());
                stream.advance(1);
            })
            .await
        });
        assert_eq!(longest.unwrap(), OPERATIONS_MAX);
    });
}

#[test]
fn a_write() {
    each_way(|builder| {
        let longest = builder.block_on(async {
            let (near, _far) = UnixStream::pair().unwrap();
            let mut writer = near.writer();
            longest_run(MANY, async || writer.write(b"x").await.unwrap()).await
        });
        assert_eq!(longest.unwrap(), OPERATIONS_MAX);
    });
}

#[test]
fn a_multishot_receive() {
    each_way(|builder| {
        let longest = builder.block_on(async {
            let (near, _far) = with_unread_bytes().await;
            let mut chunks = near.recv_multishot();
            longest_run(MANY, async || {
                let chunk = chunks.next().await.unwrap().unwrap();
                chunks.unread(chunk);
            })
            .await
        });
        assert_eq!(longest.unwrap(), OPERATIONS_MAX);
    });
}

#[test]
fn a_receive_into_a_buffer() {
    each_way(|builder| {
        let longest = builder.block_on(async {
            let (near, _far) = with_unread_bytes().await;
            let one = longest_run(MANY, async || {
                let (bytes, _) = near.recv(vec![0; 1]).await.unwrap();
                assert_eq!(bytes, 1);
            });
            let one = one.await;
            let exact = longest_run(MANY, async || {
                near.recv_exact(vec![0; 1]).await.unwrap();
            });
            (one, exact.await)
        });
        assert_eq!(longest.unwrap(), (OPERATIONS_MAX, OPERATIONS_MAX));
    });
}

#[test]
fn bytes_count_as_well() {
    const BYTES: usize = 64 << 10;
    each_way(|builder| {
        let longest = builder.block_on(async {
            let (near, _far) = UnixStream::pair().unwrap();
            let mut writer = near.writer().with_limit(MANY * BYTES);
            let bytes = vec![1; BYTES];
            longest_run(MANY, async || writer.write(&bytes).await.unwrap()).await
        });
        let longest = longest.unwrap();
        assert!(
            (2..=BYTES_MAX / BYTES).contains(&longest),
            "{longest} writes of {BYTES} bytes"
        );
    });
}

#[test]
fn a_datagram() {
    each_way(|builder| {
        let longest = builder.block_on(async {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let sender = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            for _ in 0..MANY {
                let to = socket.local_addr().unwrap();
                sender.send_to(b"x", to).unwrap();
            }
            let mut datagrams = socket.recv_multishot();
            longest_run(MANY, async || drop(datagrams.next().await.unwrap())).await
        });
        // A ring queues fewer of them.
        assert!(longest.unwrap() <= OPERATIONS_MAX);
    });
}

#[test]
fn an_accept() {
    each_way(|builder| {
        let longest = builder.block_on(async {
            let (listener, address): (TcpListener, _) = listener();
            let clients = [(); MANY].map(|()| TcpStream::connect(address).unwrap());
            let mut incoming = listener.accept_multishot();
            let longest = longest_run(MANY, async || {
                drop(incoming.next().await.unwrap().unwrap());
            });
            let longest = longest.await;
            drop(clients);
            longest
        });
        assert!(longest.unwrap() <= OPERATIONS_MAX);
    });
}

#[test]
fn a_cached_read() {
    each_way(|builder| {
        let longest = builder.block_on(async {
            let mut named = tempfile::NamedTempFile::new().unwrap();
            named.write_all(&[1; 4096]).unwrap();
            let file =
                annulus::File::from_std(named.reopen().unwrap(), &runtime::engine()).unwrap();
            longest_run(MANY, async || {
                file.read_at(vec![0; 4096], 0).await.unwrap();
            })
            .await
        });
        assert!(longest.unwrap() <= OPERATIONS_MAX);
    });
}

#[test]
fn a_sleep_of_no_time() {
    each_way(|builder| {
        let longest = builder.block_on(async {
            let sleeps = longest_run(MANY, async || time::sleep(Duration::ZERO).await).await;
            let mut interval = time::interval(Duration::from_nanos(1));
            (
                sleeps,
                longest_run(MANY, async || interval.tick().await).await,
            )
        });
        let (sleeps, ticks) = longest.unwrap();
        assert_eq!(sleeps, OPERATIONS_MAX);
        assert!(ticks <= OPERATIONS_MAX, "{ticks}");
    });
}

/// A timeout ends a future that uses the budget up in each poll.
#[test]
fn a_timeout_beside_a_future_that_uses_the_budget_up() {
    each_way(|builder| {
        let ended = builder.block_on(async {
            let always = async {
                loop {
                    time::sleep(Duration::ZERO).await;
                }
            };
            time::timeout(Duration::ZERO, always).await.is_err()
        });
        assert!(ended.unwrap());
    });
}
