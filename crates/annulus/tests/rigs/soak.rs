//! Sockets for hours rather than seconds: `cargo run --release -p annulus --example soak -- storm --seed 7`, and
//! `churn`, `slow`, `idle` and `kept`. Exits with 1 if anything was wrong or left over; `ci/soak` runs them all.

// Both modules need the feature `net`. A dev-dependency that enables it would also enable it for tests without
// features.
#[path = "../net/kernel.rs"]
#[expect(dead_code, reason = "its waits are for tests, which may panic")]
mod kernel;
#[path = "../net/storm.rs"]
mod storm;

use std::cell::Cell;
use std::future::Future;
use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::process::{Command, ExitCode, Stdio};
use std::rc::Rc;
use std::time::Duration;

use annulus::Backend;
use annulus::net::{TcpListener, TcpStream};
use annulus::runtime::{Runtime, spawn};
use annulus::time::sleep;
use storm::{Storm, Tally};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// The load and the backend.
struct Options {
    what: String,
    backend: Backend,
    count: u64,
    seed: u64,
}

const USAGE: &str = "usage: soak storm|churn|slow|idle|kept|serve [--backend uring|epoll] [--count N] \
                     [--seed N|random]";

/// The number of addresses that the idle clients connect to; each has its own 28,000 ports.
const ADDRESSES: u8 = 4;
/// The number of clients that connect at a time.
const ABREAST: u64 = 64;
/// The number of idle connections beside short ones.
const KEPT: u64 = 50;
/// The maximum number of checks that all sockets are closed, ten per second.
const CLOSES_WAITS: u32 = 600;

fn main() -> ExitCode {
    let Some(options) = options() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let outcome = match options.what.as_str() {
        "storm" => storm_of(&options),
        "churn" => churn(&options),
        "slow" => slow(&options),
        "idle" => beside_server(&options, |server| idle(server, options.count)),
        "kept" => beside_server(&options, |server| kept(server, options.count)),
        _ => serve(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("soak {}: {what}\nseed {}", options.what, options.seed);
            ExitCode::FAILURE
        }
    }
}

fn options() -> Option<Options> {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next()?;
    let count = match what.as_str() {
        "storm" | "churn" => 1_000_000,
        "slow" => 1 << 30,
        "kept" => 10_000,
        "idle" => 30_000,
        "serve" => 0,
        _ => return None,
    };
    let mut options = Options {
        what,
        backend: Backend::Auto,
        count,
        seed: fastrand::u64(..1 << 32),
    };
    while let Some(argument) = arguments.next() {
        let value = arguments.next()?;
        match (argument.as_str(), value.as_str()) {
            ("--backend", "uring") => options.backend = Backend::Uring,
            ("--backend", "epoll") => options.backend = Backend::Fallback,
            ("--seed", "random") => {}
            ("--seed", seed) => options.seed = seed.parse().ok()?,
            ("--count", count) => options.count = count.parse().ok()?,
            _ => return None,
        }
    }
    Some(options)
}

