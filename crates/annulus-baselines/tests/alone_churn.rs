//! Closed connections leave no descriptor in an echo server. The test has its own process, because it counts all
//! descriptors of the process.

use std::convert::Infallible;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use annulus_baselines::net::{epoll_echo, ring_echo, tokio_echo};

/// Much longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Opens a connection and sends one message. With `stays`, it waits for the response before it closes.
fn visit(address: SocketAddr, stays: bool) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&[7; 3_000]).unwrap();
    if stays {
        let mut back = [0; 3_000];
        stream.read_exact(&mut back).unwrap();
        assert_eq!(back, [7; 3_000]);
    }
}

fn churn(name: &'static str, serve: fn(TcpListener) -> io::Result<Infallible>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let Err(error) = serve(listener);
        println!("{name} has ended: {error}");
    });
    // The response shows that the server has created its own descriptors. Connections of this process are counted at
    // both ends while they are open, so this one stays open.
    let mut idle = TcpStream::connect(address).unwrap();
    idle.set_read_timeout(Some(PATIENCE)).unwrap();
    idle.write_all(b"x").unwrap();
    idle.read_exact(&mut [0]).unwrap();
    let before = descriptors();
    for round in 0..200 {
        visit(address, round % 2 == 0);
    }
    let deadline = Instant::now() + PATIENCE;
    // Fewer are left if the last server has closed its connection meanwhile.
    while descriptors() > before {
        let now = descriptors();
        assert!(
            Instant::now() < deadline,
            "{name}: {before} descriptors before, {now} after"
        );
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn two_hundred_connections_that_went_leave_no_descriptor() {
    churn("epoll", epoll_echo::serve);
    churn("tokio", tokio_echo::serve);
    match io_uring::IoUring::new(1) {
        Ok(ring) => {
            drop(ring);
            churn("ring", ring_echo::serve);
        }
        Err(why) => println!("skip: ring: {why}"),
    }
}
