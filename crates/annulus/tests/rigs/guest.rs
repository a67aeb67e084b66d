//! Checks that need another kernel or a device with poll queues. The init script of a virtual machine runs them
//! (`ci/kernel`). Prints one line per check, and a verdict at the end.
//!
//! `guest /dev/nvme0n1 polled|unpolled DIR EXT FAT`: the drive is overwritten. DIR holds temporary files. EXT is a
//! directory on another such drive, on a file system that supports polling. FAT is one on a file system that does not.
//! `-` leaves out EXT or FAT.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use annulus::buf::AlignedBuf;
use annulus::engine::SqPoll;
use annulus::fs::NotPolled;
use annulus::support::{KernelVersion, Support};
use annulus::{Backend, BackendInUse, Engine, EngineBuilder, File, OpenOptions};

/// The blocks of the drive. Each byte of a block identifies the block.
const BLOCK_BYTES: usize = 4096;
const BLOCKS: u64 = 256;

/// The first kernel on which the library polls devices.
const POLLS_SINCE: KernelVersion = KernelVersion::new(5, 17);

type Outcome = Result<String, Box<dyn std::error::Error>>;

struct Guest {
    drive: PathBuf,
    /// The drive has queues to poll, and the kernel polls reliably.
    polled: bool,
    /// An engine has a ring that polls.
    poll_ring: bool,
    dir: PathBuf,
    /// A directory on a file system that supports polling, and one on a file system that does not.
    polling_dir: Option<PathBuf>,
    other_dir: Option<PathBuf>,
    /// Annulus supports the io_uring of this kernel.
    ring: bool,
    failed: u32,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [drive, polled, dir, polling_dir, other_dir] = args.as_slice() else {
        return println!("usage: guest DRIVE polled|unpolled DIR EXT FAT");
    };
    let directory = |dir: &str| (dir != "-").then(|| PathBuf::from(dir));
    let support = Support::detect();
    print!("{support}");
    let mut guest = Guest {
        drive: drive.into(),
        polled: polled == "polled" && support.kernel_version() >= POLLS_SINCE,
        poll_ring: support.ring().is_ok() && support.kernel_version() >= POLLS_SINCE,
        dir: dir.into(),
        polling_dir: directory(polling_dir),
        other_dir: directory(other_dir),
        ring: support.ring().is_ok(),
        failed: 0,
    };
    guest.check("the kernel version determines the backend", Guest::backend);
    guest.check("files, on the default backend", |guest| {
        guest.files(Engine::builder())
    });
    guest.check("files, on blocking threads", |guest| {
        guest.files(Engine::builder().backend(Backend::Fallback))
    });
    guest.check("files, with a polled submission queue", Guest::sqpoll);
    guest.check("the drive is filled", Guest::fill);
    guest.check(
        "the drive is polled, or the reason is reported",
        Guest::poll_support,
    );
    guest.check("a buffered file is not polled", Guest::buffered);
    guest.check("written blocks are read back", Guest::write_back);
    guest.check("many reads in one batch", Guest::many);
    guest.check("dropped futures", Guest::dropped);
    guest.check(
        "a timeout of reads that cannot be cancelled",
        Guest::timeout,
    );
    guest.check("the end of an engine with reads in flight", Guest::ended);
    guest.check(
        "a polled ring, two others, and a polling kernel thread",
        Guest::together,
    );
    guest.check(
        "a file on a file system that supports polling",
        Guest::on_polling_dir,
    );
    guest.check("a file on one that does not", Guest::on_other_dir);
    guest.check("a device whose polling is switched off", Guest::lost_queues);
    match guest.failed {
        0 => println!("VERDICT: all passed"),
        failed => println!("VERDICT: {failed} failed"),
    }
}

/// Returns the byte that fills a block of the drive after a number of rewrites.
fn byte(block: u64, rewrites: u8) -> u8 {
    (block % 251) as u8 ^ rewrites
}

