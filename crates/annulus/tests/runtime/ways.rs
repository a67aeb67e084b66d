//! The backends of the runtime tests, and shared helpers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use annulus::Backend;
use annulus::net::TcpListener;
use annulus::runtime::{Runtime, RuntimeBuilder};
use annulus_testing::skip::skip;

/// Runs `test` with a builder for each backend. The builders have one thread.
pub(crate) fn each_way(test: impl Fn(RuntimeBuilder)) {
    for backend in [Backend::Uring, Backend::Fallback] {
        let builder = Runtime::builder().backend(backend).cores(1);
        match builder.clone().block_on(async {}) {
            Ok(()) => test(builder),
            Err(error) => skip(format_args!("{backend:?}: {error}")),
        }
    }
}

/// Returns a listener of the calling core, and its address.
pub(crate) fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Sends `rounds` messages from a thread, each after the response to the previous one.
pub(crate) fn ask_and_wait(address: SocketAddr, rounds: u32) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    for round in 0..rounds {
        stream.write_all(&round.to_le_bytes()).unwrap();
        let mut response = [0; 4];
        stream.read_exact(&mut response).unwrap();
        assert_eq!(response, round.to_le_bytes());
    }
}

/// Counts its drops.
#[derive(Clone, Debug, Default)]
pub(crate) struct Drops(pub(crate) Arc<AtomicUsize>);

impl Drops {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    pub(crate) fn guard(&self) -> DropGuard {
        DropGuard(Arc::clone(&self.0))
    }
}

#[derive(Debug)]
pub(crate) struct DropGuard(Arc<AtomicUsize>);

impl Drop for DropGuard {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A number that a task waits for, and any thread can increase.
#[derive(Clone, Default)]
pub(crate) struct Tally(Arc<Mutex<(u64, Option<Waker>)>>);

impl Tally {
    pub(crate) fn raise(&self) {
        let mut tally = self.0.lock().unwrap();
        tally.0 += 1;
        let waker = tally.1.take();
        drop(tally);
        waker.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.lock().unwrap().0
    }

    /// Completes when the number is at least `want`.
    pub(crate) async fn reach(&self, want: u64) {
        std::future::poll_fn(|context| {
            let mut tally = self.0.lock().unwrap();
            if tally.0 >= want {
                return std::task::Poll::Ready(());
            }
            tally.1 = Some(context.waker().clone());
            std::task::Poll::Pending
        })
        .await;
    }
}
