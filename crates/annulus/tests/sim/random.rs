//! Random operations on a simulated kernel with all faults, a fifth of them dropped, compared with
//! a model.

use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;

use annulus::fs::{AllocateMode, Merge};
use annulus::sim::{Sim, SimConfig, spawn};
use annulus::{BufError, Engine, File, OpenOptions};

use crate::buffers::{Census, Counted, Rng};
use crate::chance::{impatience, with_luck};
use crate::model::Model;
use crate::seeds::{for_each_seed, operations};

/// The number of concurrent tasks, each with a separate file.
const TASKS: u64 = 8;
/// The number of operations of a task before it waits until none of them is in flight.
const ROUND: u64 = 50;
/// Longer than any operation takes.
const REST: Duration = Duration::from_secs(20);
const FILE_BYTES: u64 = 6000;

/// A task: an engine, a file and the model of its contents.
struct Worker {
    engine: Engine,
    sim: Rc<Sim>,
    rng: Rng,
    census: Census,
    model: Model,
    file: Option<File>,
    /// The number of paths that were used.
    paths: u64,
}

/// The file that others are copied from.
const PATTERN: &str = "/pattern";

/// Returns the contents of that file.
fn pattern() -> Vec<u8> {
    annulus_testing::pattern::bytes(0, 0, FILE_BYTES as usize)
}

#[test]
fn random_faults_and_drops_give_correct_results_and_leak_nothing() {
    // Ten seconds; less thorough in a debug build, which is ten times as slow.
    let seeds = if cfg!(debug_assertions) { 20 } else { 300 };
    for_each_seed(seeds, |seed| {
        let sim = Rc::new(Sim::new(SimConfig::chaos(seed)));
        sim.put(PATTERN, pattern()).unwrap();
        let census = Census::default();
        let each = operations(1000) / TASKS;
        let (theirs, counted) = (Rc::clone(&sim), census.clone());
        sim.run(async move |engine| {
            let tasks: Vec<_> = (0..TASKS)
                .map(|task| {
                    let model = Model::new(&theirs, format!("/data/{task}"), FILE_BYTES as usize);
                    let worker = Worker {
                        engine: engine.clone(),
                        sim: Rc::clone(&theirs),
                        rng: Rng::new(seed << 8 | task),
                        census: counted.clone(),
                        model,
                        file: None,
                        paths: 0,
                    };
                    spawn(worker.work(each))
                })
                .collect();
            for task in tasks {
                task.await;
            }
        });
        let report = sim.report();
        assert_eq!(report.slots_in_use, 0, "a slot leaked");
        assert_eq!(sim.open_descriptors(), 0, "a descriptor leaked");
        assert_eq!(census.alive(), 0, "a buffer leaked");
        assert_eq!((report.metrics.stale, report.metrics.leaked), (0, 0));
        assert_eq!(report.metrics.submitted, report.metrics.completed);
    });
}

impl Worker {
    async fn work(mut self, operations: u64) {
        for number in 0..operations {
            let Some(file) = self.open().await else {
                continue;
            };
            self.operate(&file).await;
            match self.rng.below(20) {
                0 => drop(file),
                1 => {
                    let close = file.close();
                    with_luck(&self.engine, &mut self.rng, close).await;
                }
                _ => self.file = Some(file),
            }
            if number % ROUND == ROUND - 1 {
                self.engine.sleep(REST).await.unwrap();
                self.model.resolve(&self.sim);
            }
        }
    }

    async fn open(&mut self) -> Option<File> {
        if let Some(file) = self.file.take() {
            return Some(file);
        }
        let mut options = OpenOptions::new();
        let open = self
            .engine
            .open_with(options.read(true).write(true), self.model.path());
        match with_luck(&self.engine, &mut self.rng, open).await? {
            Ok(file) => Some(file),
            Err(error) => {
                check_injected(&error);
                None
            }
        }
    }

