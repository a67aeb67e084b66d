//! A task of Tokio that forks. The child is still inside of its parent's runtime, whose reactor both processes share,
//! so the child must not register a ring there (trap 54).
#![allow(unsafe_code)]

use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use annulus::fs::CachedReads;
use annulus::{Backend, Engine, EngineError, File, OpenOptions};
use annulus_testing::child_process::{in_child, in_fork};
use annulus_testing::skip::skip;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};

const BLOCK_BYTES: usize = 4096;
const FORKS: usize = 10;

/// Runs `child` in a forked child, and returns the status of `waitpid`.
fn fork(child: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child runs code that expects one thread, and ends without running destructors of the parent.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        child();
        // SAFETY: ends the child without running any code of the parent.
        unsafe { libc::_exit(0) };
    }
    assert!(pid > 0, "{}", std::io::Error::last_os_error());
    pid
}

/// Returns the status of a child, if it has ended.
fn ended(pid: libc::pid_t) -> Option<i32> {
    let mut status = 0;
    // SAFETY: a child of this process, not waited for yet.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) };
    (waited == pid).then_some(status)
}

async fn open(engine: &Engine, path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).cached_reads(CachedReads::Never);
    engine.open_with(&options, path).await.unwrap()
}

async fn read(file: &File) {
    let (count, page) = file.read_at(vec![0; BLOCK_BYTES], 0).await.unwrap();
    assert!(count == BLOCK_BYTES && page.iter().all(|&byte| byte == 7));
}

fn new_engine() -> Engine {
    Engine::builder().backend(Backend::Uring).build().unwrap()
}

/// Reads in the child with a new engine, inside of the parent's runtime.
fn read_in_child(path: &Path) {
    let engine = new_engine();
    let file = pollster::block_on(open(&engine, path));
    for _ in 0..10 {
        pollster::block_on(read(&file));
    }
    let metrics = engine.metrics();
    assert!(metrics.submitted > 0 && metrics.wakeups > 0, "{metrics:?}");
}

/// Reads in the child inside of the parent's runtime, and then inside of a new one.
fn child(nth: usize, path: &Path) {
    // Other addresses than the parent's rings, which registered ones could be mistaken for.
    let _padding: Vec<_> = (0..nth).map(|_| vec![0_u8; 200]).collect();
    read_in_child(path);
    // Its own runtime has rings again, if the child declares it. Tokio does not let a thread block inside of a runtime.
    let read_inside = || {
        let runtime = single();
        annulus::tokio::adopt(runtime.handle()).unwrap();
        let engine = new_engine();
        runtime.block_on(async { read(&open(&engine, path).await).await });
        let metrics = engine.metrics();
        assert!(metrics.submitted > 0 && metrics.wakeups == 0, "{metrics:?}");
    };
    std::thread::scope(|scope| scope.spawn(read_inside).join().unwrap());
}

fn single() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Returns a runtime of each kind.
fn runtimes() -> [Runtime; 2] {
    let several = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    [several.unwrap(), single()]
}

/// Returns the file that the processes read.
fn data() -> tempfile::NamedTempFile {
    let data = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(data.path(), [7; BLOCK_BYTES]).unwrap();
    data
}

#[test]
fn a_child_that_a_tokio_task_forks_uses_its_own_engine_and_the_parent_goes_on() {
    in_child(
        "fork_tokio::a_child_that_a_tokio_task_forks_uses_its_own_engine_and_the_parent_goes_on",
        || {
            if let Err(error) = Engine::builder().backend(Backend::Uring).build() {
                return skip(error);
            }
            let data = data();
            let path = data.path().to_owned();
            for runtime in runtimes() {
                let path = path.clone();
                let task = runtime.spawn(async move {
                    let engine = new_engine();
                    let file = open(&engine, &path).await;
                    read(&file).await;
                    for nth in 0..FORKS {
                        let pid = fork(|| child(nth, &path));
                        let status = loop {
                            read(&file).await;
                            tokio::task::yield_now().await;
                            match ended(pid) {
                                Some(status) => break status,
                                None => {
                                    tokio::time::sleep(std::time::Duration::from_millis(1)).await
                                }
                            }
                        };
                        assert_eq!(status, 0, "fork {nth}");
                    }
                    assert_eq!(engine.metrics().wakeups, 0, "the parent keeps its rings");
                });
                runtime.block_on(task).unwrap();
            }
        },
    );
}

