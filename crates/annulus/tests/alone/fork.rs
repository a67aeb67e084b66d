//! A process that forks while an engine is alive: the child cannot use the ring, and the parent's reads arrive.
#![allow(unsafe_code)]

use std::future::poll_fn;
use std::ops::Deref;
use std::path::Path;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use annulus::buf::{AlignedBuf, Arena, BufferLayout};
use annulus::net::{TcpListener, TcpStream};
use annulus::runtime::{self, Runtime, RuntimeBuilder};
use annulus::{Backend, Engine, EngineError, File, IoBufMut, OpenOptions};
use annulus_testing::child_process::in_child;
use annulus_testing::skip::skip;

const READS: usize = 64;
const READ_BYTES: usize = 256 << 10;
const FORKS: usize = 10;

/// A child of `fork`. Dropping it kills the child if it is still running, and waits for it.
struct Forked(libc::pid_t);

impl Forked {
    /// Forks a child that ends immediately, or that stays until it is killed.
    fn new(stays: bool) -> Forked {
        // SAFETY: the child only calls `pause` and `_exit`, which are safe after a fork of a process with several
        // threads.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            if stays {
                loop {
                    // SAFETY: waits for a signal.
                    unsafe { libc::pause() };
                }
            }
            // SAFETY: ends the child without running any code of the parent.
            unsafe { libc::_exit(0) };
        }
        assert!(pid > 0, "{}", std::io::Error::last_os_error());
        Forked(pid)
    }

    fn wait(&self) {
        self.status();
    }

    /// Waits for the end of the child. Returns the status of `waitpid`.
    fn status(&self) -> i32 {
        let mut status = 0;
        // SAFETY: a child of this process, not waited for yet.
        assert_eq!(unsafe { libc::waitpid(self.0, &raw mut status, 0) }, self.0);
        status
    }

    fn kill(&self) {
        // SAFETY: a child of this process that has not been waited for, so the number is still its own.
        assert_eq!(unsafe { libc::kill(self.0, libc::SIGKILL) }, 0);
        self.wait();
    }
}

fn byte_at(offset: usize) -> u8 {
    (offset / 512 % 251) as u8
}

/// Opens the file, with direct I/O if the file system supports it.
async fn open(engine: &Engine, path: &Path) -> File {
    let mut options = OpenOptions::new();
    match engine
        .open_with(options.read(true).direct(true), path)
        .await
    {
        Ok(file) => file,
        Err(_) => engine.open(path).await.unwrap(),
    }
}

/// Reads all of the file in one batch; calls `meanwhile` while reads are in flight.
async fn read_all<B: IoBufMut + Deref<Target = [u8]>>(
    file: &File,
    contents: &[u8],
    buf: impl Fn() -> B,
    meanwhile: impl FnOnce(),
) {
    let reads = (0..READS).map(|n| (buf(), (n * READ_BYTES) as u64));
    let mut many = file.read_many_at(reads);
    let mut results = Vec::new();
    {
        let mut first = pin!(many.next());
        let immediately = poll_fn(|context| Poll::Ready(first.as_mut().poll(context))).await;
        meanwhile();
        match immediately {
            Poll::Ready(result) => results.extend(result),
            Poll::Pending => results.extend(first.await),
        }
    }
    while let Some(result) = many.next().await {
        results.push(result);
    }
    assert_eq!(results.len(), READS);
    for result in results {
        let (bytes, buf) = result.result.unwrap();
        let from = result.offset as usize;
        assert_eq!(bytes, READ_BYTES);
        assert!(
            buf[..] == contents[from..][..READ_BYTES],
            "read {} has other bytes",
            result.index
        );
    }
}

/// Returns a function that allocates memory for each read.
fn fresh(_: &Engine) -> impl Fn() -> AlignedBuf + use<> {
    || AlignedBuf::with_len(READ_BYTES, 4096)
}