/// Runs the future, and checks that no descriptor is left.
fn run<F>(options: &Options, future: F) -> Outcome
where
    F: Future<Output = Outcome> + 'static,
{
    let before = descriptors();
    let builder = Runtime::builder().backend(options.backend);
    builder.block_on(future)??;
    let after = descriptors();
    if before == after {
        return Ok(());
    }
    Err(format!("{before} descriptors before, {after} after").into())
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

fn storm_of(options: &Options) -> Outcome {
    let (seed, operations) = (options.seed, options.count);
    println!("storm: seed {seed}");
    run(options, async move {
        let tally = Rc::new(Tally::default());
        let storm = Storm {
            seed,
            operations,
            abreast: 64,
        };
        storm::run(storm, Rc::clone(&tally)).await;
        println!("{tally:?}");
        Ok(())
    })
}

async fn echo(listener: TcpListener) {
    let mut incoming = listener.accept_multishot();
    while let Some(accepted) = incoming.next().await {
        match accepted {
            Ok(stream) => drop(spawn(response(stream))),
            Err(error) => eprintln!("accept: {error}"),
        }
    }
}

async fn response(stream: TcpStream) {
    let mut chunks = stream.recv_multishot();
    while let Some(Ok(chunk)) = chunks.next().await {
        if stream.send_all(chunk).await.is_err() {
            return;
        }
    }
}

/// Sends a request and checks the response.
async fn ask(stream: &TcpStream, number: u64) -> Outcome {
    let request = stream.send_all(number.to_le_bytes().to_vec()).await?;
    let mut response = Vec::new();
    while response.len() < request.len() {
        let (count, part) = stream.recv(Vec::with_capacity(8)).await?;
        if count == 0 {
            return Err(format!("connection {number} ended").into());
        }
        response.extend(part);
    }
    if response == request {
        return Ok(());
    }
    Err(format!("connection {number} got the response {response:?}").into())
}

fn churn(options: &Options) -> Outcome {
    let count = options.count;
    run(options, async move {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let serving = spawn(echo(listener));
        let handles: Vec<_> = (0..ABREAST)
            .map(|first| {
                spawn(async move {
                    for number in (first..count).step_by(ABREAST as usize) {
                        let stream = TcpStream::connect(address).await?;
                        ask(&stream, number).await?;
                    }
                    Ok::<_, Box<dyn std::error::Error>>(())
                })
            })
            .collect();
        for handle in handles {
            handle.await??;
        }
        serving.abort();
        println!("churn: {count} connections came and went");
        Ok(())
    })
}

/// A reader that repeatedly pauses until the other connections have got responses.
fn slow(options: &Options) -> Outcome {
    let total = options.count;
    run(options, async move {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let serving = spawn(echo(listener));
        let witness = TcpStream::connect(address).await?;
        let stream = Rc::new(TcpStream::connect(address).await?);
        let sends = Rc::clone(&stream);
        let sent = Rc::new(Cell::new(0));
        let counts = Rc::clone(&sent);
        let sending = spawn(async move {
            while counts.get() < total {
                sends.send_all(vec![7; 64 << 10]).await?;
                counts.set(counts.get() + (64 << 10));
            }
            sends.shutdown(Shutdown::Write)?;
            Ok::<_, Box<dyn std::error::Error>>(())
        });
        let (mut received, mut options, mut most) = (0, 0, 0);
        let mut chunks = stream.recv_multishot();
        while let Some(chunk) = chunks.next().await {
            received += chunk?.len() as u64;
            if received / (1 << 20) > options {
                options += 1;
                for number in 0..20 {
                    ask(&witness, number).await?;
                }
                most = most.max(sent.get() - received.min(sent.get()));
            }
        }
        sending.await??;
        serving.abort();
        println!("slow: {received} bytes, of which at most {most} were on their way");
        if received == sent.get() && most < 64 << 20 {
            return Ok(());
        }
        Err(format!(
            "{} sent, {received} received, {most} on their way",
            sent.get()
        )
        .into())
    })
}

/// The server process of `idle` and `kept`.
fn serve(options: &Options) -> Outcome {
    Runtime::builder()
        .backend(options.backend)
        .block_on(async move {
            let first = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            let port = first.local_addr()?.port();
            for last in 2..=ADDRESSES {
                let listener = TcpListener::bind((Ipv4Addr::new(127, 0, 0, last), port))?;
                drop(spawn(echo(listener)));
            }
            println!("{port}");
            echo(first).await;
            Ok::<_, Box<dyn std::error::Error>>(())
        })?
}

/// Returns the resident memory of a process in KiB, without kernel memory.
fn resident_kib(pid: u32) -> Result<u64, Box<dyn std::error::Error>> {
    kib(&format!("/proc/{pid}/status"), "VmRSS:")
}

/// Returns the available memory of the machine in KiB; it excludes the kernel's memory for sockets and requests.
fn available_kib() -> Result<u64, Box<dyn std::error::Error>> {
    kib("/proc/meminfo", "MemAvailable:")
}

fn kib(file: &str, name: &str) -> Result<u64, Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string(file)?;
    let line = text.lines().find(|line| line.starts_with(name));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(kib.ok_or_else(|| format!("no {name} in {file}"))?.parse()?)
}

/// A server in a separate process.
struct Server {
    pid: u32,
    port: u16,
}

impl Server {
    fn descriptors(&self) -> io::Result<usize> {
        Ok(std::fs::read_dir(format!("/proc/{}/fd", self.pid))?.count())
    }

