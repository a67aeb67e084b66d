//! `annulus::tokio::fs` in place of `tokio::fs`, on every platform: `cargo run --features tokio --example portable_fs`.

use std::io::{self, Read, Seek, SeekFrom};

use annulus::tokio::fs;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncSeekExt, AsyncWriteExt, BufReader};

fn main() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(async {
        let path = dir.path().join("lines");
        let mut file = fs::File::create(&path).await?;
        for line in 0..100 {
            file.write_all(format!("line {line}\n").as_bytes()).await?;
        }
        file.flush().await?;
        assert_eq!(file.metadata().await?.len(), 790);

        let mut options = fs::OpenOptions::new();
        let mut log = options.append(true).open(&path).await?;
        log.write_all(b"the end\n").await?;
        log.flush().await?;

        let mut lines = BufReader::new(fs::File::open(&path).await?).lines();
        let mut count = 0;
        while let Some(line) = lines.next_line().await? {
            assert!(line.starts_with("line") || line == "the end");
            count += 1;
        }
        assert_eq!(count, 101);

        // A file of std continues where this one stopped, also after a read at an offset.
        let mut file = fs::File::open(&path).await?;
        let mut part = [0; 7];
        file.seek(SeekFrom::End(-8)).await?;
        file.read_exact(&mut part).await?;
        assert_eq!(&part, b"the end");
        assert_eq!(file.read_exact_at(vec![0; 4], 0).await?, b"line");
        let mut std = file.into_std().await;
        assert_eq!(std.stream_position()?, 797);
        let mut rest = String::new();
        std.read_to_string(&mut rest)?;
        assert_eq!(rest, "\n");
        let mut file = fs::File::from_std(std);
        file.rewind().await?;
        assert_eq!(file.read(&mut part).await?, 7);

        #[cfg(windows)]
        {
            let path = dir.path().join("alone");
            let mut options = fs::OpenOptions::new();
            options.write(true).create_new(true).share_mode(0);
            let alone = options.open(&path).await?;
            assert!(fs::File::open(&path).await.is_err());
            drop(alone);
            fs::remove_file(&path).await?;
        }

        fs::copy(&path, dir.path().join("copy")).await?;
        fs::create_dir_all(dir.path().join("a/b")).await?;
        let mut entries = fs::read_dir(dir.path()).await?;
        let mut names = Vec::new();
        while let Some(entry) = entries.next_entry().await? {
            names.push((entry.file_name(), entry.file_type().await?.is_dir()));
        }
        names.sort();
        let expected = [("a", true), ("copy", false), ("lines", false)];
        assert_eq!(names, expected.map(|(name, is_dir)| (name.into(), is_dir)));
        println!("{}", fs::engine().backend());
        Ok(())
    })
}
