//! A process that forks with an engine alive: the child has no part in the ring, and the parent's reads arrive.
#![allow(unsafe_code)]

#[path = "child/process.rs"]
#[allow(dead_code, reason = "it stays who it is")]
mod process;
#[path = "child/skip.rs"]
#[allow(dead_code, reason = "it needs no root")]
mod skip;

use std::future::poll_fn;
use std::ops::Deref;
use std::path::Path;
use std::pin::pin;
use std::task::Poll;

use annulus::{
    AlignedBuf, Arena, Backend, BufferLayout, Engine, EngineError, File, IoBufMut, OpenOptions,
};
use process::in_child;
use skip::skip;

const READS: usize = 64;
const READ_BYTES: usize = 256 << 10;
const FORKS: usize = 10;

/// A child of `fork`; killed, where it has not ended by itself, and waited for.
struct Forked(libc::pid_t);

impl Forked {
    /// A child that ends at once, or stays until it is killed.
    fn new(stays: bool) -> Forked {
        // SAFETY: the child calls nothing but `pause` and `_exit`, which are safe after a fork of a process with
        // several threads.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            if stays {
                loop {
                    // SAFETY: waits for a signal.
                    unsafe { libc::pause() };
                }
            }
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(0) };
        }
        assert!(pid > 0, "{}", std::io::Error::last_os_error());
        Forked(pid)
    }

    fn wait(&self) {
        let mut status = 0;
        // SAFETY: a child of this process, not waited for yet.
        assert_eq!(unsafe { libc::waitpid(self.0, &raw mut status, 0) }, self.0);
    }

    fn kill(&self) {
        // SAFETY: a child of this process, not waited for yet, so that the number is still its own.
        assert_eq!(unsafe { libc::kill(self.0, libc::SIGKILL) }, 0);
        self.wait();
    }
}

fn byte_at(offset: usize) -> u8 {
    (offset / 512 % 251) as u8
}

/// The file, past the page cache where the file system can.
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

/// Reads all of the file in one batch; `meanwhile` is called when reads are in flight.
async fn read_all<B: IoBufMut + Deref<Target = [u8]>>(
    file: &File,
    contents: &[u8],
    buf: impl Fn() -> B,
    meanwhile: impl FnOnce(),
) {
    let reads = (0..READS).map(|n| (buf(), (n * READ_BYTES) as u64));
    let mut many = file.read_many_at(reads);
    let mut answers = Vec::new();
    {
        let mut first = pin!(many.next());
        let at_once = poll_fn(|context| Poll::Ready(first.as_mut().poll(context))).await;
        meanwhile();
        match at_once {
            Poll::Ready(answer) => answers.extend(answer),
            Poll::Pending => answers.extend(first.await),
        }
    }
    while let Some(answer) = many.next().await {
        answers.push(answer);
    }
    assert_eq!(answers.len(), READS);
    for answer in answers {
        let (bytes, buf) = answer.result.unwrap();
        let from = answer.offset as usize;
        assert_eq!(bytes, READ_BYTES);
        assert!(
            buf[..] == contents[from..][..READ_BYTES],
            "read {} has other bytes",
            answer.index
        );
    }
}

/// Memory of its own for each read.
fn fresh(_: &Engine) -> impl Fn() -> AlignedBuf + use<> {
    || AlignedBuf::with_len(READ_BYTES, 4096)
}

fn of_an_arena(engine: &Engine) -> impl Fn() -> annulus::ArenaBuf + use<> {
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
    // Next to the binary: the directory for temporary files is often in memory, and has no disk.
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
        assert!(file.close().await.unwrap());
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
fn a_ring_goes_on_while_children_of_a_fork_come_go_and_stay() {
    in_child(
        "a_ring_goes_on_while_children_of_a_fork_come_go_and_stay",
        || {
            forks_do_no_harm(Backend::Uring, fresh);
        },
    );
}

#[test]
fn blocking_threads_go_on_while_children_of_a_fork_come_go_and_stay() {
    in_child(
        "blocking_threads_go_on_while_children_of_a_fork_come_go_and_stay",
        || {
            forks_do_no_harm(Backend::Blocking, fresh);
        },
    );
}

#[test]
fn reads_into_an_arena_arrive_while_children_of_a_fork_come_go_and_stay() {
    in_child(
        "reads_into_an_arena_arrive_while_children_of_a_fork_come_go_and_stay",
        || {
            forks_do_no_harm(Backend::Uring, of_an_arena);
        },
    );
}

/// What a child of a fork does, ended without running anything else; true if it did it to the end.
fn child_does(what: impl FnOnce()) -> bool {
    // SAFETY: the calling thread is the only one that goes on in the child; the C library's memory is in order there.
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

/// A child may use what it inherits, and is refused.
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
fn a_child_of_a_fork_is_refused_by_drivers_that_run_and_by_those_not_started_yet() {
    in_child(
        "a_child_of_a_fork_is_refused_by_drivers_that_run_and_by_those_not_started_yet",
        || {
            let path = std::env::current_exe().unwrap();
            for backend in [Backend::Uring, Backend::Blocking] {
                let build = || Engine::builder().backend(backend).build();
                let (fresh, used) = match (build(), build()) {
                    (Ok(fresh), Ok(used)) => (fresh, used),
                    (Err(error), _) | (_, Err(error)) => return skip(error),
                };
                let file = pollster::block_on(used.open(&path)).unwrap();
                assert!(child_does(|| a_child_is_refused(used.clone(), &file)));
                assert!(child_does(|| {
                    // Threads that block start with the first operation, in the child as elsewhere.
                    let opened = pollster::block_on(fresh.open(&path));
                    assert_eq!(opened.is_err(), backend == Backend::Uring);
                    drop(opened);
                    fresh.shutdown();
                }));
                // One of the child's own serves.
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
fn a_child_of_a_fork_is_refused_by_its_parents_own_ring() {
    in_child(
        "a_child_of_a_fork_is_refused_by_its_parents_own_ring",
        || {
            let engine = match Engine::builder().backend(Backend::Uring).build() {
                Ok(engine) => engine,
                Err(error) => return skip(error),
            };
            let driver = engine.own_driver().unwrap();
            let path = std::env::current_exe().unwrap();
            let file = driver.block_on(engine.open(&path)).unwrap();
            driver.block_on(async {
                // In the middle of it, as well as before.
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
