//! A cursor does what a file of std does, through the traits of Tokio and of futures-io.

use std::future::{Future, poll_fn};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use annulus::OpenOptions;
use annulus::fs::FileCursor;
use tokio::io::{
    AsyncBufReadExt, AsyncReadExt, AsyncSeek, AsyncSeekExt, AsyncWrite, AsyncWriteExt,
};

use crate::fixtures::{Fixture, bytes, for_each_backend, uncache};
use crate::wait::eventually_on;

/// Steps of a random comparison, on each backend.
const STEPS: usize = 400;
/// The longest read or write of a step: more than a block, and more than writes gather.
const STEP_BYTES_MAX: usize = 300 << 10;
/// The largest offset of a seek.
const OFFSET_MAX: u64 = 900 << 10;

/// Polls once, and drops the future.
fn once<T>(future: impl Future<Output = T>) -> Poll<T> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// A cursor beside a file of std with the same contents.
struct Pair {
    cursor: FileCursor,
    std: std::fs::File,
    random: fastrand::Rng,
}

impl Pair {
    fn position(&mut self) -> u64 {
        self.std.stream_position().unwrap()
    }

    /// Checks that std reads the same bytes next. No bytes are the end, if some were wanted.
    fn expect(&mut self, read: &[u8], wanted: usize) {
        let mut expected = vec![0; read.len().max(usize::from(wanted > 0 && read.is_empty()))];
        let at = self.position();
        let count = self.std.read(&mut expected).unwrap();
        assert!(
            expected[..count] == *read,
            "{} bytes at {at}, expected {count}",
            read.len()
        );
    }

    async fn read(&mut self) {
        let wanted = self.random.usize(..STEP_BYTES_MAX);
        let mut buf = vec![0; wanted];
        let count = match self.random.bool() {
            true => self.cursor.read(&mut buf).await.unwrap(),
            false => futures_util::AsyncReadExt::read(&mut self.cursor, &mut buf)
                .await
                .unwrap(),
        };
        self.expect(&buf[..count], wanted);
    }

    /// Reads many bytes with small steps, as a parser does.
    async fn parse(&mut self) {
        for _ in 0..self.random.usize(..40) {
            let block = self.cursor.fill_buf().await.unwrap();
            let consumed = self.random.usize(..=block.len());
            let read = block[..consumed].to_vec();
            let wanted = usize::from(block.is_empty());
            self.cursor.consume(consumed);
            self.expect(&read, wanted);
        }
    }

    async fn write(&mut self) {
        let written = bytes(self.random.u64(..), self.random.usize(..STEP_BYTES_MAX));
        match self.random.bool() {
            true => self.cursor.write_all(&written).await.unwrap(),
            false => futures_util::AsyncWriteExt::write_all(&mut self.cursor, &written)
                .await
                .unwrap(),
        }
        self.std.write_all(&written).unwrap();
    }

    fn target(&mut self) -> SeekFrom {
        let by = self.random.i64(-(OFFSET_MAX as i64)..OFFSET_MAX as i64);
        match self.random.u8(..5) {
            0 => SeekFrom::Start(self.random.u64(..OFFSET_MAX)),
            1 => SeekFrom::End(by / 4),
            2 => SeekFrom::Current(by),
            3 => SeekFrom::Current(by / 1000),
            _ => SeekFrom::Current(0),
        }
    }

    /// Seeks, also to places that do not exist.
    async fn seek(&mut self) {
        let to = self.target();
        let sought = match self.random.bool() {
            true => self.cursor.seek(to).await,
            false => futures_util::AsyncSeekExt::seek(&mut self.cursor, to).await,
        };
        match (sought, self.std.seek(to)) {
            (Ok(one), Ok(other)) => assert_eq!(one, other, "{to:?}"),
            (Err(one), Err(other)) => assert_eq!(one.kind(), other.kind(), "{to:?}"),
            (one, other) => panic!("{to:?}: {one:?}, std: {other:?}"),
        }
    }

