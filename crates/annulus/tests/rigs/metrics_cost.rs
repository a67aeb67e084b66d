//! The cost of latency metrics: the same work with a watch and without, in alternating slices of one process. Prints
//! the median of the ratios of neighbouring slices, as text and as a line of JSON.
//!
//! ```text
//! cargo run --release -p annulus --features net --example metrics_cost -- FILE [PAIRS [MILLISECONDS [WORK]]]
//! ```
//!
//! FILE is created and then read; it should be on a file system with direct I/O. WORK is one of the printed names;
//! without it, all run. `count WORK OPERATIONS` in place of the numbers runs that many operations without a watch, for
//! a tool that counts instructions.

use std::io::{self, Error};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use annulus::buf::AlignedBuf;
use annulus::engine::CurrentThreadDriver;
use annulus::fs::CachedReads;
use annulus::metrics::{self, Watch};
use annulus::net::{TcpListener, TcpStream};
use annulus::runtime::{Runtime, spawn};
use annulus::{Engine, File, OpenOptions};

const FILE_BYTES: u64 = 64 << 20;
const PAGE: usize = 4096;
const BATCH: usize = 32;
const CONNECTIONS: usize = 32;

/// Work on files, on one thread.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// Reads of 4 KiB from the page cache, on the caller's thread, one at a time.
    CachedFastPath,
    /// Reads from the page cache, 32 at a time.
    CachedFastPathMany,
    /// Reads through the ring of the calling thread, one at a time.
    CachedRing,
    /// Reads through the ring, 32 at a time.
    CachedRingMany,
    /// Direct reads of 4 KiB, 32 in flight.
    Direct,
    /// Operations without effect through the ring, one at a time.
    Nop,
}

const ALL: [(&str, Work); 6] = [
    ("cached_fast_path", Work::CachedFastPath),
    ("cached_fast_path_32", Work::CachedFastPathMany),
    ("cached_ring", Work::CachedRing),
    ("cached_ring_32", Work::CachedRingMany),
    ("direct_32", Work::Direct),
    ("nop", Work::Nop),
];
const ECHO: &str = "echo";

struct Bench {
    engine: Engine,
    driver: CurrentThreadDriver,
    cached: File,
    ringed: File,
    direct: Option<File>,
    buffers: Vec<AlignedBuf>,
    page: u64,
}

impl Bench {
    fn new(path: &Path) -> io::Result<Bench> {
        let engine = Engine::builder().build().map_err(Error::other)?;
        let driver = engine.current_thread_driver().map_err(Error::other)?;
        std::fs::write(path, vec![7; FILE_BYTES as usize])?;
        std::fs::File::open(path)?.sync_all()?;
        let open = |cached: CachedReads, direct: bool| {
            let mut options = OpenOptions::new();
            options.read(true).cached_reads(cached).direct(direct);
            pollster::block_on(engine.open_with(&options, path))
        };
        Ok(Bench {
            cached: open(CachedReads::Always, false)?,
            ringed: open(CachedReads::Never, false)?,
            direct: open(CachedReads::Never, true).ok(),
            driver,
            engine,
            buffers: (0..BATCH)
                .map(|_| AlignedBuf::with_len(PAGE, PAGE))
                .collect(),
            page: 1,
        })
    }

    fn offset(&mut self) -> u64 {
        // All pages, in an order that defeats read-ahead.
        self.page = (self.page * 5 + 3) % (FILE_BYTES / PAGE as u64);
        self.page * PAGE as u64
    }

    /// Runs some operations. Returns their number, or `None` if this machine cannot run them.
    fn round(&mut self, work: Work) -> io::Result<Option<u64>> {
        let offsets: [u64; BATCH] = std::array::from_fn(|_| self.offset());
        let file = match work {
            Work::CachedFastPath | Work::CachedFastPathMany => &self.cached,
            Work::CachedRing | Work::CachedRingMany | Work::Nop => &self.ringed,
            Work::Direct => match &self.direct {
                Some(file) => file,
                None => return Ok(None),
            },
        };
        match work {
            Work::CachedFastPath => {
                pollster::block_on(one_by_one(file, &mut self.buffers, offsets))?
            }
            Work::CachedRing => {
                let reads = one_by_one(file, &mut self.buffers, offsets);
                self.driver.block_on(reads)?;
            }
            Work::CachedFastPathMany => pollster::block_on(many(file, &mut self.buffers, offsets))?,
            Work::CachedRingMany | Work::Direct => {
                let reads = many(file, &mut self.buffers, offsets);
                self.driver.block_on(reads)?;
            }
            Work::Nop => self.driver.block_on(async {
                for _ in 0..BATCH {
                    self.engine.nop().await?;
                }
                io::Result::Ok(())
            })?,
        }
        Ok(Some(BATCH as u64))
    }