    async fn operate(&mut self, file: &File) {
        match self.rng.below(20) {
            0..4 => self.write(file).await,
            4 => self.write_vectored(file).await,
            5..8 => self.read(file).await,
            8 => self.read_vectored(file).await,
            9 => self.read_many(file).await,
            10 => self.read_merged(file).await,
            11 => self.read_into(file).await,
            12 => self.zero(file).await,
            13 => self.sync(file).await,
            14 => self.stat(file).await,
            15 => self.copy_range(file).await,
            16 => self.copy().await,
            17 => self.attribute(file).await,
            18 => self.remove_tree().await,
            _ => self.list().await,
        }
    }

    /// Returns a range of the file.
    fn range(&mut self, most: u64) -> (usize, usize) {
        let at = self.rng.below(FILE_BYTES - 1);
        let bytes = 1 + self.rng.below(most.min(FILE_BYTES - at));
        (at as usize, bytes as usize)
    }

    fn contents(&mut self, bytes: usize) -> Vec<u8> {
        let first = self.rng.next() as u8;
        (0..bytes).map(|at| first.wrapping_add(at as u8)).collect()
    }

    async fn write(&mut self, file: &File) {
        let (at, bytes) = self.range(2000);
        let contents = self.contents(bytes);
        let buf = self.census.buffer(contents.clone());
        let timeout = impatience(&mut self.rng);
        // Before the write is submitted: a concurrent task may read at any time.
        self.model.may_write(at, &contents);
        let (engine, rng) = (&self.engine, &mut self.rng);
        let written = match rng.below(3) {
            0 => {
                let mut write = file.write_at(buf, at as u64);
                if let Some(timeout) = timeout {
                    write = write.timeout(timeout);
                }
                with_luck(engine, rng, write).await
            }
            1 => {
                let mut write = file.write_all_at(buf, at as u64);
                if let Some(timeout) = timeout {
                    write = write.timeout(timeout);
                }
                let result = with_luck(engine, rng, write).await;
                result.map(|result| result.map(|buf| (bytes, buf)))
            }
            _ => {
                let write = file.write_all_durable_at(buf, at as u64);
                let result = with_luck(engine, rng, write).await;
                result.map(|result| result.map(|buf| (bytes, buf)))
            }
        };
        match written {
            Some(Ok((n, buf))) => {
                assert!(n > 0 && n <= bytes);
                assert_eq!(buf.bytes, contents, "a write leaves its buffer alone");
                self.model.wrote(at, &contents[..n]);
            }
            Some(Err(error)) => check_failed(&error),
            None => {}
        }
    }

    async fn write_vectored(&mut self, file: &File) {
        let (at, bytes) = self.range(2000);
        let contents = self.contents(bytes);
        let bufs: Vec<Counted> = contents
            .chunks(700)
            .map(|part| self.census.buffer(part.to_vec()))
            .collect();
        self.model.may_write(at, &contents);
        let write = file.write_vectored_all_at(bufs, at as u64);
        match with_luck(&self.engine, &mut self.rng, write).await {
            Some(Ok(_)) => self.model.wrote(at, &contents),
            Some(Err(error)) => check_failed(&error),
            None => {}
        }
    }

    async fn read(&mut self, file: &File) {
        let (at, bytes) = self.range(3000);
        let buf = self.census.buffer(vec![0; bytes]);
        let timeout = impatience(&mut self.rng);
        let (engine, rng) = (&self.engine, &mut self.rng);
        let read = if rng.below(2) == 0 {
            let mut read = file.read_at(buf, at as u64);
            if let Some(timeout) = timeout {
                read = read.timeout(timeout);
            }
            with_luck(engine, rng, read).await
        } else {
            let mut read = file.read_exact_at(buf, at as u64);
            if let Some(timeout) = timeout {
                read = read.timeout(timeout);
            }
            with_luck(engine, rng, read)
                .await
                .map(|read| read.map(|buf| (bytes, buf)))
        };
        match read {
            Some(Ok((n, buf))) => {
                assert!(n > 0 && n <= bytes, "{n} of {bytes} bytes within the file");
                self.model.check(at, &buf.bytes[..n], "a read");
            }
            Some(Err(error)) => check_failed(&error),
            None => {}
        }
    }