#[test]
fn a_child_of_a_runtime_that_no_engine_has_seen_uses_no_ring_in_it() {
    in_child(
        "fork_tokio::a_child_of_a_runtime_that_no_engine_has_seen_uses_no_ring_in_it",
        || {
            if let Err(error) = Engine::builder().backend(Backend::Uring).build() {
                return skip(error);
            }
            let data = data();
            let path = data.path().to_owned();
            for runtime in runtimes() {
                let data = path.clone();
                let task = runtime.spawn(async move {
                    for nth in 0..FORKS {
                        let pid = fork(|| read_in_child(&data));
                        let status = loop {
                            // The reactor of the parent goes on.
                            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                            if let Some(status) = ended(pid) {
                                break status;
                            }
                        };
                        assert_eq!(status, 0, "fork {nth}");
                    }
                });
                runtime.block_on(task).unwrap();
                // The parent's own engine has rings there.
                let engine = new_engine();
                runtime.block_on(async { read(&open(&engine, &path).await).await });
                assert_eq!(engine.metrics().wakeups, 0);
            }
        },
    );
}

fn poll<T>(future: Pin<&mut (impl Future<Output = T> + ?Sized)>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[track_caller]
fn assert_forked<T>(polled: Poll<Result<T, impl Into<std::io::Error>>>) {
    let Poll::Ready(Err(error)) = polled else {
        panic!("not refused");
    };
    assert_eq!(EngineError::of(&error.into()), Some(EngineError::Forked));
}

/// Forks while an operation, a batch of reads and the write of a cursor are in flight.
fn fork_with_operations_in_flight(engine: &Engine) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let mut log = pollster::block_on(engine.create(&path)).unwrap().cursor();
    // A read of an empty pipe keeps the only blocking thread busy, for which the others wait. The first one finds out
    // that there are no offsets.
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"x").unwrap();
    let pipe = File::from_std(std::fs::File::from(OwnedFd::from(reader)), engine).unwrap();
    let (mut cursor, mut byte) = (pipe.cursor(), [0]);
    assert_eq!(pollster::block_on(cursor.read(&mut byte)).unwrap(), 1);
    let mut busy = pin!(cursor.read(&mut byte));
    assert!(poll(busy.as_mut()).is_pending());
    let mut sleep = pin!(engine.sleep(Duration::from_secs(3600)));
    assert!(poll(sleep.as_mut()).is_pending());
    let mut many = pipe.read_many_at([(vec![0; 1], 0)]);
    assert!(poll(pin!(many.next())).is_pending());
    let taken = poll(pin!(log.write(b"one")));
    assert!(matches!(taken, Poll::Ready(Ok(3))), "{taken:?}");
    assert!(poll(pin!(log.flush())).is_pending());
    in_fork(|| {
        assert_forked(poll(sleep.as_mut()));
        assert_forked(poll(pin!(many.next())).map(|read| read.unwrap().result));
        assert_forked(poll(busy.as_mut()));
        // The parent writes what the cursor has taken. The child writes nothing.
        assert!(matches!(poll(pin!(log.flush())), Poll::Ready(Ok(()))));
        let _ = poll(pin!(log.write(b"two")));
        assert_forked(poll(pin!(log.flush())));
    });
    drop(writer);
    assert_eq!(pollster::block_on(busy).unwrap(), 0);
    let read = pollster::block_on(many.next()).unwrap();
    assert!(read.result.is_err(), "a pipe has no offsets");
    pollster::block_on(log.flush()).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"one");
}

#[test]
fn operations_in_flight_during_a_fork_fail_in_the_child_and_go_on_in_the_parent() {
    in_child(
        "fork_tokio::operations_in_flight_during_a_fork_fail_in_the_child_and_go_on_in_the_parent",
        || {
            for backend in [Backend::Uring, Backend::Fallback] {
                let builder = Engine::builder().backend(backend).blocking_threads(1);
                match builder.build() {
                    Ok(engine) => fork_with_operations_in_flight(&engine),
                    Err(error) => skip(error),
                }
            }
        },
    );
}