    /// Runs operations for the given time. Returns the number per second.
    fn slice(&mut self, work: Work, time: Duration) -> io::Result<Option<f64>> {
        let (began, mut done) = (Instant::now(), 0);
        while began.elapsed() < time {
            for _ in 0..8 {
                match self.round(work)? {
                    Some(operations) => done += operations,
                    None => return Ok(None),
                }
            }
        }
        Ok(Some(done as f64 / began.elapsed().as_secs_f64()))
    }
}

async fn one_by_one(
    file: &File,
    buffers: &mut Vec<AlignedBuf>,
    offsets: [u64; BATCH],
) -> io::Result<()> {
    for offset in offsets {
        let Some(buffer) = buffers.pop() else { break };
        let (bytes, buffer) = file.read_at(buffer, offset).await?;
        assert_eq!(bytes, PAGE);
        buffers.push(buffer);
    }
    Ok(())
}

async fn many(file: &File, buffers: &mut Vec<AlignedBuf>, offsets: [u64; BATCH]) -> io::Result<()> {
    let reads = buffers.drain(..).zip(offsets).collect::<Vec<_>>();
    for result in file.read_many_at(reads).await {
        let (bytes, buffer) = result?;
        assert_eq!(bytes, PAGE);
        buffers.push(buffer);
    }
    Ok(())
}

/// Runs pairs of slices, without a watch and with one. Returns the rates of each pair.
fn pairs(
    pairs: usize,
    mut slice: impl FnMut() -> io::Result<Option<f64>>,
) -> io::Result<Option<Vec<(f64, f64)>>> {
    let mut rates_of_pairs = Vec::new();
    for pair in 0..=pairs {
        let mut rates = [0.0; 2];
        // The order alternates.
        for half in 0..2 {
            let watched = (half + pair) % 2 == 1;
            let watch: Option<Watch> = watched.then(metrics::watch);
            match slice()? {
                Some(rate) => rates[usize::from(watched)] = rate,
                None => return Ok(None),
            }
            drop(watch);
        }
        // The first pair is a warm-up.
        if pair > 0 {
            rates_of_pairs.push((rates[0], rates[1]));
        }
    }
    Ok(Some(rates_of_pairs))
}

fn report(name: &str, pairs: Option<Vec<(f64, f64)>>) {
    let Some(pairs) = pairs else {
        return println!("{name}: not available: the file system has no direct I/O");
    };
    let sorted = |value: fn(&(f64, f64)) -> f64| {
        let mut values: Vec<f64> = pairs.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let at =
        |values: &[f64], share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
    let ratios = sorted(|(off, on)| on / off);
    let (off, on) = (sorted(|pair| pair.0), sorted(|pair| pair.1));
    let (median, low, high) = (at(&ratios, 0.5), at(&ratios, 0.25), at(&ratios, 0.75));
    println!(
        "{name}: {:.0}/s unwatched, {:.0}/s watched; ratio {median:.4} (quartiles {low:.4} to {high:.4}, {} pairs)",
        at(&off, 0.5),
        at(&on, 0.5),
        pairs.len()
    );
    let list: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.4}")).collect();
    println!(
        "{{\"work\":\"{name}\",\"unwatched_per_s\":{:.0},\"watched_per_s\":{:.0},\"ratio_median\":{median:.4},\
         \"ratios\":[{}]}}",
        at(&off, 0.5),
        at(&on, 0.5),
        list.join(",")
    );
}

/// Echoes of 64 bytes between two cores. The second core is the client, with 32 connections.
struct Echo {
    completed: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    cores: std::thread::JoinHandle<io::Result<()>>,
}