fn is(holds: bool, problem: impl FnOnce() -> String) -> Result<(), Box<dyn std::error::Error>> {
    if holds { Ok(()) } else { Err(problem().into()) }
}

fn aligned() -> AlignedBuf {
    AlignedBuf::with_len(BLOCK_BYTES, BLOCK_BYTES)
}

/// Polls a future once.
fn start<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

impl Guest {
    fn check(&mut self, title: &str, check: impl FnOnce(&Guest) -> Outcome) {
        match check(self) {
            Ok(details) => println!("ok: {title}: {details}"),
            Err(error) => {
                self.failed += 1;
                println!("FAILED: {title}: {error}");
            }
        }
    }

    /// Returns an engine that polls devices, and the drive opened on it.
    fn polling(
        &self,
        builder: EngineBuilder,
    ) -> Result<(Engine, File), Box<dyn std::error::Error>> {
        let engine = builder.iopoll(true).build()?;
        let file = self.open(&engine, true)?;
        Ok((engine, file))
    }

    fn open(&self, engine: &Engine, direct: bool) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).direct(direct);
        pollster::block_on(engine.open_with(&options, &self.drive))
    }

    /// Checks that at least `at_least` operations used the polled ring; none if the drive is not polled.
    fn routed(&self, engine: &Engine, at_least: u64) -> Outcome {
        let metrics = engine.metrics();
        let (polled, refused) = (metrics.polled, metrics.poll_refused);
        let expected = if self.polled && self.ring {
            at_least
        } else {
            0
        };
        let right = if expected == 0 {
            polled == 0
        } else {
            polled >= expected
        };
        is(right && refused == 0 && metrics.stale == 0, || {
            format!("polled {polled}, refused {refused}; expected {expected}")
        })?;
        Ok(format!("{polled} of {} polled", metrics.completed))
    }

    fn backend(&self) -> Outcome {
        let engine = Engine::new()?;
        let text = engine.backend().to_string();
        let right = match engine.backend() {
            BackendInUse::Uring { .. } => self.ring,
            BackendInUse::Fallback { reason, .. } => !self.ring && reason.is_some(),
            _ => false,
        };
        is(right, || text.clone())?;
        Ok(text)
    }

    /// Runs `round` on the engine that `builder` builds.
    fn files(&self, builder: EngineBuilder) -> Outcome {
        let engine = builder.build()?;
        pollster::block_on(round(&engine, &self.dir))?;
        Ok(engine.backend().to_string())
    }

    fn sqpoll(&self) -> Outcome {
        let poll = SqPoll::new().idle(Duration::from_millis(5));
        let text = self.files(Engine::builder().drivers(2).sqpoll(poll))?;
        is(!self.ring || text.contains("a kernel thread polls"), || {
            text.clone()
        })?;
        // A processor that does not exist is refused with a reason, and files still work.
        let refused = self.files(Engine::builder().sqpoll(poll.cpu(4095)))?;
        is(
            !self.ring || refused.contains("processor 4095 does not exist"),
            || refused.clone(),
        )?;
        Ok(text)
    }

    fn fill(&self) -> Outcome {
        let drive = std::fs::File::options().write(true).open(&self.drive)?;
        for block in 0..BLOCKS {
            let contents = [byte(block, 0); BLOCK_BYTES];
            std::os::unix::fs::FileExt::write_all_at(
                &drive,
                &contents,
                block * BLOCK_BYTES as u64,
            )?;
        }
        drive.sync_all()?;
        Ok(format!("{BLOCKS} blocks"))
    }

    fn poll_support(&self) -> Outcome {
        let (engine, file) = self.polling(Engine::builder())?;
        for block in 0..BLOCKS {
            self.expect(&file, block, 0)?;
        }
        let reason = match (self.poll_ring, self.polled, file.poll_support()) {
            (true, true, Ok(())) => "polled".to_owned(),
            (false, _, Err(reason @ NotPolled::NoRing)) => {
                let text = engine.backend().to_string();
                is(!self.ring || text.contains("without iopoll: "), || text)?;
                reason.to_string()
            }
            (true, false, Err(reason @ NotPolled::NoQueues { .. })) => {
                let text = reason.to_string();
                let steps = text.contains("nvme.poll_queues=1") && text.contains("queue/io_poll");
                is(steps, || text.clone())?;
                text
            }
            (_, _, other) => return Err(format!("{other:?}").into()),
        };
        let routed = self.routed(&engine, BLOCKS)?;
        Ok(format!("{reason}; {routed}; {}", engine.backend()))
    }

    fn expect(
        &self,
        file: &File,
        block: u64,
        rewrites: u8,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let read = file.read_exact_at(aligned(), block * BLOCK_BYTES as u64);
        let read = pollster::block_on(read)?;
        is(
            read.iter()
                .all(|&byte_read| byte_read == byte(block, rewrites)),
            || {
                format!(
                    "block {block} has {}, not {}",
                    read[0],
                    byte(block, rewrites)
                )
            },
        )
    }

    fn buffered(&self) -> Outcome {
        let (engine, _) = self.polling(Engine::builder())?;
        let file = self.open(&engine, false)?;
        let page = pollster::block_on(file.read_exact_at(vec![0; BLOCK_BYTES], 0))?;
        is(
            page.iter().all(|&byte_read| byte_read == byte(0, 0)),
            || "wrong bytes".to_owned(),
        )?;
        let reason = file
            .poll_support()
            .err()
            .ok_or("a file without direct I/O is polled")?;
        is(!self.poll_ring || reason == NotPolled::Buffered, || {
            reason.to_string()
        })?;
        is(engine.metrics().polled == 0, || {
            "reads of a buffered file were polled".to_owned()
        })?;
        Ok(reason.to_string())
    }

    fn write_back(&self) -> Outcome {
        let (engine, file) = self.polling(Engine::builder())?;
        for block in 0..32 {
            let mut contents = aligned();
            contents.fill(byte(block, 1));
            pollster::block_on(file.write_all_at(contents, block * BLOCK_BYTES as u64))?;
        }
        pollster::block_on(file.sync_data())?;
        for block in 0..32 {
            self.expect(&file, block, 1)?;
        }
        // Several buffers in one transfer, each way.
        let mut bufs = vec![aligned(), aligned()];
        for (block, buf) in (0..).zip(&mut bufs) {
            buf.fill(byte(block, 0));
        }
        let bufs = pollster::block_on(file.write_vectored_all_at(bufs, 0))?;
        pollster::block_on(file.read_vectored_exact_at(bufs, 0))?;
        for block in 0..32 {
            let mut contents = aligned();
            contents.fill(byte(block, 0));
            pollster::block_on(file.write_all_at(contents, block * BLOCK_BYTES as u64))?;
            self.expect(&file, block, 0)?;
        }
        self.routed(&engine, 130)
    }

    fn many(&self) -> Outcome {
        let (engine, file) = self.polling(Engine::builder())?;
        let order = (0..2 * BLOCKS).map(|n| n * 37 % BLOCKS);
        let reads = order
            .clone()
            .map(|block| (aligned(), block * BLOCK_BYTES as u64));
        let results = pollster::block_on(file.read_many_at(reads));
        for (block, result) in order.zip(results) {
            let (count, buf) = result?;
            let right =
                count == BLOCK_BYTES && buf.iter().all(|&byte_read| byte_read == byte(block, 0));
            is(right, || format!("block {block}"))?;
        }
        // An unaligned range is read through memory of the engine.
        let (count, part) = pollster::block_on(file.read_at(vec![0; 1000], 4000))?;
        is(
            count == 1000 && part[95] == byte(0, 0) && part[96] == byte(1, 0),
            || "the unaligned range has wrong bytes".to_owned(),
        )?;
        self.routed(&engine, 2 * BLOCKS)
    }

    fn dropped(&self) -> Outcome {
        let (engine, file) = self.polling(Engine::builder())?;
        for block in 0..BLOCKS {
            let mut read = file.read_at(aligned(), block * BLOCK_BYTES as u64);
            let _ = start(&mut read);
            if block % 4 == 0 {
                // Most of these are in the device when they are dropped. The others still wait for the driver.
                std::thread::sleep(Duration::from_micros(100));
            }
            drop(read);
            if block % 8 == 0 {
                self.expect(&file, block, 0)?;
            }
        }
        self.routed(&engine, BLOCKS / 8)
    }

    fn timeout(&self) -> Outcome {
        let (engine, file) = self.polling(Engine::builder())?;
        let (mut in_time, mut late) = (0, 0);
        for block in 0..64 {
            let read = file.read_at(aligned(), block * BLOCK_BYTES as u64);
            match pollster::block_on(read.timeout(Duration::from_micros(1))) {
                Ok(_) => in_time += 1,
                Err(error) if error.error().kind() == io::ErrorKind::TimedOut => late += 1,
                Err(error) => return Err(error.into()),
            }
        }
        self.expect(&file, 1, 0)?;
        Ok(format!(
            "{in_time} in time, {late} late; {}",
            self.routed(&engine, 1)?
        ))
    }

    fn ended(&self) -> Outcome {
        for rounds in 0..8 {
            let (engine, file) = self.polling(Engine::builder())?;
            let mut reads: Vec<_> = (0..64)
                .map(|block| file.read_at(aligned(), block * BLOCK_BYTES as u64))
                .collect();
            for read in &mut reads {
                let _ = start(read);
            }
            if rounds % 2 == 0 {
                engine.shutdown();
                let metrics = engine.metrics();
                is(metrics.leaked == 0, || format!("{} leaked", metrics.leaked))?;
                let refused = pollster::block_on(file.read_at(aligned(), 0)).is_err();
                is(refused, || {
                    "the engine accepts reads after its shutdown".to_owned()
                })?;
            }
            drop(reads);
        }
        Ok("8 engines".to_owned())
    }

    fn together(&self) -> Outcome {
        let poll = SqPoll::new().idle(Duration::from_millis(5));
        let (engine, file) = self.polling(Engine::builder().drivers(2).sqpoll(poll))?;
        let (other, same) = self.polling(Engine::builder())?;
        pollster::block_on(round(&engine, &self.dir))?;
        for block in 0..32 {
            self.expect(&file, block, 0)?;
            self.expect(&same, block, 0)?;
        }
        self.routed(&other, 32)?;
        let wakeups = engine.metrics().sq_wakeups;
        Ok(format!(
            "{}; the poller was woken {wakeups} times",
            self.routed(&engine, 32)?
        ))
    }

    /// Writes and reads a file of 64 KiB with direct I/O, on an engine that polls.
    fn on_files(&self, dir: &Path) -> Result<(Engine, File), Box<dyn std::error::Error>> {
        let engine = Engine::builder().iopoll(true).build()?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).direct(true);
        let file = pollster::block_on(engine.open_with(&options, dir.join("direct")))?;
        for round in 0..2 {
            for block in 0..16 {
                let mut contents = aligned();
                contents.fill(byte(block, round));
                pollster::block_on(file.write_all_at(contents, block * BLOCK_BYTES as u64))?;
            }
            let reads = (0..16).map(|block| (aligned(), block * BLOCK_BYTES as u64));
            for (block, result) in (0..).zip(pollster::block_on(file.read_many_at(reads))) {
                let (_, buf) = result?;
                is(
                    buf.iter().all(|&byte_read| byte_read == byte(block, round)),
                    || format!("block {block}"),
                )?;
            }
        }
        Ok((engine, file))
    }

    fn on_polling_dir(&self) -> Outcome {
        let Some(dir) = &self.polling_dir else {
            return Err("there is no such directory".into());
        };
        let (engine, file) = self.on_files(dir)?;
        let polled = self.polled;
        is(file.poll_support().is_ok() == polled, || {
            format!("{:?}", file.poll_support())
        })?;
        self.routed(&engine, 64)
    }

    /// The device supports polling but the file system does not. The library detects this with one operation.
    fn on_other_dir(&self) -> Outcome {
        let Some(dir) = &self.other_dir else {
            return Err("there is no such directory".into());
        };
        let (engine, file) = self.on_files(dir)?;
        let metrics = engine.metrics();
        let reason = file.poll_support().err().ok_or("a file on FAT is polled")?;
        if self.polled {
            is(reason == NotPolled::Refused, || reason.to_string())?;
            is(metrics.polled == 1 && metrics.poll_refused == 1, || {
                format!("{metrics:?}")
            })?;
        } else {
            is(metrics.polled == 0, || format!("{metrics:?}"))?;
        }
        Ok(reason.to_string())
    }

    /// On older kernels the polling of a queue can be switched off while a file is open.
    fn lost_queues(&self) -> Outcome {
        let (engine, file) = self.polling(Engine::builder())?;
        self.expect(&file, 0, 0)?;
        let name = self.drive.file_name().unwrap_or_default().to_string_lossy();
        let switch = format!("/sys/block/{name}/queue/io_poll");
        let switched = std::fs::write(&switch, "0");
        let setting = std::fs::read_to_string(&switch)?;
        for block in 0..32 {
            self.expect(&file, block, 0)?;
        }
        let opened_again = self.open(&engine, true)?;
        self.expect(&opened_again, 0, 0)?;
        let metrics = engine.metrics();
        Ok(format!(
            "switched: {}, io_poll now {}, {} polled of which {} refused; the file: {:?}, opened again: {:?}",
            switched.is_ok(),
            setting.trim(),
            metrics.polled,
            metrics.poll_refused,
            file.poll_support(),
            opened_again
                .poll_support()
                .map_err(|reason| reason.to_string()),
        ))
    }
}

