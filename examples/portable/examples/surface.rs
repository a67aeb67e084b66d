//! Every part of the API that all platforms have, once, with its types and its results. Compiles on each of them
//! without a `cfg`. Prints the backend: `cargo run --features annulus --example surface`.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::{Duration, SystemTime};

use annulus::buf::{AlignedBuf, Slice};
use annulus::fs::{
    Closed, Completed, DirEntry, FileKind, FileTimes, Metadata, OpPath, Opening, ReadDir, ReadInto,
    ReadMany,
};
use annulus::op::{
    Canonicalize, Fsync, Link, MakeDir, Nop, ReadAt, ReadLink, Rename, SetPermissions, SetTimes,
    Sleep, StatAt, Truncate, Unlink, WriteAt,
};
use annulus::{
    Backend, BackendInUse, BufError, BufResult, Engine, EngineBuilder, EngineError, File, IoBuf,
    IoBufMut, OpenOptions, Operation, SetupError, WholeResult,
};

fn main() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let engine = engine()?;
    pollster::block_on(async {
        files(&engine, dir.path()).await?;
        paths(&engine, dir.path()).await?;
        times(&engine).await
    })?;
    let Err(error) = refused_buffer(&engine, dir.path()) else {
        return Err(ErrorKind::Other.into());
    };
    assert_eq!(error.error().kind(), ErrorKind::InvalidInput);
    println!("{}", engine.backend());
    Ok(())
}

fn engine() -> Result<Engine, SetupError> {
    let builder: EngineBuilder = Engine::builder();
    let builder = builder.backend(Backend::default()).blocking_threads(8);
    let engine = builder.drain_timeout(Duration::from_secs(5)).build()?;
    if let BackendInUse::Fallback {
        reason: Some(reason),
        ..
    } = engine.backend()
    {
        assert!(reason.allows_fallback());
    }
    drop(Engine::builder().backend(Backend::Fallback).build()?);
    drop(Engine::builder().backend(Backend::Uring).build());
    Ok(engine)
}

/// Types can be named, and kept in a struct.
struct Ahead<'a> {
    read: Operation<'a, ReadAt<Vec<u8>>, BufResult<usize, Vec<u8>>>,
    exact: Operation<'a, ReadAt<AlignedBuf>, WholeResult<AlignedBuf>>,
}

async fn ahead(file: &File) -> io::Result<()> {
    let ahead = Ahead {
        read: file.read_at(Vec::with_capacity(4), 9),
        exact: file.read_exact_at(AlignedBuf::with_len(4, 512), 0),
    };
    let (bytes, buf) = ahead.read.timeout(Duration::from_secs(30)).await?;
    assert_eq!((bytes, &buf[..]), (3, &b"cxx"[..]));
    assert_eq!(&ahead.exact.await?[..], b"0123");
    Ok(())
}

async fn batch(file: &File) -> io::Result<()> {
    let mut batch: ReadMany<'_, Vec<u8>, _> = file.read_many_at([(vec![0; 2], 0), (vec![0; 2], 2)]);
    batch.push(vec![0; 2], 4);
    let mut seen = [0; 3];
    while let Some(Completed {
        index,
        offset,
        result,
        ..
    }) = batch.next().await
    {
        assert_eq!(offset, 2 * index as u64);
        seen[index] = result?.1[0];
    }
    assert_eq!(&seen, b"024");
    let limit = Duration::from_secs(30);
    let reads = file
        .read_many_at([(vec![0; 2], 6)])
        .window(4)
        .timeout(limit)
        .await;
    assert_eq!(reads.len(), 1);
    Ok(())
}

async fn files(engine: &Engine, dir: &Path) -> io::Result<()> {
    let path = dir.join("data");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    let opening: Opening<'_> = engine.open_with(&options, &path);
    let file: File = opening.timeout(Duration::from_secs(30)).await?;

    let write: Operation<'_, WriteAt<&'static str>, WholeResult<&'static str>> =
        file.write_all_at("0123456789", 0);
    write.await?;
    let part: Slice<String> = String::from("abc").subslice(1..);
    let (written, part) = file.write_at(part, 8).await?;
    assert_eq!((written, part.into_inner().len()), (2, 3));
    file.write_all_durable_at(vec![b'x'; 2], 10).await?;
    let sync: Operation<'_, Fsync, io::Result<()>> = file.sync_all();
    sync.await?;
    file.sync_data().await?;

    ahead(&file).await?;
    let mut part = [0; 2];
    let into: ReadInto<'_> = file.read_into(&mut part, 2);
    assert_eq!(into.timeout(Duration::from_secs(30)).await?, 2);
    assert_eq!(&part, b"23");

    batch(&file).await?;

    let truncate: Operation<'_, Truncate, io::Result<()>> = file.set_len(4);
    truncate.await?;
    let metadata: Metadata = file.metadata().await?;
    assert_eq!(
        (metadata.len(), metadata.is_file(), metadata.is_dir()),
        (4, true, false)
    );
    let times = FileTimes::new()
        .set_modified(SystemTime::UNIX_EPOCH)
        .set_accessed(SystemTime::now());
    file.set_times(times).await?;
    let clone = file.clone();
    assert_eq!(file.close().await?, Closed::Deferred);
    assert_eq!(clone.close().await?, Closed::Now);

    let mut options = OpenOptions::new();
    options
        .append(true)
        .read(false)
        .create(false)
        .truncate(false);
    let file = engine.open_with(&options, &path).await?;
    file.write_all_at("end", 0).await?;
    assert_eq!(engine.read(&path).await?, b"0123end");
    let file = File::from_std(std::fs::File::open(&path)?, engine)?;
    assert_eq!(file.read_at(vec![0; 8], 4).await?.0, 3);
    Ok(())
}