impl Echo {
    fn start() -> io::Result<Echo> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        drop(listener);
        let completed = Arc::new(AtomicU64::new(0));
        let over = Arc::new(AtomicBool::new(false));
        let (count, ends) = (Arc::clone(&completed), Arc::clone(&over));
        let cores = std::thread::spawn(move || {
            Runtime::builder().cores(2).run(|info| {
                let (count, ends) = (Arc::clone(&count), Arc::clone(&ends));
                async move {
                    match info.index() {
                        0 => serve(TcpListener::bind(address)?).await,
                        _ => request(address, &count, &ends).await,
                    }
                }
            })
        });
        Ok(Echo {
            completed,
            over,
            cores,
        })
    }

    fn slice(&self, time: Duration) -> f64 {
        let (began, before) = (Instant::now(), self.completed.load(Ordering::Relaxed));
        std::thread::sleep(time);
        let completed = self.completed.load(Ordering::Relaxed) - before;
        completed as f64 / began.elapsed().as_secs_f64()
    }

    fn end(self) -> io::Result<()> {
        self.over.store(true, Ordering::Relaxed);
        self.cores
            .join()
            .unwrap_or_else(|_| Err(Error::other("a core has panicked")))
    }
}

async fn serve(listener: TcpListener) -> io::Result<()> {
    let mut tasks = Vec::new();
    for _ in 0..CONNECTIONS {
        let stream = listener.accept().await?;
        tasks.push(spawn(async move {
            let mut chunks = stream.recv_multishot();
            while let Some(Ok(chunk)) = chunks.next().await {
                if stream.send_all(chunk).await.is_err() {
                    return;
                }
            }
        }));
    }
    for task in tasks {
        task.await
            .map_err(|_| Error::other("a task has panicked"))?;
    }
    Ok(())
}

async fn request(
    address: std::net::SocketAddr,
    completed: &Arc<AtomicU64>,
    over: &Arc<AtomicBool>,
) -> io::Result<()> {
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        let (completed, over) = (Arc::clone(completed), Arc::clone(over));
        let stream = loop {
            // The other core may not listen yet.
            match TcpStream::connect(address).await {
                Ok(stream) => break stream,
                Err(_) => annulus::time::sleep(Duration::from_millis(1)).await,
            }
        };
        clients.push(spawn(async move {
            let mut chunks = stream.recv_multishot();
            let mut message = vec![7; 64];
            while !over.load(Ordering::Relaxed) {
                message = stream.send_all(message).await.map_err(io::Error::from)?;
                let mut bytes = 0;
                while bytes < 64 {
                    match chunks.next().await {
                        Some(chunk) => bytes += chunk?.len(),
                        None => return Ok(()),
                    }
                }
                completed.fetch_add(1, Ordering::Relaxed);
            }
            io::Result::Ok(())
        }));
    }
    for client in clients {
        client
            .await
            .map_err(|_| Error::other("a task has panicked"))??;
    }
    Ok(())
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |nth: usize| arguments.get(nth).map(String::as_str);
    let number = |nth: usize, or: u64| {
        argument(nth)
            .map_or(Ok(or), str::parse)
            .map_err(Error::other)
    };
    let Some(path) = argument(0) else {
        eprintln!("usage: metrics_cost FILE [PAIRS [MILLISECONDS [WORK]]]");
        std::process::exit(2);
    };
    let named = |name: &str| ALL.iter().find(|(known, _)| *known == name);
    let unknown = |name: &str| {
        Error::other(format!(
            "unknown work {name:?}; without WORK, all run and their names are printed"
        ))
    };
    if argument(1) == Some("count") {
        let name = argument(2).unwrap_or_default();
        let (_, work) = named(name).ok_or_else(|| unknown(name))?;
        let mut bench = Bench::new(Path::new(path))?;
        let mut left = number(3, 10_000)?;
        while left > 0 {
            left = left.saturating_sub(bench.round(*work)?.unwrap_or(left));
        }
        return Ok(());
    }
    let (count, time) = (
        number(1, 11)? as usize,
        Duration::from_millis(number(2, 300)?),
    );
    let only = argument(3);
    let is_selected = |name: &str| only.is_none_or(|only| only == name);
    if let Some(name) = only.filter(|name| *name != ECHO && named(name).is_none()) {
        return Err(unknown(name));
    }
    let mut bench = Bench::new(Path::new(path))?;
    for (name, work) in ALL.iter().filter(|(name, _)| is_selected(name)) {
        report(name, pairs(count, || bench.slice(*work, time))?);
    }
    drop(bench);
    std::fs::remove_file(path)?;
    if is_selected(ECHO) {
        let echo = Echo::start()?;
        report(ECHO, pairs(count, || Ok(Some(echo.slice(time))))?);
        echo.end()?;
    }
    Ok(())
}
