//! A few file operations, and the results that every backend must return, whatever the system forbids.

use std::path::Path;

use annulus::{Backend, BackendInUse, Engine, OpenOptions, SetupError};

/// The results of the operations, one line per step.
const RESULTS: [&str; 9] = [
    "wrote 8192",
    "read 4096 of 7",
    "cached 4096 of 9",
    "many [Some(4096), Some(4096), Some(0)]",
    "synced",
    "length 8192",
    "listed [\"data\"]",
    "removed",
    "gone: Some(2)",
];

/// Runs the operations in `dir`, with at most one open descriptor at a time, and compares their results.
#[track_caller]
pub fn assert_all_works(engine: &Engine, dir: &Path) {
    let results = pollster::block_on(work(engine, dir)).unwrap();
    assert_eq!(results, RESULTS, "on {}", engine.backend());
}

async fn work(engine: &Engine, dir: &Path) -> std::io::Result<Vec<String>> {
    let path = dir.join("data");
    let mut results = Vec::new();
    let mut options = OpenOptions::new();
    let file = engine
        .open_with(options.read(true).write(true).create_new(true), &path)
        .await?;
    let (first, _) = file.write_at(vec![7; 4096], 0).await?;
    let second = file.write_all_durable_at(vec![9; 4096], 4096).await?;
    results.push(format!("wrote {}", first + second.len()));
    let (bytes, page) = file.read_at(vec![0; 4096], 0).await?;
    results.push(format!("read {bytes} of {}", page[0]));
    let mut page = [0; 4096];
    let bytes = file.read_into(&mut page, 4096).await?;
    results.push(format!("cached {bytes} of {}", page[0]));
    let many = file
        .read_many_at((0..3).map(|page| (vec![0; 4096], page * 4096)))
        .await;
    let many: Vec<_> = many
        .into_iter()
        .map(|result| result.ok().map(|(bytes, _)| bytes))
        .collect();
    results.push(format!("many {many:?}"));
    file.sync_all().await?;
    results.push("synced".to_owned());
    results.push(format!("length {}", file.metadata().await?.len()));
    assert_eq!(file.close().await?, annulus::fs::Closed::Now);
    let listed: Vec<_> = engine
        .read_dir(dir)
        .await?
        .iter()
        .map(|entry| entry.name().to_owned())
        .collect();
    results.push(format!("listed {listed:?}"));
    engine.remove_file(&path).await?;
    results.push("removed".to_owned());
    let gone = engine
        .metadata(&path)
        .await
        .err()
        .map(|error| error.raw_os_error());
    results.push(format!("gone: {:?}", gone.flatten()));
    Ok(results)
}

/// Returns an engine with the default backend, which must be blocking threads, and the reason for that.
#[track_caller]
pub fn fallen_back() -> (Engine, String) {
    let engine = Engine::new().unwrap();
    match engine.backend() {
        BackendInUse::Fallback {
            reason: Some(reason),
            ..
        } => {
            let reason = reason.to_string();
            assert!(
                engine.backend().to_string().ends_with(&reason),
                "{}",
                engine.backend()
            );
            (engine, reason)
        }
        other => panic!("io_uring should be refused, but the backend is: {other}"),
    }
}

/// Returns the reason why no ring can be set up.
#[track_caller]
pub fn no_ring() -> SetupError {
    match Engine::builder().backend(Backend::Uring).build() {
        Err(error) => error,
        Ok(engine) => panic!(
            "io_uring should be refused, but the backend is: {}",
            engine.backend()
        ),
    }
}