    async fn read_vectored(&mut self, file: &File) {
        let (at, bytes) = self.range(3000);
        let bufs = (0..bytes)
            .step_by(500)
            .map(|from| self.census.buffer(vec![0; (bytes - from).min(500)]));
        let read = file.read_vectored_exact_at(bufs.collect(), at as u64);
        match with_luck(&self.engine, &mut self.rng, read).await {
            Some(Ok(bufs)) => {
                let all: Vec<u8> = bufs
                    .iter()
                    .flat_map(|buf| buf.bytes.iter().copied())
                    .collect();
                self.model.check(at, &all, "a vectored read");
            }
            Some(Err(error)) => check_failed(&error),
            None => {}
        }
    }

    /// Returns ranges, and buffers for them.
    fn many(&mut self) -> Vec<(Counted, u64)> {
        let count = 1 + self.rng.below(20);
        let one = |_| {
            let (at, bytes) = self.range(400);
            (self.census.buffer(vec![0; bytes]), at as u64)
        };
        (0..count).map(one).collect()
    }

    async fn read_many(&mut self, file: &File) {
        let reads = self.many();
        let offsets: Vec<u64> = reads.iter().map(|&(_, at)| at).collect();
        let mut results = file.read_many_at(reads);
        if let Some(timeout) = impatience(&mut self.rng) {
            results = results.timeout(timeout);
        }
        let mut seen = vec![false; offsets.len()];
        loop {
            let next = with_luck(&self.engine, &mut self.rng, results.next()).await;
            // `next` may be dropped without harm; sometimes the whole batch is dropped with it.
            let Some(next) = next else {
                if self.rng.below(4) == 0 {
                    return;
                }
                continue;
            };
            let Some(one) = next else { break };
            assert!(
                !std::mem::replace(&mut seen[one.index], true),
                "completed twice"
            );
            assert_eq!(one.offset, offsets[one.index]);
            match one.result {
                Ok((n, buf)) => self
                    .model
                    .check(one.offset as usize, &buf.bytes[..n], "a batch"),
                Err(error) => check_failed(&error),
            }
        }
        assert!(seen.into_iter().all(|seen| seen), "a read has no result");
    }

    async fn read_merged(&mut self, file: &File) {
        let reads = self.many();
        let requests: Vec<(usize, usize)> = reads
            .iter()
            .map(|(buf, at)| (*at as usize, buf.bytes.len()))
            .collect();
        let merge = Merge::new(self.rng.below(500), 2000);
        let merged = file.read_many_at(reads).merge(merge);
        let Some(results) = with_luck(&self.engine, &mut self.rng, merged.into_future()).await
        else {
            return;
        };
        assert_eq!(results.len(), requests.len());
        for ((at, bytes), result) in requests.into_iter().zip(results) {
            match result {
                Ok((n, buf)) => {
                    assert_eq!(n, bytes, "within the file nothing is short");
                    self.model.check(at, &buf.bytes[..n], "a merged read");
                }
                Err(error) => check_failed(&error),
            }
        }
    }

    async fn read_into(&mut self, file: &File) {
        let (at, bytes) = self.range(1000);
        let mut into = vec![0; bytes];
        let read = file.read_into(&mut into, at as u64);
        match with_luck(&self.engine, &mut self.rng, read).await {
            Some(Ok(n)) => self.model.check(at, &into[..n], "a read into a slice"),
            Some(Err(error)) => check_injected(&error),
            None => assert!(
                into.iter().all(|&byte| byte == 0),
                "a dropped read wrote into a borrowed slice"
            ),
        }
    }

    async fn zero(&mut self, file: &File) {
        let (at, bytes) = self.range(1000);
        let mode = if self.rng.below(2) == 0 {
            AllocateMode::Zero
        } else {
            AllocateMode::PunchHole
        };
        let zeroes = vec![0; bytes];
        self.model.may_write(at, &zeroes);
        let zero = file.allocate(at as u64, bytes as u64, mode);
        match with_luck(&self.engine, &mut self.rng, zero).await {
            Some(Ok(())) => self.model.wrote(at, &zeroes),
            Some(Err(error)) => check_injected(&error),
            None => {}
        }
    }

    async fn sync(&mut self, file: &File) {
        let sync = if self.rng.below(2) == 0 {
            file.sync_all()
        } else {
            file.sync_data()
        };
        if let Some(Err(error)) = with_luck(&self.engine, &mut self.rng, sync).await {
            check_injected(&error);
        }
    }