    /// Drops a future after its first poll. Bytes that earlier calls have acknowledged stay.
    async fn drop_a_future(&mut self) {
        match self.random.u8(..4) {
            0 => {
                let mut buf = vec![0; self.random.usize(1..STEP_BYTES_MAX)];
                if let Poll::Ready(read) = once(self.cursor.read(&mut buf)) {
                    self.expect(&buf[..read.unwrap()], 1);
                }
            }
            1 => {
                let written = bytes(self.random.u64(..), self.random.usize(1..STEP_BYTES_MAX));
                let polled = once(poll_fn(|context| {
                    Pin::new(&mut self.cursor).poll_write(context, &written)
                }));
                if let Poll::Ready(count) = polled {
                    self.std.write_all(&written[..count.unwrap()]).unwrap();
                }
            }
            2 => {
                let _ = once(self.cursor.flush());
            }
            _ => {
                // A seek that has begun takes effect with the next call.
                let to = self.target();
                let begun = Pin::new(&mut self.cursor).start_seek(to);
                begun.unwrap();
                let _ = once(poll_fn(|context| {
                    Pin::new(&mut self.cursor).poll_complete(context)
                }));
                let settled =
                    poll_fn(|context| Pin::new(&mut self.cursor).poll_complete(context)).await;
                if let (Ok(_), Ok(to)) = (&settled, self.std.seek(to)) {
                    assert_eq!(self.cursor.position(), to);
                }
            }
        }
    }

    async fn step(&mut self) {
        match self.random.u8(..10) {
            0..3 => self.read().await,
            3 => self.parse().await,
            4..6 => self.write().await,
            6..8 => self.seek().await,
            8 => self.drop_a_future().await,
            _ => {
                self.cursor.flush().await.unwrap();
                assert_eq!(self.cursor.position(), self.position());
            }
        }
    }
}

#[test]
fn random_reads_writes_and_seeks_are_those_of_std() {
    let seed =
        std::env::var("SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("repeat with SEED={seed}");
    for_each_backend(async |fixture| {
        let contents = bytes(seed, 700_000);
        let mut std = tempfile::tempfile().unwrap();
        std.write_all(&contents).unwrap();
        std.rewind().unwrap();
        let file = fixture.file("f", &contents).await;
        let mut random = fastrand::Rng::with_seed(seed);
        let mut pair = Pair {
            cursor: file.cursor().with_read_ahead(random.usize(..600_000)),
            std,
            random,
        };
        for step in 0..STEPS {
            if step % 50 == 0 {
                pair.cursor.flush().await.unwrap();
                uncache(&file).await;
            }
            pair.step().await;
        }
        pair.cursor.shutdown().await.unwrap();
        let mut expected = Vec::new();
        pair.std.rewind().unwrap();
        pair.std.read_to_end(&mut expected).unwrap();
        assert!(fixture.contents("f").unwrap() == expected);
    });
}

#[test]
fn the_bytes_of_a_dropped_cursor_reach_the_file() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", b"").await;
        let written = bytes(5, 700_000);
        let mut cursor = file.cursor();
        cursor.write_all(&written).await.unwrap();
        drop(cursor);
        let arrived = || fixture.contents("f").unwrap() == written;
        eventually_on(fixture, "all bytes are in the file", arrived).await;
    });
}

#[test]
fn a_failed_write_is_reported_up_to_a_seek_and_moves_the_position_back() {
    for_each_backend(async |fixture| {
        fixture.put("f", b"contents");
        let file = fixture.engine.open(fixture.path("f")).await.unwrap();
        let mut cursor = file.cursor();
        cursor.seek(SeekFrom::Start(4)).await.unwrap();
        for by_flush in [true, false] {
            // The first write is acknowledged before its result is known, unless it fails immediately.
            let failed = match cursor.write(b"no").await {
                Ok(_) if by_flush => cursor.flush().await,
                Ok(_) => cursor.read_u8().await.map(drop),
                Err(error) => Err(error),
            };
            let repeated = [
                failed,
                cursor.flush().await,
                cursor.write(b"more").await.map(drop),
                cursor.read_u8().await.map(drop),
                cursor.shutdown().await,
                cursor.seek(SeekFrom::Current(1)).await.map(drop),
            ];
            for result in repeated {
                assert_eq!(result.unwrap_err().raw_os_error(), Some(9), "EBADF");
            }
            cursor.flush().await.unwrap();
            assert_eq!(cursor.position(), 4);
        }
        let mut rest = String::new();
        cursor.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "ents");
    });
}