/// Runs most file operations once.
async fn round(engine: &Engine, dir: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let dir = dir.join("round");
    engine.create_dir(&dir).await?;
    let (path, renamed) = (dir.join("a"), dir.join("b"));
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    let file = engine.open_with(&options, &path).await?;
    let contents: Vec<u8> = (0..100_000_u32).map(|at| (at % 253) as u8).collect();
    let contents = file.write_all_at(contents, 0).await?;
    file.sync_all().await?;
    let read = file.read_exact_at(vec![0; 1000], 12_345).await?;
    is(read == contents[12_345..13_345], || {
        "the bytes read differ from those written".to_owned()
    })?;
    let reads = (0..20).map(|n| (vec![0; 4096], n * 4096));
    for (n, result) in file.read_many_at(reads).await.into_iter().enumerate() {
        let (count, page) = result?;
        is(page[..count] == contents[n * 4096..][..count], || {
            format!("page {n}")
        })?;
    }
    let mut part = [0; 10];
    let count = file.read_into(&mut part, 99_995).await?;
    is(count == 5 && part[..5] == contents[99_995..], || {
        "wrong bytes at the end of the file".to_owned()
    })?;
    file.set_len(50_000).await?;
    is(file.metadata().await?.len() == 50_000, || {
        "wrong length after set_len".to_owned()
    })?;
    engine.rename(&path, &renamed).await?;
    let names: Vec<_> = engine.read_dir(&dir).await?;
    is(names.len() == 1 && names[0].name() == "b", || {
        format!("{names:?}")
    })?;
    is(file.close().await? == annulus::fs::Closed::Now, || {
        "the file was not closed".to_owned()
    })?;
    let gone = engine
        .open(&path)
        .await
        .err()
        .and_then(|error| error.raw_os_error());
    is(gone == Some(2), || format!("{gone:?}"))?;
    engine.sleep(Duration::from_millis(1)).await?;
    engine.remove_file(&renamed).await?;
    engine.remove_dir(&dir).await?;
    Ok(())
}