fn of_an_arena(engine: &Engine) -> impl Fn() -> annulus::buf::ArenaBuf + use<> {
    let layout = BufferLayout::new(READS, READ_BYTES);
    let arena: Arena = engine.register_buffers(layout).unwrap();
    move || arena.try_take().unwrap()
}

fn forks_do_no_harm<B, F: Fn() -> B>(backend: Backend, bufs: impl FnOnce(&Engine) -> F)
where
    B: IoBufMut + Deref<Target = [u8]>,
{
    let engine = match Engine::builder().backend(backend).build() {
        Ok(engine) => engine,
        Err(error) => return skip(error),
    };
    let buf = bufs(&engine);
    // Next to the binary: the directory for temporary files is often in memory, without a disk.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("data");
    let contents: Vec<u8> = (0..READS * READ_BYTES).map(byte_at).collect();
    std::fs::write(&path, &contents).unwrap();
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    let staying = pollster::block_on(async {
        let file = open(&engine, &path).await;
        for _ in 0..FORKS {
            read_all(&file, &contents, &buf, || Forked::new(false).wait()).await;
        }
        let mut staying = None;
        read_all(&file, &contents, &buf, || staying = Some(Forked::new(true))).await;
        read_all(&file, &contents, &buf, || ()).await;
        assert_eq!(file.close().await.unwrap(), annulus::fs::Closed::Now);
        staying.unwrap()
    });
    // The child holds copies of the descriptors; the end of the engine does not wait for it.
    assert_eq!(engine.metrics().stale, 0);
    engine.shutdown();
    assert_eq!(engine.metrics().leaked, 0);
    drop(engine);
    staying.kill();
}

#[test]
fn a_ring_keeps_working_while_the_process_forks() {
    in_child("fork::a_ring_keeps_working_while_the_process_forks", || {
        forks_do_no_harm(Backend::Uring, fresh);
    });
}

#[test]
fn blocking_threads_keep_working_while_the_process_forks() {
    in_child(
        "fork::blocking_threads_keep_working_while_the_process_forks",
        || {
            forks_do_no_harm(Backend::Fallback, fresh);
        },
    );
}

#[test]
fn reads_into_an_arena_arrive_while_the_process_forks() {
    in_child(
        "fork::reads_into_an_arena_arrive_while_the_process_forks",
        || {
            forks_do_no_harm(Backend::Uring, of_an_arena);
        },
    );
}

