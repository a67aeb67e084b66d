//! Keys and values whose changes are appended to a file, as in Redis. A change is with the kernel before its answer is
//! printed, and durable as the policy says. Commands come from standard input:
//! `printf 'set a 1\nget a\n' | cargo run --release -p annulus --features tokio --example append_only -- LOG always`

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::time::{Duration, Instant};

use annulus::tokio::fs; // `use tokio::fs;` instead takes the files of Tokio
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

type Values = BTreeMap<String, String>;

struct Store {
    log: fs::File,
    values: Values,
    /// The time between two syncs; `None`: only the kernel decides.
    sync_every: Option<Duration>,
    synced: Instant,
}

/// Applies a change. Returns `false` if the command is none.
fn apply(values: &mut Values, command: &str) -> bool {
    match *command.splitn(3, ' ').collect::<Vec<_>>() {
        ["set", key, value] => _ = values.insert(key.to_owned(), value.to_owned()),
        ["del", key] => _ = values.remove(key),
        _ => return false,
    }
    true
}

impl Store {
    async fn open(path: &str, sync_every: Option<Duration>) -> io::Result<Store> {
        let mut options = fs::OpenOptions::new();
        let log = options
            .read(true)
            .append(true)
            .create(true)
            .open(path)
            .await?;
        let (mut lines, mut line, mut end) = (BufReader::new(log), String::new(), 0);
        let mut values = Values::new();
        while lines.read_line(&mut line).await? > 0 && line.ends_with('\n') {
            end += line.len() as u64;
            apply(&mut values, line.trim_end_matches('\n'));
            line.clear();
        }
        let log = lines.into_inner();
        log.set_len(end).await?; // A crash may have left a part of a command.
        let synced = Instant::now();
        Ok(Store {
            log,
            values,
            sync_every,
            synced,
        })
    }

    async fn run(&mut self, command: &str) -> io::Result<String> {
        if let Some(key) = command.strip_prefix("get ") {
            return Ok(self
                .values
                .get(key)
                .map_or("(none)", String::as_str)
                .to_owned());
        }
        if !apply(&mut self.values, command) {
            return Ok("error: use `set KEY VALUE`, `get KEY` or `del KEY`".to_owned());
        }
        self.log
            .write_all(format!("{command}\n").as_bytes())
            .await?;
        self.log.flush().await?; // reports an error of the write
        if self
            .sync_every
            .is_some_and(|time| self.synced.elapsed() >= time)
        {
            self.sync().await?;
        }
        Ok("ok".to_owned())
    }

    async fn sync(&mut self) -> io::Result<()> {
        self.synced = Instant::now();
        self.log.sync_data().await
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let (path, sync_every) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [path, "always"] => (path, Some(Duration::ZERO)),
        [path, "everysec"] => (path, Some(Duration::from_secs(1))),
        [path, "no"] => (path, None),
        _ => return Err("usage: append_only LOG always|everysec|no".into()),
    };
    let mut store = Store::open(path, sync_every).await?;
    for line in io::stdin().lines() {
        println!("{}", store.run(&line?).await?);
    }
    Ok(store.sync().await?)
}
