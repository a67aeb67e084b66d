//! Tokio's context on the cores of a runtime.

use std::future::{Future, pending};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use annulus::Backend;
use annulus::engine::SetupMode;
use annulus::net::{TcpListener, TcpStream};
use annulus::runtime::{self, Runtime, RuntimeBuilder};
use annulus_testing::skip::skip;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::on_core::OnCore;

/// Longer than any test takes.
const NEVER: Duration = Duration::from_secs(3_600);

/// Runs `test` with a builder for each backend, and for io_uring with each mode of its ring.
fn each_way(test: impl Fn(RuntimeBuilder)) {
    // The second is what a kernel with trap 68 gets.
    let modes = [SetupMode::Deferred, SetupMode::Cooperative];
    let rings = modes.map(|mode| (Backend::Uring, mode));
    for (backend, mode) in rings.into_iter().chain([(Backend::Fallback, modes[0])]) {
        let builder = Runtime::builder().backend(backend).setup_mode(mode);
        let builder = builder.cores(1);
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
        let ended = builder.cores(2).with_tokio().run(|_core| async {
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

/// Returns a client and a server that are connected, on the calling core.
async fn connected() -> io::Result<[TcpStream; 2]> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let client = TcpStream::connect(listener.local_addr()?);
    let client = runtime::spawn(client);
    let server = listener.accept().await?;
    Ok([client.await??, server])
}

#[test]
fn a_task_of_tokio_runs_on_its_core_and_uses_the_sockets_there() {
    each_way(|builder| {
        let ended = builder.with_tokio().block_on(async {
            let [client, server] = connected().await?;
            tokio::spawn(OnCore::new(exchange(client, server))).await?
        });
        ended.unwrap().unwrap();
    });
}

/// Sends more messages than a task may receive in one poll, and receives them.
async fn exchange(client: TcpStream, server: TcpStream) -> io::Result<()> {
    const MESSAGES: usize = 1_000;
    for _ in 0..MESSAGES {
        client.send_all("message").await?;
    }
    let mut chunks = server.recv_multishot();
    let mut bytes = 0;
    while bytes < MESSAGES * "message".len() {
        let chunk = chunks.next().await.ok_or(io::ErrorKind::UnexpectedEof)??;
        bytes += chunk.len();
    }
    Ok(())
}

#[test]
fn a_task_of_tokio_that_never_waits_holds_back_no_operation() {
    each_way(|builder| {
        let ended = builder.with_tokio().block_on(async {
            let [client, server] = connected().await?;
            let has_ended = Arc::new(AtomicBool::new(false));
            let sets = Sets(Arc::clone(&has_ended));
            let exchanged = tokio::spawn(OnCore::new(async move {
                let ended = exchange(client, server).await;
                annulus::time::sleep(Duration::from_millis(1)).await;
                drop(sets);
                ended
            }));
            let spins = tokio::spawn(async move {
                while !has_ended.load(Ordering::SeqCst) {
                    tokio::task::yield_now().await;
                }
            });
            exchanged.await??;
            spins.await?;
            io::Result::Ok(())
        });
        ended.unwrap().unwrap();
    });
}

/// Exchanges messages with the server at `address`, on another thread.
fn exchange_with(address: SocketAddr, streams: usize, messages: usize) -> io::Result<()> {
    let all = Runtime::builder().block_on(async move {
        let mut tasks = Vec::new();
        for _ in 0..streams {
            let stream = TcpStream::connect(address).await?;
            tasks.push(runtime::spawn(async move {
                let mut message = vec![7; 128];
                for _ in 0..messages {
                    message = stream.send_all(message).await?;
                    message = stream.recv_exact(message).await?;
                }
                io::Result::Ok(())
            }));
        }
        for task in tasks {
            task.await??;
        }
        Ok(())
    });
    all?
}

#[test]
fn tasks_of_tokio_that_have_too_few_receive_buffers_go_on() {
    const STREAMS: usize = 100;
    each_way(|builder| {
        let builder = builder.receive_buffers(8, 64).with_tokio();
        let ended = builder.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let address = listener.local_addr()?;
            let clients = runtime::spawn_blocking(move || exchange_with(address, STREAMS, 20));
            let mut tasks = JoinSet::new();
            for _ in 0..STREAMS {
                let stream = listener.accept().await?;
                tasks.spawn(OnCore::new(async move {
                    let mut chunks = stream.recv_multishot();
                    while let Some(chunk) = chunks.next().await {
                        stream.send_all(chunk?).await?;
                    }
                    io::Result::Ok(())
                }));
            }
            while let Some(task) = tasks.join_next().await {
                task??;
            }
            clients.await?
        });
        ended.unwrap().unwrap();
    });
}

#[test]
fn a_core_that_never_waits_holds_back_no_task_of_tokio() {
    each_way(|builder| {
        let ended = builder.with_tokio().block_on(async {
            let sleep = tokio::spawn(tokio::time::sleep(Duration::from_millis(1)));
            while !sleep.is_finished() {
                runtime::yield_now().await;
            }
            sleep.await
        });
        ended.unwrap().unwrap();
    });
}

#[test]
fn a_timer_of_the_core_that_a_task_of_tokio_sets_is_in_time() {
    each_way(|builder| {
        let ended = builder.with_tokio().block_on(async {
            // The core sleeps until this timer, if nothing else comes.
            let late = runtime::spawn(annulus::time::sleep(NEVER));
            let sleep = async { annulus::time::sleep(Duration::from_millis(1)).await };
            tokio::spawn(sleep).await.unwrap();
            drop(late);
        });
        ended.unwrap();
    });
}

/// Sets a flag when it is woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Yields in Tokio when it is woken, and passes its waker on.
struct Yields(Waker);

impl Wake for Yields {
    fn wake(self: Arc<Self>) {
        let mut yields = pin!(tokio::task::yield_now());
        let polled = yields.as_mut().poll(&mut Context::from_waker(&self.0));
        assert!(polled.is_pending());
    }
}

#[test]
fn a_waker_that_yields_in_tokio_loses_no_wake_up() {
    each_way(|builder| {
        let ended = builder.with_tokio().block_on(async {
            tokio::spawn(async {}).await.unwrap();
            for _ in 0..50 {
                let woken = Arc::<Woken>::default();
                let yields = Yields(Waker::from(Arc::clone(&woken)));
                let yields = Waker::from(Arc::new(yields));
                let mut timer = pin!(annulus::time::sleep(Duration::from_micros(1)));
                let polled = timer.as_mut().poll(&mut Context::from_waker(&yields));
                // The core stays busy, so that it does not sleep in Tokio.
                while polled.is_pending() && !woken.0.load(Ordering::SeqCst) {
                    runtime::yield_now().await;
                }
            }
        });
        ended.unwrap();
    });
}

/// The core finds the epoll instance of its Tokio runtime, and sleeps in its ring until that has had an event.
#[test]
fn a_core_sleeps_in_tokio_only_once_tokio_is_used() {
    let builder = Runtime::builder().backend(Backend::Uring).cores(1);
    let ran = builder.with_tokio().block_on(async {
        let waits = || runtime::handle().metrics(0).waits;
        let sleep = || annulus::time::sleep(Duration::from_millis(1));
        sleep().await;
        let unused = waits();
        assert!(unused > 0);
        tokio::spawn(async {}).await.unwrap();
        sleep().await;
        let used = waits();
        sleep().await;
        assert_eq!(waits(), used);
    });
    ran.unwrap_or_else(skip);
}

#[test]
fn other_threads_wake_a_core_that_sleeps_in_tokio() {
    each_way(|builder| {
        let ended = builder.with_tokio().block_on(async {
            tokio::spawn(async {}).await.unwrap();
            for _ in 0..100 {
                let (sender, receiver) = tokio::sync::oneshot::channel();
                let thread = std::thread::spawn(|| sender.send(7));
                assert_eq!(receiver.await, Ok(7));
                thread.join().unwrap().unwrap();
            }
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