/// Runs `what` in a forked child, and ends the child without running anything else. Returns whether `what` completed.
fn child_does(what: impl FnOnce()) -> bool {
    // SAFETY: the calling thread is the only one in the child; the C library's memory is consistent there.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(what)).is_ok();
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!done)) };
    }
    assert!(pid > 0, "{}", std::io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: a child of this process, not waited for yet.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

/// A child may call the inherited engine, and is refused.
fn a_child_is_refused(engine: Engine, file: &File) {
    let refused = pollster::block_on(file.metadata()).unwrap_err();
    assert_eq!(
        EngineError::of(&refused),
        Some(EngineError::Forked),
        "{refused}"
    );
    drop(engine);
}

#[test]
fn a_forked_child_is_refused_by_running_drivers_and_by_those_not_started() {
    in_child(
        "fork::a_forked_child_is_refused_by_running_drivers_and_by_those_not_started",
        || {
            let path = std::env::current_exe().unwrap();
            for backend in [Backend::Uring, Backend::Fallback] {
                let build = || Engine::builder().backend(backend).build();
                let (fresh, used) = match (build(), build()) {
                    (Ok(fresh), Ok(used)) => (fresh, used),
                    (Err(error), _) | (_, Err(error)) => return skip(error),
                };
                let file = pollster::block_on(used.open(&path)).unwrap();
                // A cached file may be opened without a driver.
                pollster::block_on(used.nop()).unwrap();
                assert!(child_does(|| a_child_is_refused(used.clone(), &file)));
                assert!(child_does(|| {
                    // Blocking threads start with the first operation, in the child as well.
                    let opened = pollster::block_on(fresh.open(&path));
                    assert_eq!(opened.is_err(), backend == Backend::Uring);
                    drop(opened);
                    let read = pollster::block_on(fresh.read("/proc/version"));
                    assert_eq!(read.is_err(), backend == Backend::Uring);
                    fresh.shutdown();
                }));
                // An engine that the child creates works.
                assert!(child_does(|| {
                    let own = build().unwrap();
                    assert!(pollster::block_on(own.open(&path)).is_ok());
                    std::mem::forget(own);
                }));
                pollster::block_on(file.metadata()).unwrap();
            }
        },
    );
}

#[test]
fn a_forked_child_is_refused_by_its_parents_ring() {
    in_child(
        "fork::a_forked_child_is_refused_by_its_parents_ring",
        || {
            let engine = match Engine::builder().backend(Backend::Uring).build() {
                Ok(engine) => engine,
                Err(error) => return skip(error),
            };
            let driver = engine.current_thread_driver().unwrap();
            let path = std::env::current_exe().unwrap();
            let file = driver.block_on(engine.open(&path)).unwrap();
            driver.block_on(async {
                // The child is refused during the driver's run, as well as before.
                assert!(child_does(|| a_child_is_refused(engine.clone(), &file)));
                file.metadata().await.unwrap();
            });
            let in_a_child = child_does(|| {
                let refused = driver.block_on(file.metadata()).unwrap_err();
                assert_eq!(
                    EngineError::of(&refused),
                    Some(EngineError::Forked),
                    "{refused}"
                );
                engine.shutdown();
            });
            assert!(in_a_child);
            driver.block_on(file.metadata()).unwrap();
            drop((driver, file));
            engine.shutdown();
            assert_eq!(engine.metrics().leaked, 0);
        },
    );
}

/// A connection of the calling core; returns both ends.
async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let client = TcpStream::connect(address).await.unwrap();
    (client, listener.accept().await.unwrap())
}

