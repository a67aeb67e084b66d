//! Tokio's context on the cores of a runtime.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use annulus::Backend;
use annulus::runtime::{self, Runtime, RuntimeBuilder};
use annulus_testing::skip::skip;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Longer than any test takes.
const NEVER: Duration = Duration::from_secs(3_600);

/// Runs `test` with a builder for each backend.
fn each_way(test: impl Fn(RuntimeBuilder)) {
    for backend in [Backend::Uring, Backend::Fallback] {
        let builder = Runtime::builder().backend(backend).threads(1);
        match builder.clone().block_on(async {}) {
            Ok(()) => test(builder),
            Err(error) => skip(format_args!("{backend:?}: {error}")),
        }
    }
}

fn tokio_runtime() -> tokio::runtime::Runtime {
    let builder = tokio::runtime::Builder::new_multi_thread();
    { builder }.worker_threads(1).enable_all().build().unwrap()
}

/// Sets a flag when it is dropped.
struct Sets(Arc<AtomicBool>);

impl Drop for Sets {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

async fn clocks() {
    tokio::time::sleep(Duration::from_millis(1)).await;
    let late = tokio::time::timeout(Duration::from_millis(1), pending::<()>()).await;
    assert!(late.is_err());
    let mut interval = tokio::time::interval(Duration::from_millis(1));
    for _ in 0..3 {
        interval.tick().await;
    }
}

async fn tasks() -> io::Result<()> {
    assert_eq!(tokio::spawn(async { 7 }).await?, 7);
    assert_eq!(tokio::task::spawn_blocking(|| 8).await?, 8);
    assert_eq!(tokio::task::block_in_place(|| 9), 9);
    tokio::task::yield_now().await;
    let mut set = JoinSet::new();
    (0..5).for_each(|number| drop(set.spawn(async move { number })));
    let mut sum = 0;
    while let Some(number) = set.join_next().await {
        sum += number?;
    }
    assert_eq!(sum, 10);
    Ok(())
}

async fn channels() {
    let (sender, mut receiver) = mpsc::channel(1);
    let thread = std::thread::spawn(move || {
        (0..100).for_each(|number| sender.blocking_send(number).unwrap());
    });
    for number in 0..100 {
        tokio::select! {
            received = receiver.recv() => assert_eq!(received, Some(number)),
            () = tokio::time::sleep(NEVER) => panic!("nothing arrived"),
        }
    }
    thread.join().unwrap();
}

async fn sockets() -> io::Result<()> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let client = runtime::spawn(async move {
        let mut stream = tokio::net::TcpStream::connect(address).await?;
        stream.write_all(b"hello").await?;
        stream.shutdown().await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        io::Result::Ok(text)
    });
    let (mut stream, _) = listener.accept().await?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await?;
    stream.write_all(&bytes).await?;
    drop(stream);
    assert_eq!(client.await??, "hello");
    Ok(())
}

async fn files_and_processes() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("file");
    tokio::fs::write(&path, "text").await?;
    assert_eq!(tokio::fs::read_to_string(&path).await?, "text");
    let echo = tokio::process::Command::new("echo").arg("hi").output();
    assert_eq!(echo.await?.stdout, b"hi\n");
    Ok(())
}

async fn signals() -> io::Result<()> {
    let kind = tokio::signal::unix::SignalKind::user_defined1();
    let mut signals = tokio::signal::unix::signal(kind)?;
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::USR1)?;
    signals.recv().await;
    Ok(())
}

#[test]
fn tokio_works_in_the_tasks_of_each_core() {
    each_way(|builder| {
        let ended = builder.threads(2).with_tokio().run(|_core| async {
            clocks().await;
            tasks().await?;
            channels().await;
            sockets().await?;
            files_and_processes().await?;
            signals().await
        });
        ended.unwrap();
    });
}

#[test]
fn the_tokio_runtime_ends_after_the_cores_and_drops_its_tasks() {
    each_way(|builder| {
        let dropped = Arc::new(AtomicBool::new(false));
        let sets = Sets(Arc::clone(&dropped));
        let ended = builder.with_tokio().block_on(async move {
            tokio::spawn(async move {
                let _sets = sets;
                pending::<()>().await;
            });
        });
        ended.unwrap();
        assert!(dropped.load(Ordering::SeqCst));
    });
}

#[test]
fn a_runtime_with_tokio_ends_inside_of_a_tokio_task() {
    each_way(|builder| {
        let tokio = tokio_runtime();
        let ended = tokio.block_on(async { builder.with_tokio().block_on(tasks()) });
        ended.unwrap().unwrap();
    });
}

#[test]
fn a_tokio_runtime_that_ends_first_fails_only_the_tasks_that_use_it() {
    each_way(|builder| {
        let tokio = tokio_runtime();
        let handle = tokio.handle().clone();
        let ended = builder.with_tokio_handle(handle).block_on(async move {
            let waits = tokio::spawn(pending::<()>());
            let mut sleeps = Box::pin(tokio::time::sleep(NEVER));
            let polled = futures_lite::future::poll_once(&mut sleeps).await;
            assert!(polled.is_none());
            runtime::spawn_blocking(move || drop(tokio)).await?;
            assert!(waits.await.unwrap_err().is_cancelled());
            // Tokio's timers panic after its end; the panic stays in the task.
            let sleep = runtime::spawn(sleeps).await.unwrap_err();
            assert!(sleep.into_panic().is_ok());
            annulus::time::sleep(Duration::from_millis(1)).await;
            io::Result::Ok(())
        });
        ended.unwrap().unwrap();
    });
}

#[test]
fn a_tokio_task_may_wake_a_task_of_a_core_that_has_ended() {
    each_way(|builder| {
        let tokio = tokio_runtime();
        let (sender, wakers) = std::sync::mpsc::channel();
        let builder = builder.with_tokio_handle(tokio.handle().clone());
        let ended = builder.block_on(std::future::poll_fn(move |context| {
            drop(runtime::spawn(pending::<()>()));
            sender.send(context.waker().clone()).unwrap();
            std::task::Poll::Ready(())
        }));
        ended.unwrap();
        let waker = wakers.recv().unwrap();
        tokio
            .block_on(async { tokio::spawn(async move { waker.wake() }).await })
            .unwrap();
    });
}