    /// Waits until the server has the given number of descriptors, and its port the given number of sockets: the
    /// listeners and both ends of each connection. The kernel takes its time for some closes.
    async fn left(&self, descriptors: usize, held: usize) -> Outcome {
        let mut state = String::new();
        for _ in 0..CLOSES_WAITS {
            let found = (self.descriptors()?, kernel::held(self.port));
            if found == (descriptors, held) {
                return Ok(());
            }
            state = format!(
                "the server has {} descriptors, and should have {descriptors}; {} sockets are open, and {held} should be; \
                 {} are in CLOSE_WAIT",
                found.0,
                found.1,
                kernel::close_wait(self.port)
            );
            sleep(Duration::from_millis(100)).await;
        }
        Err(state.into())
    }
}

/// Runs a client with a server.
fn beside_server<F>(options: &Options, client: impl FnOnce(Server) -> F) -> Outcome
where
    F: Future<Output = Outcome> + 'static,
{
    let backend = match options.backend {
        Backend::Fallback => "epoll",
        _ => "uring",
    };
    let mut process = Command::new(std::env::current_exe()?)
        .args(["serve", "--backend", backend])
        .stdout(Stdio::piped())
        .spawn()?;
    let pid = process.id();
    let outcome = (|| {
        let mut line = String::new();
        BufReader::new(process.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        let port = line.trim().parse()?;
        run(options, client(Server { pid, port }))
    })();
    process.kill()?;
    process.wait()?;
    outcome
}

/// Opens connections, `ABREAST` at a time, and sends a request on each.
async fn connect(port: u16, count: u64) -> Result<Vec<TcpStream>, Box<dyn std::error::Error>> {
    let handles: Vec<_> = (0..ABREAST)
        .map(|first| {
            spawn(async move {
                let mut open = Vec::new();
                for number in (first..count).step_by(ABREAST as usize) {
                    let last = 1 + (number % u64::from(ADDRESSES)) as u8;
                    let address = SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), port));
                    let stream = TcpStream::connect(address).await?;
                    ask(&stream, number).await?;
                    open.push(stream);
                }
                Ok::<_, Box<dyn std::error::Error>>(open)
            })
        })
        .collect();
    let mut all = Vec::new();
    for handle in handles {
        all.extend(handle.await??);
    }
    Ok(all)
}

/// Opens connections, sends two requests on each, measures the server, and closes them all.
async fn idle(server: Server, count: u64) -> Outcome {
    let resident = || resident_kib(server.pid);
    let (before, free, descriptors) = (resident()?, available_kib()?, server.descriptors()?);
    let all = connect(server.port, count).await?;
    let after = resident()?;
    for (number, stream) in all.iter().enumerate() {
        ask(stream, number as u64).await?;
    }
    let again = resident()?;
    let each = |kib: u64| kib as f64 * 1024.0 / count as f64;
    println!(
        "idle: {} connections open and with two responses each, {} descriptors in the server; its resident memory was \
         {before} KiB without them, {after} KiB with them ({:.0} bytes each), {again} KiB after the second responses \
         ({:.0} bytes each); both ends and both processes with the kernel's memory: {:.0} bytes each, where nothing \
         else runs",
        all.len(),
        server.descriptors()?,
        each(after.saturating_sub(before)),
        each(again.saturating_sub(before)),
        each(free.saturating_sub(available_kib()?)),
    );
    drop(all);
    server.left(descriptors, usize::from(ADDRESSES)).await?;
    println!(
        "idle: all closed; {descriptors} descriptors in the server as before, none in CLOSE_WAIT, {} KiB resident",
        resident()?
    );
    Ok(())
}

/// Short connections beside idle ones (trap 39).
async fn kept(server: Server, count: u64) -> Outcome {
    let before = server.descriptors()?;
    let idle = connect(server.port, KEPT).await?;
    let rounds = count.div_ceil(KEPT);
    for _ in 0..rounds {
        drop(connect(server.port, KEPT).await?);
    }
    let (gone, stay) = (rounds * KEPT, KEPT as usize);
    // The listeners, and both ends of the idle connections.
    server
        .left(before + stay, usize::from(ADDRESSES) + 2 * stay)
        .await?;
    for (number, stream) in idle.iter().enumerate() {
        ask(stream, number as u64).await?;
    }
    println!("kept: {gone} connections came and went beside {KEPT} idle ones; none in CLOSE_WAIT");
    drop(idle);
    server.left(before, usize::from(ADDRESSES)).await
}
