//! A task that is always ready does not starve others.

use std::cell::Cell;
use std::io::Write;
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use annulus::{runtime, time};

use crate::ways::{ask_and_wait, each_way, listener};

#[test]
fn a_stream_that_never_runs_dry_starves_no_timer_and_no_other_stream() {
    each_way(|builder| {
        let ended = builder.block_on(async {
            let (listener, address) = listener();
            let over = Arc::new(AtomicBool::new(false));
            let stop = Arc::clone(&over);
            let flood = thread::spawn(move || {
                let mut stream = TcpStream::connect(address).unwrap();
                let bytes = vec![1; 256 << 10];
                while !stop.load(Ordering::Relaxed) && stream.write_all(&bytes).is_ok() {}
            });
            let flooded = listener.accept().await.unwrap();
            let reader = runtime::spawn(async move {
                let (mut chunks, mut bytes) = (flooded.recv_multishot(), 0);
                while let Some(chunk) = chunks.next().await {
                    bytes += chunk.unwrap().len() as u64;
                }
                bytes
            });
            let client = thread::spawn(move || ask_and_wait(address, 200));
            let server = listener.accept().await.unwrap();
            let results = runtime::spawn(async move {
                let mut chunks = server.recv_multishot();
                while let Some(Ok(chunk)) = chunks.next().await {
                    server.send_all(chunk).await.unwrap();
                }
            });
            let mut interval = time::interval(Duration::from_millis(1));
            for _ in 0..50 {
                interval.tick().await;
            }
            results.await.unwrap();
            println!("{:?}", runtime::handle().metrics(0));
            over.store(true, Ordering::Relaxed);
            let bytes = reader.await.unwrap();
            flood.join().unwrap();
            client.join().unwrap();
            bytes
        });
        let bytes = ended.unwrap();
        println!("{} MiB read beside it", bytes >> 20);
        assert!(bytes > 0);
    });
}

#[test]
fn a_stream_that_never_runs_dry_delays_another_by_a_budget() {
    each_way(|builder| {
        let ended = builder.block_on(async {
            let (listener, address) = listener();
            let mut clients = [0, 1].map(|_| TcpStream::connect(address).unwrap());
            let full = listener.accept().await.unwrap();
            let other = listener.accept().await.unwrap();
            let read = Rc::new(Cell::new(0));
            let read_before = Rc::clone(&read);
            let waits = runtime::spawn(async move {
                other.recv(vec![0; 8]).await.unwrap();
                read_before.get()
            });
            runtime::yield_now().await;
            clients[0].write_all(&vec![1; 100 << 10]).unwrap();
            clients[1].write_all(b"ready").unwrap();
            drop(runtime::spawn(async move {
                let mut buf = vec![0; 1];
                while let Ok((1, same)) = full.recv(buf).await {
                    buf = same;
                    read.set(read.get() + 1);
                }
            }));
            waits.await.unwrap()
        });
        let read = ended.unwrap();
        println!("{read} receives before it");
        // Some budgets of 128.
        assert!(read <= 1000, "{read}");
    });
}

#[test]
fn tasks_that_are_always_ready_starve_no_timer() {
    each_way(|builder| {
        let ended = builder.block_on(async {
            for _ in 0..1000 {
                runtime::spawn(async {
                    loop {
                        runtime::yield_now().await;
                    }
                });
            }
            let (listener, address) = listener();
            let client = thread::spawn(move || ask_and_wait(address, 20));
            let server = listener.accept().await.unwrap();
            let mut chunks = server.recv_multishot();
            while let Some(Ok(chunk)) = chunks.next().await {
                server.send_all(chunk).await.unwrap();
            }
            time::sleep(Duration::from_millis(5)).await;
            client.join().unwrap();
        });
        ended.unwrap();
    });
}
