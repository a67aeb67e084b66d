//! Appends each line of standard input to a log, and prints its offset once it is on stable storage:
//! `cargo run --release -p annulus --example log -- /tmp/log`

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use annulus::{Engine, File, OpenOptions};

struct Log {
    file: File,
    end: u64,
}

impl Log {
    async fn open(engine: &Engine, path: &Path) -> io::Result<Log> {
        let mut options = OpenOptions::new();
        let file = engine
            .open_with(options.write(true).create(true), path)
            .await?;
        // A new file survives a power failure only if its directory is synced, too.
        let directory = match path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        engine.open(directory).await?.sync_all().await?;
        let end = file.metadata().await?.len();
        Ok(Log { file, end })
    }

    /// Appends a record and returns its offset. The record is then on stable storage.
    async fn append(&mut self, record: Vec<u8>) -> io::Result<u64> {
        let offset = self.end;
        // After an error `end` is unchanged, so the next record overwrites an incomplete one.
        let record = self.file.write_all_durable_at(record, offset).await?;
        self.end += record.len() as u64;
        Ok(offset)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let path: PathBuf = std::env::args_os().nth(1).ok_or("usage: log FILE")?.into();
    pollster::block_on(async {
        let mut log = Log::open(&Engine::new()?, &path).await?;
        for line in io::stdin().lines() {
            let offset = log.append((line? + "\n").into_bytes()).await?;
            println!("{offset}");
        }
        Ok(())
    })
}
