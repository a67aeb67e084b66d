//! Uncached reads and writes leave the page cache as it was, whatever the operation.

use std::io;
use std::path::Path;

use annulus::buf::BufferLayout;
use annulus::fs::{Merge, NotUncached};
use annulus::{Engine, File, OpenOptions};
use annulus_testing::skip::skip;
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::fixtures::{Fixture, bytes, for_each_backend};
use crate::page_cache::{resident_bytes, uncache_surely};
use crate::wait::eventually_on;

const BYTES: usize = 1 << 20;
const PART: usize = 32 << 10;
const FEW: usize = BYTES / 16;
const MANY: usize = BYTES - FEW;

/// Operations that read the file, and how many bytes they may leave. Where reads are in flight together, the kernel may
/// read ahead for one of them what another has read and dropped before.
const READS: [(&str, usize); 8] = [
    ("read_at", FEW),
    ("read_into", FEW),
    ("vectored", FEW),
    ("arena", FEW),
    ("many", BYTES / 2),
    ("merged", BYTES / 2),
    ("load", BYTES / 2),
    ("cursor", BYTES / 2),
];
const WRITES: [&str; 4] = ["write_all_at", "durable", "vectored", "cursor"];

fn offsets() -> impl Iterator<Item = u64> {
    (0..BYTES as u64).step_by(PART)
}

/// Reads all of `file` with an operation of `READS`.
async fn read(engine: &Engine, file: &File, operation: &str) -> io::Result<Vec<u8>> {
    let mut all = vec![0; BYTES];
    let parts = || offsets().map(|offset| (vec![0; PART], offset));
    let mut read = Vec::new();
    match operation {
        "read_at" => {
            for (part, offset) in parts() {
                read.push(file.read_exact_at(part, offset).await?);
            }
        }
        "read_into" => {
            for (part, offset) in all.chunks_mut(PART).zip(offsets()) {
                assert_eq!(file.read_into(part, offset).await?, PART);
            }
            return Ok(all);
        }
        "many" => {
            for part in file.read_many_at(parts()).await {
                read.push(part?.1);
            }
        }
        "merged" => {
            for part in file
                .read_many_at(parts())
                .merge(Merge::new(0, 4 * PART))
                .await
            {
                read.push(part?.1);
            }
        }
        "vectored" => {
            let parts = parts().map(|(part, _)| part).collect();
            read = file.read_vectored_exact_at(parts, 0).await?;
        }
        "arena" => {
            let arena = engine.register_buffers(BufferLayout::new(4, PART))?;
            for offset in offsets() {
                let part = file.read_exact_at(arena.take().await, offset).await?;
                read.push(part.to_vec());
            }
        }
        "load" => return Ok(file.load(0, BYTES).chunk_bytes(PART).await?.to_vec()),
        "cursor" => {
            all.clear();
            file.cursor().read_to_end(&mut all).await?;
            return Ok(all);
        }
        _ => unreachable!("{operation}"),
    }
    Ok(read.concat())
}

/// Writes all of `file` with an operation of `WRITES`.
async fn write(file: &File, contents: &[u8], operation: &str) -> io::Result<()> {
    let parts = contents.chunks(PART).map(<[u8]>::to_vec);
    match operation {
        "vectored" => drop(file.write_vectored_all_at(parts.collect(), 0).await?),
        "cursor" => {
            let mut cursor = file.cursor();
            cursor.write_all(contents).await?;
            cursor.flush().await?;
        }
        _ => {
            for (part, offset) in parts.zip(offsets()) {
                match operation {
                    "durable" => file.write_all_durable_at(part, offset).await?,
                    _ => file.write_all_at(part, offset).await?,
                };
            }
        }
    }
    Ok(())
}

/// Returns whether the kernel makes uncached reads of a file. Prints a skip if it refuses them.
fn kernel_has_it(path: &Path) -> bool {
    let file = std::fs::File::open(path).unwrap();
    let mut byte = [0];
    let into = &mut [io::IoSliceMut::new(&mut byte)];
    let flags = ReadWriteFlags::from_bits_retain(0x80); // RWF_DONTCACHE
    let refused = preadv2(&file, into, 0, flags).err();
    if let Some(errno) = refused {
        assert_eq!(errno, Errno::OPNOTSUPP);
        skip("this kernel or file system has no uncached reads");
    }
    refused.is_none()
}

fn uncached() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).uncached(true);
    options
}

/// Creates a file, opened for uncached transfers and for ordinary ones.
async fn files(fixture: &Fixture, contents: &[u8]) -> (File, File) {
    let ordinary = fixture.file("f", contents).await;
    let opening = fixture.engine.open_with(&uncached(), fixture.path("f"));
    (opening.await.unwrap(), ordinary)
}

