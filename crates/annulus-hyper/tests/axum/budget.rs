//! A peer that sends without a pause starves no other task of its core. These tests count operations, and no time.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};

use annulus::net::UnixStream;
use annulus::runtime::{self, Runtime};
use annulus_hyper::HyperStream;
use axum::Router;
use axum::extract::ws::{WebSocket, WebSocketUpgrade};
use axum::routing::any;
use hyper::rt::{Read, ReadBuf, Write};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{Serve, Site, backends, each_way_with, until};

/// The operations of one poll.
const OPERATIONS_MAX: u64 = 128;
/// More than those, and fewer than a received chunk has bytes.
const MANY: u64 = 1000;
/// The bytes that one read of the WebSocket returns at most.
const READ_BYTES: usize = 16;
/// A ping without a payload.
const PING: [u8; 6] = [0x89, 0x80, 0, 0, 0, 0];

/// The largest number of pings that a WebSocket received between two turns of another task of its core.
static LONGEST: AtomicU64 = AtomicU64::new(0);

async fn count_pings(mut socket: WebSocket) {
    let turns = Arc::new(AtomicU64::new(0));
    let counted = Arc::downgrade(&turns);
    drop(runtime::spawn(async move {
        while let Some(turns) = counted.upgrade() {
            turns.fetch_add(1, Ordering::Relaxed);
            drop(turns);
            runtime::yield_now().await;
        }
    }));
    let (mut run, mut last) = (0, 0);
    while let Some(Ok(_)) = socket.recv().await {
        let now = turns.load(Ordering::Relaxed);
        run = if now == last { run + 1 } else { 1 };
        last = now;
        LONGEST.fetch_max(run, Ordering::Relaxed);
    }
}

/// Sends pings until the task is aborted.
async fn flood(site: &Site) -> tokio::task::JoinHandle<()> {
    let mut stream = site.connect().await;
    let upgrade = "GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
        sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(upgrade.as_bytes()).await.unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 101");
    tokio::spawn(async move {
        let (mut responses, mut pings) = stream.into_split();
        let block = PING.repeat(10_000);
        let send = async { while pings.write_all(&block).await.is_ok() {} };
        let mut sink = tokio::io::sink();
        let read = tokio::io::copy(&mut responses, &mut sink);
        drop(tokio::join!(send, read));
    })
}

#[test]
fn a_websocket_that_is_flooded_with_pings_lets_other_requests_run() {
    let app = || {
        let upgrade = |upgrade: WebSocketUpgrade| async {
            let upgrade = upgrade.read_buffer_size(READ_BYTES);
            upgrade.on_upgrade(count_pings)
        };
        Router::new().route("/", any(upgrade))
    };
    let one_core = |serve: Serve<Router>| serve.runtime(|runtime| runtime.cores(1));
    each_way_with(app, one_core, |site| async {
        LONGEST.store(0, Ordering::Relaxed);
        let flood = flood(&site).await;
        // The socket was always ready for a while.
        until(|| LONGEST.load(Ordering::Relaxed) >= OPERATIONS_MAX / 4).await;
        site.serve_others().await;
        flood.abort();
        let longest = LONGEST.load(Ordering::Relaxed);
        println!("at most {longest} pings in a row");
        // The reads of one poll, and one ping that was received in part before.
        let pings_max = OPERATIONS_MAX * READ_BYTES as u64 / PING.len() as u64 + 1;
        assert!(longest <= pings_max, "{longest} pings in a row");
        site
    });
}

#[derive(Default)]
struct Wakes(AtomicU64);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Polls `ready` until it is pending, at most `MANY` times. Returns how often it was ready and its waker was woken.
fn ready_in_a_row(mut ready: impl FnMut(&mut Context<'_>) -> bool) -> (u64, u64) {
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(Arc::clone(&wakes));
    let mut context = Context::from_waker(&waker);
    let times = (0..MANY).take_while(|_| ready(&mut context)).count();
    (times as u64, wakes.0.load(Ordering::SeqCst))
}

fn read_one<S: Read + Unpin>(stream: &mut S, context: &mut Context<'_>) -> bool {
    let mut memory = [0];
    let mut buf = ReadBuf::new(&mut memory);
    let polled = Pin::new(stream).poll_read(context, buf.unfilled());
    ready_with(polled, |result| result.is_ok() && buf.filled().len() == 1)
}

fn write_one<S: Write + Unpin>(stream: &mut S, context: &mut Context<'_>) -> bool {
    let polled = Pin::new(stream).poll_write(context, b"x");
    ready_with(polled, |written| matches!(written, Ok(1)))
}

/// Returns whether `polled` is ready, and checks its value.
fn ready_with<T>(polled: Poll<T>, check: impl FnOnce(T) -> bool) -> bool {
    match polled {
        Poll::Ready(value) => {
            assert!(check(value));
            true
        }
        Poll::Pending => false,
    }
}

/// Returns a stream that has received bytes, and its peer.
async fn received() -> (HyperStream<UnixStream>, UnixStream) {
    let (near, far) = UnixStream::pair().unwrap();
    far.send_all(vec![1; 2 * MANY as usize]).await.unwrap();
    let mut stream = HyperStream::new(near);
    poll_fn(|context| match read_one(&mut stream, context) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
    runtime::yield_now().await;
    (stream, far)
}

#[test]
fn a_stream_on_its_core_is_ready_as_often_as_its_budget_allows() {
    for backend in backends() {
        let builder = Runtime::builder().backend(backend).cores(1);
        let counted = builder.block_on(async {
            let (mut stream, _far) = received().await;
            let reads = ready_in_a_row(|context| read_one(&mut stream, context));
            runtime::yield_now().await;
            let writes = ready_in_a_row(|context| write_one(&mut stream, context));
            (reads, writes)
        });
        let all = (OPERATIONS_MAX, 1);
        assert_eq!(counted.unwrap(), (all, all), "{backend:?}");
    }
}

#[test]
fn a_stream_on_another_thread_is_ready_as_often_as_its_budget_allows() {
    for backend in backends() {
        let builder = Runtime::builder().backend(backend).cores(1);
        let counted = builder.block_on(async {
            let (mut stream, far) = received().await;
            let (send, counted) = mpsc::channel();
            let other = std::thread::spawn(move || {
                let (woken, wakes) = mpsc::channel();
                let waker = Waker::from(Arc::new(Notify(woken)));
                let mut context = Context::from_waker(&waker);
                // The pipe opens, and receives what the core has.
                while !read_one(&mut stream, &mut context) {
                    wakes.recv().unwrap();
                }
                let reads = ready_in_a_row(|context| read_one(&mut stream, context));
                let writes = ready_in_a_row(|context| write_one(&mut stream, context));
                send.send((reads, writes)).unwrap();
                drop(stream);
            });
            let counted = loop {
                match counted.try_recv() {
                    Ok(counted) => break counted,
                    Err(_) => runtime::yield_now().await,
                }
            };
            other.join().unwrap();
            drop(far);
            counted
        });
        // The first read has taken one already.
        let (reads, writes) = counted.unwrap();
        assert_eq!(reads, (OPERATIONS_MAX - 1, 1), "{backend:?}");
        assert_eq!(writes, (OPERATIONS_MAX, 1), "{backend:?}");
    }
}

struct Notify(mpsc::Sender<()>);

impl Wake for Notify {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}
