//! Sizes that come from a file or a caller and exceed memory: an error, with the buffers, and the process goes on.
#![allow(unsafe_code)]

use std::fs;
use std::io::ErrorKind;

use annulus::buf::AlignedBuf;
use annulus::fs::Merge;
use annulus::{Backend, Engine, EngineError, File, IoBuf, OpenOptions};
use annulus_testing::child_process::in_child;
use annulus_testing::skip;

const TIB: u64 = 1 << 40;
const GIB: usize = 1 << 30;

/// Leaves this process `more_bytes` of address space more than it has.
fn limit_memory(more_bytes: usize) {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let (_, size) = status.split_once("VmSize:").unwrap();
    let kib: u64 = size.split_whitespace().next().unwrap().parse().unwrap();
    let bytes = (kib << 10) + more_bytes as u64;
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: reads the given struct.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) };
    assert_eq!(set, 0);
}

/// Runs `test` on each backend, with a file of 1 TiB without blocks.
fn with_long_file(name: &str, test: impl AsyncFn(Engine, std::path::PathBuf)) {
    in_child(name, || {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("long");
        if let Err(error) = fs::File::create(&path).unwrap().set_len(TIB) {
            return skip::skip(format_args!("a file of 1 TiB: {error}"));
        }
        for backend in [Backend::Uring, Backend::Fallback] {
            match Engine::builder().backend(backend).build() {
                Ok(engine) => pollster::block_on(test(engine, path.clone())),
                Err(error) => skip::skip(format_args!("io_uring: {error}")),
            }
        }
    });
}

async fn read_nothing(file: &File) {
    let (bytes, _) = file.read_at(vec![1; 100], 7).await.unwrap();
    assert_eq!(bytes, 100);
}

#[test]
fn a_file_that_is_longer_than_memory_is_an_error() {
    with_long_file(
        "memory::a_file_that_is_longer_than_memory_is_an_error",
        async |engine, path| {
            limit_memory(GIB);
            let error = engine.read(&path).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
            let error = engine.read_to_string(&path).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
            read_nothing(&engine.open(&path).await.unwrap()).await;
        },
    );
}

#[test]
fn reads_that_need_more_memory_than_there_is_return_their_buffers() {
    let name = "memory::reads_that_need_more_memory_than_there_is_return_their_buffers";
    with_long_file(name, async |engine, path| {
        let file = engine.open(&path).await.unwrap();
        let mut options = OpenOptions::new();
        let direct = engine
            .open_with(options.read(true).direct(true), &path)
            .await;
        let mut memory = AlignedBuf::with_len(2 * GIB, 4096);
        limit_memory(GIB);

        let long = Merge::new(TIB, usize::MAX);
        let reads = [(vec![1; 100], 0), (vec![2; 100], TIB - 100)];
        let results = file.read_many_at(reads).merge(long).await;
        assert_eq!(results.len(), 2);
        for (result, first) in results.into_iter().zip(1..) {
            let (error, buf) = result.unwrap_err().into_parts();
            assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
            assert_eq!(buf.unwrap(), [first; 100]);
        }

        let error = file.read_into(&mut memory, 1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        read_nothing(&file).await;

        let Ok(direct) = direct else {
            return skip::skip("the temporary directory's file system has no direct I/O");
        };
        let result = direct.read_at(memory, 1).await;
        let (error, memory) = result.unwrap_err().into_parts();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        let results = direct.read_many_at([(memory.unwrap(), 1)]).await;
        for result in results {
            let (error, memory) = result.unwrap_err().into_parts();
            assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
            assert_eq!(memory.unwrap().subslice(..1)[..], [0]);
        }
    });
}

#[test]
fn aligned_memory_that_cannot_be_allocated_is_an_error() {
    let kind = |bytes, align_bytes| {
        let error = AlignedBuf::try_with_len(bytes, align_bytes).unwrap_err();
        error.kind()
    };
    assert_eq!(kind(100, 3), ErrorKind::InvalidInput);
    assert_eq!(kind(usize::MAX, 8), ErrorKind::OutOfMemory);
    assert_eq!(kind(1 << 62, 8), ErrorKind::OutOfMemory);
    let buf = AlignedBuf::try_with_len(100, 64).unwrap();
    assert_eq!(buf[..], [0; 100]);
}

#[test]
fn threads_that_could_not_be_started_are_tried_again_at_the_next_operation() {
    in_child(
        "memory::threads_that_could_not_be_started_are_tried_again_at_the_next_operation",
        || {
            for backend in [Backend::Uring, Backend::Fallback] {
                let engine = match Engine::builder().backend(backend).build() {
                    Ok(engine) => engine,
                    Err(error) => {
                        skip::skip(format_args!("io_uring: {error}"));
                        continue;
                    }
                };
                let nop = || pollster::block_on(engine.nop());
                // They use the stacks that the C library has kept of threads that have ended.
                (0..16).for_each(|_| drop(std::thread::spawn(std::thread::park)));
                // Too little for the stack of a thread.
                limit_memory(256 << 10);
                for _ in 0..3 {
                    let error = nop().unwrap_err();
                    let reason = EngineError::of(&error);
                    assert!(
                        matches!(reason, Some(EngineError::NoThread { .. })),
                        "{error}"
                    );
                    assert!(error.to_string().contains("thread"), "{error}");
                }
                limit_memory(GIB);
                nop().unwrap();
                assert_eq!(
                    engine.metrics().blocking,
                    u64::from(backend == Backend::Fallback)
                );
            }
        },
    );
}