#[test]
fn uncached_reads_leave_no_pages_in_the_page_cache_and_ordinary_reads_do() {
    for_each_backend(async |fixture| {
        if !fixture.machine_has("page cache") {
            return;
        }
        let contents = bytes(1, BYTES);
        let path = fixture.path("f");
        let (uncached, ordinary) = files(fixture, &contents).await;
        if !kernel_has_it(&path) {
            return;
        }
        for (operation, few) in READS {
            for (file, is_uncached) in [(&ordinary, false), (&uncached, true)] {
                assert!(uncache_surely(file, &path, BYTES).await);
                let bytes = read(&fixture.engine, file, operation).await.unwrap();
                let left = resident_bytes(&path, BYTES);
                assert!(bytes == contents, "{operation} {is_uncached}");
                let is_right = if is_uncached {
                    left <= few
                } else {
                    left >= MANY
                };
                assert!(
                    is_right,
                    "{operation}, uncached {is_uncached}: {left} of {BYTES} bytes"
                );
            }
        }
        assert_eq!(uncached.uncached_support(), Ok(()));
        assert_eq!(ordinary.uncached_support(), Err(NotUncached::NotRequested));
    });
}

#[test]
fn uncached_reads_use_the_pages_that_are_there_and_leave_them() {
    for_each_backend(async |fixture| {
        let contents = bytes(2, BYTES);
        let (uncached, ordinary) = files(fixture, &contents).await;
        read(&fixture.engine, &ordinary, "read_at").await.unwrap();
        for (operation, _) in READS.iter().filter(|_| fixture.is_real()) {
            let read = read(&fixture.engine, &uncached, operation).await.unwrap();
            assert!(read == contents, "{operation}");
            let left = resident_bytes(&fixture.path("f"), BYTES);
            assert!(left >= MANY, "{operation}: {left} of {BYTES} bytes");
        }
    });
}

#[test]
fn uncached_writes_of_new_files_leave_no_pages_once_they_are_on_the_disk() {
    for_each_backend(async |fixture| {
        if !fixture.machine_has("page cache") {
            return;
        }
        let contents = bytes(3, BYTES);
        for operation in WRITES {
            let path = fixture.path(operation);
            let file = fixture.engine.open_with(&uncached(), &path).await.unwrap();
            write(&file, &contents, operation).await.unwrap();
            if !kernel_has_it(&path) {
                return;
            }
            file.sync_all().await.unwrap();
            let what = format!("the pages of {operation} are dropped");
            let is_dropped = || resident_bytes(&path, BYTES) <= FEW;
            eventually_on(fixture, &what, is_dropped).await;
            assert!(std::fs::read(&path).unwrap() == contents);
            assert_eq!(file.uncached_support(), Ok(()));
        }
    });
}

#[test]
fn a_file_whose_kernel_refuses_uncached_transfers_uses_ordinary_ones_and_says_why() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        return skip("no /dev/shm");
    };
    let path = &dir.path().join("f");
    let contents = &bytes(4, BYTES);
    for_each_backend(async |fixture| {
        let is_refused = |file: &File| {
            // Every kernel refuses it on tmpfs, and the simulated one never.
            let refused = NotUncached::Refused {
                errno: libc::EOPNOTSUPP,
            };
            let expected = if fixture.is_real() {
                Err(refused)
            } else {
                Ok(())
            };
            assert_eq!(file.uncached_support(), expected);
        };
        let path = if fixture.is_real() {
            path.clone()
        } else {
            fixture.path("f")
        };
        let open = || fixture.engine.open_with(&uncached(), &path);
        for operation in WRITES {
            let file = open().await.unwrap();
            write(&file, contents, operation).await.unwrap();
            is_refused(&file);
        }
        for (operation, _) in READS {
            let file = open().await.unwrap();
            assert!(read(&fixture.engine, &file, operation).await.unwrap() == *contents);
            is_refused(&file);
        }
    });
}

#[test]
fn a_direct_file_stays_direct() {
    for_each_backend(async |fixture| {
        fixture.put("f", &bytes(5, BYTES));
        let opened = fixture
            .engine
            .open_with(uncached().direct(true), fixture.path("f"))
            .await;
        let Ok(file) = opened else {
            return skip("the temporary directory's file system has no direct I/O");
        };
        if file.direct_alignment().is_none() {
            return;
        }
        assert!(read(&fixture.engine, &file, "read_at").await.unwrap() == bytes(5, BYTES));
        assert_eq!(file.uncached_support(), Err(NotUncached::Direct));
    });
}