#[test]
fn an_appending_cursor_is_at_the_end_after_a_write() {
    for_each_backend(async |fixture| {
        fixture.put("f", b"0123456789");
        let options = OpenOptions::new().read(true).append(true).clone();
        let file = fixture.engine.open_with(&options, fixture.path("f"));
        let mut cursor = file.await.unwrap().cursor();
        let mut two = [0; 2];
        cursor.read_exact(&mut two).await.unwrap();
        cursor.write_all(b"abc").await.unwrap();
        cursor.write_all(b"def").await.unwrap();
        cursor.flush().await.unwrap();
        assert_eq!(cursor.position(), 16);
        assert_eq!(cursor.seek(SeekFrom::Current(-4)).await.unwrap(), 12);
        cursor.read_exact(&mut two).await.unwrap();
        assert_eq!(&two, b"cd");
        assert_eq!(fixture.contents("f").unwrap(), b"0123456789abcdef");
    });
}

#[test]
fn the_end_of_a_growing_file_moves() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", &bytes(1, 70_000)).await;
        let mut cursor = file.cursor();
        let mut all = Vec::new();
        for end in [70_000, 70_001, 200_000] {
            file.write_all_at(bytes(1, end), 0).await.unwrap();
            cursor.read_to_end(&mut all).await.unwrap();
            assert!(all == bytes(1, end), "up to {end}");
        }
    });
}

#[test]
fn a_seek_shows_what_another_handle_has_written() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", &bytes(1, 1_000_000)).await;
        uncache(&file).await;
        let mut cursor = file.cursor();
        let mut read = vec![0; 300_000];
        cursor.read_exact(&mut read).await.unwrap();
        file.write_all_at(bytes(2, 1_000_000), 0).await.unwrap();
        cursor.rewind().await.unwrap();
        cursor.read_exact(&mut read).await.unwrap();
        assert!(read == bytes(2, 300_000));
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn blocks_grow_while_a_program_reads_on_and_stay_small_while_it_seeks() {
    for_each_backend(async |fixture| {
        let contents = bytes(3, 4 << 20);
        let file = fixture.file("f", &contents).await;
        uncache(&file).await;
        let reads = |before: &annulus::metrics::Metrics| {
            let now = fixture.engine.metrics();
            (now.completed + now.fast_path) - (before.completed + before.fast_path)
        };
        let before = fixture.engine.metrics();
        let mut all = Vec::new();
        file.cursor().read_to_end(&mut all).await.unwrap();
        assert!(all == contents);
        // 16, 32 and 64 KiB, then at least 128 KiB each; and the end, twice.
        let blocks = 3 + (4 << 20) / (128 << 10) + 2;
        assert!(reads(&before) <= blocks, "{} reads", reads(&before));

        let before = fixture.engine.metrics();
        let mut cursor = file.cursor();
        for place in 0..20 {
            cursor.seek(SeekFrom::Start(place * 200_000)).await.unwrap();
            let at = place as usize * 200_000;
            assert_eq!(
                cursor.fill_buf().await.unwrap()[..100],
                contents[at..][..100]
            );
            assert!(cursor.fill_buf().await.unwrap().len() <= 16 << 10);
        }
        assert_eq!(reads(&before), 20, "nothing is read ahead at random places");
    });
}

#[cfg(not(annulus_portable))]
async fn lines_of(fixture: &Fixture, direct: bool, text: &str) -> io::Result<Vec<String>> {
    fixture.put("f", text.as_bytes());
    let options = OpenOptions::new().read(true).direct(direct).clone();
    let file = fixture
        .engine
        .open_with(&options, fixture.path("f"))
        .await?;
    let mut lines = file.cursor().lines();
    let mut all = Vec::new();
    while let Some(line) = lines.next_line().await? {
        all.push(line);
    }
    Ok(all)
}

#[cfg(not(annulus_portable))]
#[test]
fn lines_are_those_of_the_text_with_direct_reads_too() {
    let mut random = fastrand::Rng::with_seed(7);
    let lines: Vec<String> = (0..30_000)
        .map(|_| "x".repeat(random.usize(..200)))
        .collect();
    let text = lines.join("\n");
    for_each_backend(async |fixture| {
        for direct in [false, true] {
            match lines_of(fixture, direct, &text).await {
                Ok(read) => assert!(read == lines, "direct: {direct}"),
                // Not every file system has direct I/O.
                Err(error) if direct && error.kind() == io::ErrorKind::InvalidInput => {
                    annulus_testing::skip::skip(format_args!("direct I/O: {error}"));
                }
                Err(error) => panic!("direct: {direct}: {error}"),
            }
        }
    });
}
