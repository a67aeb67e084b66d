//! A writing process is killed at random points. Each object is then the old or the new version, what was acknowledged
//! is there, and listings show no staged file.
//!
//! `ANNULUS_CRASHES=2000` sets the number of kills.

use std::fs::DirEntry;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path as FilePath;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use annulus_object_store::v0_14::LocalFileSystem;
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{Error, ObjectMeta, ObjectStore, ObjectStoreExt};

/// The environment variable with the folder of the writing process.
const FOLDER: &str = "ANNULUS_TEST_CRASH_FOLDER";
const CRASHES: usize = 160;
const OBJECTS: usize = 5;

fn object(change: usize) -> Path {
    Path::from(format!("folder/object{}", change % OBJECTS))
}

/// The contents that a change writes. They begin with its number.
fn contents(change: usize) -> Vec<u8> {
    let mut bytes = format!("{change},").into_bytes();
    bytes.resize(
        bytes.len() + change * 7919 % 50_000,
        b'0' + (change % 10) as u8,
    );
    bytes
}

async fn change(store: &LocalFileSystem, change: usize) -> Result<(), Error> {
    let contents = contents(change);
    // Not in step with the objects, so that each object gets each kind of change.
    match change % 4 {
        0 => drop(store.put(&object(change), contents.into()).await?),
        1 => {
            let mut upload = store.put_multipart(&object(change)).await?;
            for part in contents.chunks(20_000) {
                upload.put_part(part.to_vec().into()).await?;
            }
            upload.complete().await?;
        }
        kind => {
            let source = Path::from(format!("source{change}"));
            store.put(&source, contents.into()).await?;
            match kind {
                2 => store.copy(&source, &object(change)).await?,
                _ => store.rename(&source, &object(change)).await?,
            }
        }
    }
    Ok(())
}

/// The body of the writing process, which is this test program started again for this test. Writes the number of each
/// change that is complete. In the tests' own process there is no folder, and nothing to do.
#[test]
fn the_writing_process() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let store = LocalFileSystem::new_with_prefix(folder).unwrap();
        for number in 0.. {
            change(&store, number).await.unwrap();
            let mut output = std::io::stdout().lock();
            writeln!(output, "done {number}").unwrap();
            output.flush().unwrap();
        }
    });
}

fn start(folder: &FilePath) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "crash::the_writing_process",
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(FOLDER, folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Kills the process after some changes and a random time. Returns the number of acknowledged changes.
fn kill(mut child: Child, random: &mut fastrand::Rng) -> usize {
    let wanted = random.usize(0..40);
    let more = Duration::from_nanos(random.u64(0..500_000));
    let output = BufReader::new(child.stdout.take().unwrap());
    let mut acknowledged = 0;
    let mut killed = false;
    for line in output.lines() {
        // The first one follows the name of the test.
        let line = line.unwrap();
        let Some((_, number)) = line.split_once("done ") else {
            continue;
        };
        assert_eq!(number.parse(), Ok(acknowledged));
        acknowledged += 1;
        if acknowledged > wanted && !killed {
            let until = Instant::now() + more;
            while Instant::now() < until {}
            child.kill().unwrap();
            killed = true;
        }
    }
    child.wait().unwrap();
    assert!(
        killed,
        "the writing process ended by itself after {acknowledged} changes"
    );
    acknowledged
}

async fn check(folder: &FilePath, acknowledged: usize) -> u64 {
    let store = LocalFileSystem::new_with_prefix(folder).unwrap();
    let listed: Vec<ObjectMeta> = store.list(None).try_collect().await.unwrap();
    for meta in &listed {
        assert!(!meta.location.as_ref().contains('#'), "{}", meta.location);
        let bytes = store
            .get(&meta.location)
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap();
        let text = std::str::from_utf8(&bytes).unwrap();
        let number: usize = text.split(',').next().unwrap().parse().unwrap();
        assert_eq!(
            text.as_bytes(),
            contents(number),
            "{} is torn",
            meta.location
        );
    }
    // The change after the acknowledged ones may be complete, too.
    for changed in 0..OBJECTS {
        let last = (0..acknowledged)
            .rev()
            .find(|number| number % OBJECTS == changed);
        let next = (acknowledged % OBJECTS == changed).then_some(acknowledged);
        let got = match store.get(&object(changed)).await {
            Ok(got) => Some(got.bytes().await.unwrap().to_vec()),
            Err(Error::NotFound { .. }) => None,
            Err(error) => panic!("{error}"),
        };
        let allowed = [Some(last), next.map(Some)];
        let allowed: Vec<_> = allowed
            .into_iter()
            .flatten()
            .map(|number| number.map(contents))
            .collect();
        assert!(
            allowed.contains(&got),
            "object {changed} after {acknowledged} changes"
        );
    }
    let removed = store.remove_staged(Duration::ZERO).await.unwrap();
    // The folder in it may not exist.
    let staged = |folder: &FilePath| staged_among(std::fs::read_dir(folder).into_iter().flatten());
    assert_eq!(staged(folder) + staged(&folder.join("folder")), 0);
    removed
}

/// Returns the number of staged files.
pub(crate) fn staged_among(entries: impl Iterator<Item = io::Result<DirEntry>>) -> usize {
    let is_staged = |entry: &io::Result<DirEntry>| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_string_lossy().contains('#')
    };
    entries.filter(is_staged).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_writer_leaves_old_or_new_versions() {
    let crashes = std::env::var("ANNULUS_CRASHES").ok();
    let crashes = crashes.map_or(CRASHES, |crashes| crashes.parse().unwrap());
    let seed =
        std::env::var("SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let (mut changes, mut staged) = (0, 0);
    // Two processes at a time: one starts while the other writes.
    let kills = (0..crashes as u64).map(|crash| {
        tokio::task::spawn_blocking(move || {
            let folder = tempfile::tempdir().unwrap();
            let mut random = fastrand::Rng::with_seed(seed.wrapping_add(crash));
            let acknowledged = kill(start(folder.path()), &mut random);
            (folder, acknowledged)
        })
    });
    let mut kills = futures_util::StreamExt::buffered(futures_util::stream::iter(kills), 3);
    while let Some(killed) = futures_util::StreamExt::next(&mut kills).await {
        let (folder, acknowledged) = killed.unwrap();
        changes += acknowledged;
        staged += check(folder.path(), acknowledged).await;
    }
    println!(
        "{crashes} kills after {changes} changes in total; {staged} staged files were left and removed"
    );
}
