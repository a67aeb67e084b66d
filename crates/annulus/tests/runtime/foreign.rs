//! Buffers are foreign code: a misbehaving buffer only fails its own operation.

use std::io;

use annulus::net::TcpStream;
use annulus::runtime;
use annulus_testing::panicking_buffer::PanickingBuffer;

use crate::ways::{Drops, each_way, listener};

async fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let (listener, address) = listener();
    let client = TcpStream::connect(address).await?;
    Ok((client, listener.accept().await?))
}

/// Sends so much data that it goes out in parts, with a buffer that panics at one of its calls.
async fn send_with_panicking_buffer(panics_at: u32) -> u32 {
    let (client, server) = pair().await.unwrap();
    let reading = runtime::spawn(async move {
        let mut chunks = server.recv_multishot();
        while let Some(Ok(chunk)) = chunks.next().await {
            drop(chunk);
        }
    });
    let sending = runtime::spawn(async move {
        let sent = client
            .send_all(PanickingBuffer::new(4 << 20, panics_at))
            .await;
        sent.map_err(io::Error::from).map(|buf| buf.calls())
    });
    let calls = match sending.await {
        Ok(Ok(calls)) => calls,
        Ok(Err(error)) => {
            assert!(panics_at > 0, "{error}");
            0
        }
        Err(error) => {
            assert!(
                error.into_panic().is_ok(),
                "the task may panic, and nothing else"
            );
            0
        }
    };
    reading.await.unwrap();
    calls
}

#[test]
fn a_panicking_buffer_fails_only_its_own_send() {
    each_way(|builder| {
        let ended = builder.block_on(async {
            let (client, server) = pair().await.unwrap();
            let waiting = runtime::spawn(async move { server.recv(vec![0; 5]).await });
            let calls = send_with_panicking_buffer(0).await;
            assert!(calls > 3, "the buffer is called before and after");
            for panics_at in 1..=calls {
                send_with_panicking_buffer(panics_at).await;
            }
            // The core is unaffected.
            client.send_all(b"hello".as_slice()).await.unwrap();
            let (bytes, buf) = waiting.await.unwrap().unwrap();
            assert_eq!((bytes, &buf[..]), (5, b"hello".as_slice()));
        });
        ended.unwrap();
    });
}

#[test]
fn a_panicking_file_buffer_leaves_the_sockets_and_other_files_of_its_core_alone() {
    let dir = tempfile::tempdir().unwrap();
    for panics_at in 1..=6 {
        each_way(|builder| {
            let path = dir.path().join("file");
            // The only blocking thread keeps working as well.
            let builder = builder.blocking_threads(1);
            let ended = builder.block_on(async move {
                let (client, server) = pair().await.unwrap();
                let waiting = runtime::spawn(async move { server.recv(vec![0; 5]).await });
                let file = runtime::engine().create(&path).await.unwrap();
                let same = file.clone();
                let writing = runtime::spawn(async move {
                    let written = file
                        .write_at(PanickingBuffer::new(4096, panics_at), 0)
                        .await;
                    written.map(|_| ()).map_err(io::Error::from)
                });
                match writing.await {
                    Ok(Ok(()) | Err(_)) => {}
                    Err(error) => assert!(error.into_panic().is_ok()),
                }
                same.write_all_at(vec![1; 10], 0).await.unwrap();
                client.send_all(b"hello".as_slice()).await.unwrap();
                let (bytes, _) = waiting.await.unwrap().unwrap();
                assert_eq!(bytes, 5);
            });
            ended.unwrap();
        });
    }
}

/// The kernel uses the buffer when the runtime ends; the buffer is dropped after the last task.
#[test]
fn a_task_that_a_buffer_starts_at_the_very_end_is_dropped_with_its_runtime() {
    each_way(|builder| {
        let drops = Drops::default();
        let guard = drops.guard();
        let ended = builder.clone().block_on(async move {
            let (client, server) = pair().await.unwrap();
            let mut buf = PanickingBuffer::new(16, 0);
            buf.on_drop = Some(Box::new(move || {
                drop(runtime::spawn(async move {
                    let _guard = guard;
                    std::future::pending::<()>().await;
                }));
            }));
            drop(runtime::spawn(async move {
                let _client = client;
                server.recv(buf).await.is_ok()
            }));
            for _ in 0..3 {
                runtime::yield_now().await;
            }
        });
        ended.unwrap();
        assert_eq!(drops.count(), 1, "it ends with its runtime");
        builder.block_on(runtime::yield_now()).unwrap();
    });
}

/// The writer's task drops the buffers that are not sent when the runtime ends.
#[test]
fn buffers_of_a_writer_that_panic_in_their_drops_harm_no_core() {
    each_way(|builder| {
        let ended = builder.block_on(async {
            let (client, server) = pair().await.unwrap();
            let mut writer = client.writer().with_limit(usize::MAX);
            writer.write_buf(vec![7; 64 << 20]).await.unwrap(); // more than the kernel takes
            runtime::yield_now().await;
            for _ in 0..3 {
                let mut buf = PanickingBuffer::new(10_000, 0);
                buf.on_drop = Some(Box::new(|| panic!("in a drop, on purpose")));
                assert!(writer.write_buf(buf).await.is_ok());
            }
            // Open until the end of the runtime.
            runtime::spawn(async move {
                let _open = (client, server, writer);
                std::future::pending::<()>().await;
            });
            5
        });
        assert_eq!(ended.unwrap(), 5);
    });
}
