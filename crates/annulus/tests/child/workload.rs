//! A little work, and what every backend must answer to it, whatever is forbidden.

use std::path::Path;

use annulus::{Backend, Engine, EngineBackend, OpenOptions, SetupError};

/// What the work answers, a line per step.
const ANSWERS: [&str; 9] = [
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

/// Does it in `dir`, with at most one descriptor open at a time, and compares.
#[track_caller]
pub(crate) fn assert_all_works(engine: &Engine, dir: &Path) {
    let answers = pollster::block_on(work(engine, dir)).unwrap();
    assert_eq!(answers, ANSWERS, "on {}", engine.backend());
}

async fn work(engine: &Engine, dir: &Path) -> std::io::Result<Vec<String>> {
    let path = dir.join("data");
    let mut answers = Vec::new();
    let mut options = OpenOptions::new();
    let file = engine
        .open_with(options.read(true).write(true).create_new(true), &path)
        .await?;
    let (first, _) = file.write_at(vec![7; 4096], 0).await?;
    let (second, _) = file.write_at(vec![9; 4096], 4096).await?;
    answers.push(format!("wrote {}", first + second));
    let (bytes, page) = file.read_at(vec![0; 4096], 0).await?;
    answers.push(format!("read {bytes} of {}", page[0]));
    let mut page = [0; 4096];
    let bytes = file.read_into(4096, &mut page).await?;
    answers.push(format!("cached {bytes} of {}", page[0]));
    let many = file
        .read_many_at((0..3).map(|page| (vec![0; 4096], page * 4096)))
        .await;
    let many: Vec<_> = many
        .into_iter()
        .map(|answer| answer.ok().map(|(bytes, _)| bytes))
        .collect();
    answers.push(format!("many {many:?}"));
    file.sync_all().await?;
    answers.push("synced".to_owned());
    answers.push(format!("length {}", file.metadata().await?.len()));
    assert_eq!(file.close().await?, annulus::fs::Closed::Now);
    let listed: Vec<_> = engine
        .read_dir(dir)
        .await?
        .iter()
        .map(|entry| entry.name().to_owned())
        .collect();
    answers.push(format!("listed {listed:?}"));
    engine.remove_file(&path).await?;
    answers.push("removed".to_owned());
    let gone = engine
        .metadata(&path)
        .await
        .err()
        .map(|error| error.raw_os_error());
    answers.push(format!("gone: {:?}", gone.flatten()));
    Ok(answers)
}

/// An engine that was asked to find the best backend, and had to take threads; with the reason.
#[track_caller]
pub(crate) fn fallen_back() -> (Engine, String) {
    let engine = Engine::new().unwrap();
    match engine.backend() {
        EngineBackend::Blocking {
            because: Some(because),
            ..
        } => {
            let because = because.to_string();
            assert!(
                engine.backend().to_string().ends_with(&because),
                "{}",
                engine.backend()
            );
            (engine, because)
        }
        other => panic!("it was to be refused: {other}"),
    }
}

/// The reason why there can be no ring.
#[track_caller]
pub(crate) fn no_ring() -> SetupError {
    match Engine::builder().backend(Backend::Uring).build() {
        Err(error) => error,
        Ok(engine) => panic!("it was to be refused: {}", engine.backend()),
    }
}
