//! Loading a file: the result has the contents of the file, for any size, offset and file system.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Mutex;
use std::task::{Context, Waker};

use annulus::buf::{HugePages, Region};
use annulus::{Engine, File, OpenOptions};
use annulus_testing::skip;

use crate::fixtures::{bytes, for_each_backend};

const SIZES: [usize; 7] = [0, 1, 4095, 4096, 4097, (1 << 20) + 13, 9 << 20];

async fn open(engine: &Engine, path: &Path, direct: bool) -> Option<File> {
    let mut options = OpenOptions::new();
    let opened = engine.open_with(options.read(true).direct(direct), path);
    match opened.await {
        Ok(file) => Some(file),
        Err(error) if direct && error.raw_os_error() == Some(libc::EINVAL) => None,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_loaded_file_has_the_contents_that_std_reads() {
    for_each_backend(async |fixture| {
        for size in SIZES {
            let contents = bytes(size as u64, size);
            fixture.put("f", &contents);
            let loaded = fixture.engine.load_file(fixture.path("f")).await.unwrap();
            assert!(loaded[..] == contents, "{size} bytes");
            assert_eq!(loaded.as_ptr().addr() % 4096, 0);
        }
        let missing = fixture.engine.load_file(fixture.path("none")).await;
        assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
    });
}

#[test]
fn a_file_on_a_file_system_in_memory_is_loaded_too() {
    for_each_backend(async |fixture| {
        if !fixture.machine_has("tmpfs") {
            return;
        }
        let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
            return skip::skip("no /dev/shm");
        };
        for size in SIZES {
            let contents = bytes(1, size);
            let path = dir.path().join("f");
            std::fs::write(&path, &contents).unwrap();
            let loaded = fixture.engine.load_file(&path).await.unwrap();
            assert!(loaded[..] == contents, "{size} bytes");
        }
        let of_proc = fixture.engine.load_file("/proc/self/status").await.unwrap();
        assert!(of_proc.is_empty(), "it claims to be");
        let folder = fixture.engine.load_file(dir.path()).await.unwrap_err();
        assert_eq!(folder.kind(), ErrorKind::IsADirectory);
    });
}

#[test]
fn any_range_can_be_loaded_in_chunks_of_any_size() {
    for_each_backend(async |fixture| {
        let contents = bytes(2, 3_000_001);
        fixture.put("f", &contents);
        for direct in [false, true] {
            let Some(file) = open(&fixture.engine, &fixture.path("f"), direct).await else {
                skip::skip("the temporary directory's file system has no direct I/O");
                continue;
            };
            for (from, count) in [
                (0, 3_000_001),
                (1, 3_000_000),
                (511, 1),
                (4095, 2),
                (4096, 4096),
                (123_456, 2_000_003),
                (2_999_000, 1001),
            ] {
                for chunk in [1, 4096, 70_000, 1 << 20] {
                    if count / chunk > 10_000 {
                        continue;
                    }
                    let load = file.load(from, count).chunk_bytes(chunk).in_flight(3);
                    let loaded = load.await.unwrap();
                    let expected = &contents[from as usize..][..count];
                    assert!(
                        loaded[..] == *expected,
                        "{count} bytes from {from} by {chunk}"
                    );
                    assert_eq!(loaded.as_ptr().addr() as u64 % 4096, from % 4096);
                }
            }
        }
    });
}

#[test]
fn a_region_is_filled_again_and_comes_back_with_the_error_of_a_file_that_ends() {
    for_each_backend(async |fixture| {
        let contents = bytes(3, 2 << 20);
        fixture.put("f", &contents);
        for direct in [false, true] {
            let Some(file) = open(&fixture.engine, &fixture.path("f"), direct).await else {
                continue;
            };
            let mut region = Region::new(300_000, HugePages::SystemDefault).unwrap();
            for offset in [0, 7, 1 << 20, 513] {
                region = file.load_into(region, offset).await.unwrap();
                assert!(
                    region[..] == contents[offset as usize..][..300_000],
                    "at {offset}"
                );
            }
            let short = file.load_into(region, (2 << 20) - 1000).chunk_bytes(8192);
            let error = short.await.unwrap_err();
            assert_eq!(error.error().kind(), ErrorKind::UnexpectedEof);
            let message = error.to_string();
            assert!(message.contains("after 1000 of 300000 bytes"), "{message}");
            let region = error.into_buf().unwrap();
            assert!(region[..1000] == contents[(2 << 20) - 1000..]);

            let beyond = file.load(u64::MAX - 5, 1).await.unwrap_err();
            assert_eq!(beyond.error().kind(), ErrorKind::InvalidInput);
            let too_much = file.load(0, usize::MAX / 4).await.unwrap_err();
            assert!(too_much.into_buf().is_none());
        }
    });
}

#[test]
fn progress_is_reported_up_to_the_last_byte() {
    for_each_backend(async |fixture| {
        fixture.put("f", &bytes(4, 100_001));
        let file = open(&fixture.engine, &fixture.path("f"), false)
            .await
            .unwrap();
        let received = Mutex::new(Vec::new());
        let load = file.load(1, 100_000).chunk_bytes(4096).in_flight(4);
        load.progress(|bytes| received.lock().unwrap().push(bytes))
            .await
            .unwrap();
        let received = received.into_inner().unwrap();
        assert!(received.is_sorted() && received.len() == 25, "{received:?}");
        assert_eq!(received.last(), Some(&100_000));
    });
}

#[test]
fn a_load_may_be_dropped_at_any_point() {
    for_each_backend(async |fixture| {
        let contents = bytes(5, 2 << 20);
        fixture.put("f", &contents);
        let file = match open(&fixture.engine, &fixture.path("f"), true).await {
            Some(file) => file,
            None => open(&fixture.engine, &fixture.path("f"), false)
                .await
                .unwrap(),
        };
        for polls in 0..8 {
            let mut load = file
                .load(0, contents.len())
                .chunk_bytes(65_536)
                .into_future();
            for _ in 0..polls {
                let mut context = Context::from_waker(Waker::noop());
                if load.as_mut().poll(&mut context).is_ready() {
                    break;
                }
                std::thread::yield_now();
            }
        }
        let whole = file.load(0, contents.len()).await.unwrap();
        assert!(whole[..] == contents);
    });
}