/// Also with a path of one's own.
async fn is_dir(engine: &Engine, path: impl OpPath) -> io::Result<bool> {
    let query: Operation<'_, StatAt, io::Result<Metadata>> = engine.metadata(path);
    Ok(query.await?.kind() == FileKind::Dir)
}

async fn paths(engine: &Engine, dir: &Path) -> io::Result<()> {
    let (one, two, three) = (dir.join("one"), dir.join("two"), dir.join("three"));
    engine.write(&one, "text").await?;
    assert_eq!(engine.read_to_string(&one).await?, "text");
    let _copied: u64 = engine.copy(&one, &two).await?;
    assert_eq!(engine.read(&two).await?, b"text");
    let same = engine.copy(&one, &one).await.unwrap_err();
    assert_eq!(same.kind(), ErrorKind::InvalidInput);
    let rename: Operation<'_, Rename, io::Result<()>> = engine.rename(&two, &three);
    rename.await?;
    let link: Operation<'_, Link, io::Result<()>> = engine.hard_link(&three, &two);
    link.await?;
    let read_link: Operation<'_, ReadLink, io::Result<_>> = engine.read_link(&one);
    assert!(read_link.await.is_err());
    assert!(engine.try_exists(&two).await? && !engine.try_exists(dir.join("four")).await?);

    let permissions = std::fs::metadata(&one)?.permissions();
    let set: Operation<'_, SetPermissions, io::Result<()>> =
        engine.set_permissions(&one, permissions);
    set.await?;
    let times = FileTimes::new().set_modified(SystemTime::UNIX_EPOCH);
    let set: Operation<'_, SetTimes, io::Result<()>> = engine.set_times(&one, times);
    set.await?;
    let metadata = engine.symlink_metadata(&one).await?;
    assert_eq!(metadata.modified(), SystemTime::UNIX_EPOCH);
    let _ = (metadata.accessed(), metadata.created());

    let sub = dir.join("a").join("b");
    engine.create_dir_all(&sub).await?;
    let make: Operation<'_, MakeDir, io::Result<()>> = engine.create_dir(sub.join("c"));
    make.await?;
    assert!(is_dir(engine, &sub).await?);
    let absolute: Operation<'_, Canonicalize, io::Result<_>> = engine.canonicalize(&sub);
    assert!(absolute.await?.is_absolute());
    let mut listing: ReadDir = engine.read_dir(dir);
    let mut names = Vec::new();
    while let Some(entry) = listing.next().await {
        let entry: DirEntry = entry?;
        assert_eq!(entry.kind() == FileKind::Dir, entry.name() == "a");
        names.push(entry.name().to_owned());
    }
    assert_eq!((names.len(), engine.read_dir(&sub).await?.len()), (5, 1));
    let remove: Operation<'_, Unlink, io::Result<()>> = engine.remove_file(&one);
    remove.await?;
    engine.remove_dir(sub.join("c")).await?;
    engine.remove_dir_all(dir.join("a")).await
}

async fn times(engine: &Engine) -> io::Result<()> {
    let nop: Operation<'_, Nop, io::Result<()>> = engine.nop();
    nop.await?;
    let sleep: Operation<'_, Sleep, io::Result<()>> = engine.sleep(Duration::from_millis(1));
    sleep.await?;
    let never = engine.timeout(Duration::from_millis(1), std::future::pending::<()>());
    let late = never.await.unwrap_err();
    assert_eq!(EngineError::of(&late), Some(EngineError::TimedOut));
    let ended = Engine::new()?;
    ended.shutdown();
    let error = ended.nop().await.unwrap_err();
    assert_eq!(EngineError::of(&error), Some(EngineError::Ended));
    Ok(())
}

/// Generic code over buffers.
fn lent<B: IoBufMut>(buf: B) -> (usize, B) {
    (buf.lent_bytes(), buf)
}

fn refused_buffer(engine: &Engine, dir: &Path) -> Result<(), BufError<Vec<u8>>> {
    let file = pollster::block_on(engine.create(dir.join("empty")));
    let file = file.expect("the directory exists");
    let (bytes, buf) = lent(Vec::new());
    assert_eq!(bytes, 0);
    pollster::block_on(file.read_at(buf, 0)).map(drop)
}