/// Checks that an operation in the child is refused immediately; otherwise it would wait forever.
#[track_caller]
fn refused<T, E: Into<std::io::Error>>(operation: impl Future<Output = Result<T, E>>) {
    let polled = pin!(operation).poll(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(Err(error)) = polled else {
        panic!("not refused");
    };
    let error = error.into();
    assert_eq!(
        EngineError::of(&error),
        Some(EngineError::Forked),
        "{error}"
    );
}

/// Runs `test` with each kind of core.
fn on_each_core(test: impl Fn(RuntimeBuilder)) {
    for backend in [annulus::Backend::Uring, annulus::Backend::Fallback] {
        let builder = Runtime::builder().backend(backend);
        match builder.clone().block_on(async {}) {
            Ok(()) => test(builder),
            Err(error) => skip(format_args!("{backend:?}: {error}")),
        }
    }
}

#[test]
fn a_forked_child_is_refused_by_its_parents_core_and_leaves_its_sockets_alone() {
    in_child(
        "fork::a_forked_child_is_refused_by_its_parents_core_and_leaves_its_sockets_alone",
        || {
            on_each_core(|builder| {
                let ended = builder.block_on(async {
                    let (client, server) = pair().await;
                    // Receives are in flight or waiting, and a chunk is still held.
                    client.send_all(b"one".as_slice()).await.unwrap();
                    let mut chunks = server.recv_multishot();
                    let chunk = chunks.next().await.unwrap().unwrap();
                    let mut result = Box::pin(client.recv(vec![0; 5]));
                    let mut context = Context::from_waker(Waker::noop());
                    assert!(result.as_mut().poll(&mut context).is_pending());
                    let mut all = Some((chunk, result));
                    let in_a_child = child_does(|| {
                        refused(client.send_all(b"child".as_slice()));
                        refused(TcpStream::connect(client.peer_addr().unwrap()));
                        refused(async { chunks.next().await.unwrap() });
                        // The parent keeps everything that the child drops.
                        drop(all.take());
                    });
                    assert!(in_a_child);
                    let (chunk, result) = all.take().unwrap();
                    assert_eq!(&chunk[..], b"one");
                    drop(chunk);
                    client.send_all(b"two".as_slice()).await.unwrap();
                    assert_eq!(&chunks.next().await.unwrap().unwrap()[..], b"two");
                    server.send_all(b"three".as_slice()).await.unwrap();
                    assert_eq!(result.await.unwrap(), (5, b"three".to_vec()));
                });
                ended.unwrap();
            });
        },
    );
}

#[test]
fn a_forked_child_that_returns_to_its_parents_core_gets_an_error() {
    in_child(
        "fork::a_forked_child_that_returns_to_its_parents_core_gets_an_error",
        || {
            on_each_core(|builder| {
                let ended = builder.clone().block_on(async {
                    let (client, server) = pair().await;
                    let reading = runtime::spawn(async move { server.recv(vec![0; 9]).await });
                    runtime::yield_now().await;
                    // SAFETY: the child continues on this thread, which is its only one.
                    let pid = unsafe { libc::fork() };
                    if pid == 0 {
                        // Never completes, because the core belongs to the parent.
                        std::future::pending::<()>().await;
                    }
                    assert_eq!(Forked(pid).status(), 0, "the child was told");
                    client.send_all(b"all right".as_slice()).await.unwrap();
                    assert_eq!(reading.await.unwrap().unwrap().1, b"all right");
                });
                if let Err(error) = ended {
                    let message = error.to_string();
                    let own = builder.block_on(async { pair().await.0.peer_addr().is_ok() });
                    let received =
                        message.contains("child of a fork") && own.is_ok_and(|works| works);
                    println!("{message}");
                    // SAFETY: ends the child.
                    unsafe { libc::_exit(i32::from(!received)) };
                }
            });
        },
    );
}

#[test]
fn a_forked_child_that_returns_to_one_of_several_cores_ends() {
    in_child(
        "fork::a_forked_child_that_returns_to_one_of_several_cores_ends",
        || {
            on_each_core(|builder| {
                for forks_on in 0..2 {
                    let ended = builder.clone().cores(2).run(|core| async move {
                        if core.index() != forks_on {
                            return Ok(());
                        }
                        // SAFETY: the child continues on this thread, which is its only one.
                        let pid = unsafe { libc::fork() };
                        if pid == 0 {
                            std::future::pending::<()>().await;
                        }
                        let status = Forked(pid).status();
                        assert!(libc::WIFSIGNALED(status), "{status:#x}");
                        Ok(())
                    });
                    ended.unwrap();
                }
            });
        },
    );
}

/// Maps memory at an address where nothing is mapped.
fn map_at(place: *mut u8, bytes: usize) {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: the flag refuses an address where something is mapped.
    let mapped = unsafe { libc::mmap(place.cast(), bytes, access, flags, -1, 0) };
    assert_eq!(mapped, place.cast(), "{}", std::io::Error::last_os_error());
}

#[test]
fn a_forked_child_may_drop_inherited_values_without_losing_its_own_memory() {
    in_child(
        "fork::a_forked_child_may_drop_inherited_values_without_losing_its_own_memory",
        || {
            for backend in [Backend::Uring, Backend::Fallback] {
                let engine = match Engine::builder().backend(backend).build() {
                    Ok(engine) => engine,
                    Err(error) => return skip(error),
                };
                let arena = engine.register_buffers(BufferLayout::default()).unwrap();
                let bytes = arena.layout().count * arena.layout().bytes;
                let place = arena.try_take().unwrap().as_mut_ptr();
                let mut inherited = Some((arena, engine));
                let in_a_child = child_does(|| {
                    // The parent's arena is at this address, where nothing is mapped in the child.
                    map_at(place, bytes);
                    drop(inherited.take());
                    // SAFETY: mapped above, and not used elsewhere in this process.
                    unsafe { place.write_bytes(9, bytes) };
                });
                assert!(in_a_child);
                let (arena, engine) = inherited.take().unwrap();
                pollster::block_on(engine.nop()).unwrap();
                assert_eq!(arena.free(), arena.layout().count);
            }
        },
    );
}