    async fn stat(&mut self, file: &File) {
        let by_path = self.rng.below(2) == 0;
        let stat = if by_path {
            self.engine.metadata(self.model.path())
        } else {
            file.metadata()
        };
        match with_luck(&self.engine, &mut self.rng, stat).await {
            Some(Ok(metadata)) => {
                assert_eq!((metadata.len(), metadata.is_file()), (FILE_BYTES, true))
            }
            Some(Err(error)) => check_injected(&error),
            None => {}
        }
    }

    async fn copy_range(&mut self, file: &File) {
        let (at, bytes) = self.range(2000);
        let (pattern, offset) = (pattern(), self.rng.below(FILE_BYTES - bytes as u64));
        let open = self.engine.open(PATTERN);
        let Some(Ok(from)) = with_luck(&self.engine, &mut self.rng, open).await else {
            return;
        };
        let contents = &pattern[offset as usize..][..bytes];
        self.model.may_write(at, contents);
        let copy = from.copy_range_to(offset, file, at as u64, bytes as u64);
        match with_luck(&self.engine, &mut self.rng, copy).await {
            // An error after a part returns with the next call.
            Some(Ok(copied)) => self.model.wrote(at, &contents[..copied as usize]),
            Some(Err(error)) => check_injected(&error),
            None => {}
        }
    }

    /// Returns a path that no operation has used before.
    fn new_path(&mut self) -> String {
        self.paths += 1;
        format!("/new{}-{}", self.model.path().replace('/', "-"), self.paths)
    }

    async fn copy(&mut self) {
        let to = self.new_path();
        let copy = self.engine.copy(PATTERN, &to);
        match with_luck(&self.engine, &mut self.rng, copy).await {
            Some(Ok(copied)) => {
                assert_eq!(copied, FILE_BYTES);
                assert_eq!(self.sim.contents(&to).unwrap(), pattern());
            }
            Some(Err(error)) => check_injected(&error),
            None => {}
        }
    }

    /// Each value is a byte, repeated.
    async fn attribute(&mut self, file: &File) {
        let value = vec![self.rng.next() as u8; 1 + self.rng.below(1000) as usize];
        let set = file.set_xattr("user.a", value);
        if let Some(Err(error)) = with_luck(&self.engine, &mut self.rng, set).await {
            check_injected(&error);
        }
        let get = file.get_xattr("user.a");
        match with_luck(&self.engine, &mut self.rng, get).await {
            Some(Ok(value)) => assert!(value.iter().all(|byte| *byte == value[0])),
            Some(Err(error)) if error.raw_os_error() == Some(libc::ENODATA) => {}
            Some(Err(error)) => check_injected(&error),
            None => {}
        }
    }

    async fn remove_tree(&mut self) {
        let top = self.new_path();
        for file in ["a", "b/c", "b/d/e"] {
            self.sim.put(format!("{top}/{file}"), "x").unwrap();
        }
        let removal = self.engine.remove_dir_all(&top);
        match with_luck(&self.engine, &mut self.rng, removal).await {
            Some(Ok(())) => assert!(self.sim.names(&top).is_err()),
            Some(Err(error)) => check_injected(&error),
            None => {}
        }
    }

    async fn list(&mut self) {
        let list = self.engine.read_dir("/data").into_future();
        match with_luck(&self.engine, &mut self.rng, list).await {
            Some(Ok(entries)) => assert!(entries.len() <= TASKS as usize && !entries.is_empty()),
            Some(Err(error)) => check_injected(&error),
            None => {}
        }
    }
}

/// Checks that the error is one that the kernel injects.
fn check_injected(error: &std::io::Error) {
    use annulus::sim::Errno;
    let known = [Errno::Eio, Errno::Enomem, Errno::Enospc].map(|errno| Some(errno.number()));
    assert!(
        known.contains(&error.raw_os_error()),
        "{error:?} comes from nowhere"
    );
}

/// Checks that the error is an injected one or a timeout.
fn check_failed(error: &BufError<impl Sized>) {
    if error.error().kind() != ErrorKind::TimedOut {
        check_injected(error.error());
    }
}
