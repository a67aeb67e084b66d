//! Long tests of sockets: `cargo run --release -p annulus --features net --example soak -- storm --seed 7`, and
//! `churn`, `slow`, `idle` and `kept`. Exits with 1 if a check fails or a descriptor leaks. `ci/soak` runs them all.

// Not in annulus-testing, because both need the feature `net`: a dev-dependency would enable it for all tests.
#[path = "../net/kernel.rs"]
#[expect(dead_code, reason = "only tests use its waits, which panic")]
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

/// The command line.
struct Options {
    test: String,
    backend: Backend,
    count: u64,
    seed: u64,
}

const USAGE: &str = "usage: soak storm|churn|slow|idle|kept|serve [--backend uring|epoll] [--count N] \
                     [--seed N|random]";

/// The number of server addresses. Each of them gives clients 28,000 ports.
const ADDRESSES: u8 = 4;
/// The number of clients that connect concurrently.
const ABREAST: u64 = 64;
/// The number of connections that stay open while others open and close.
const KEPT: u64 = 50;
/// The number of times, ten per second, that a test checks whether all connections have closed.
const CLOSE_CHECKS: u32 = 600;

fn main() -> ExitCode {
    let Some(options) = options() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let outcome = match options.test.as_str() {
        "storm" => storm_of(&options),
        "churn" => churn(&options),
        "slow" => slow(&options),
        "idle" => beside_server(&options, |server| idle(server, options.count)),
        "kept" => beside_server(&options, |server| kept(server, options.count)),
        _ => serve(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("soak {}: {error}\nseed {}", options.test, options.seed);
            ExitCode::FAILURE
        }
    }
}

fn options() -> Option<Options> {
    let mut arguments = std::env::args().skip(1);
    let test = arguments.next()?;
    let count = match test.as_str() {
        "storm" | "churn" => 1_000_000,
        "slow" => 1 << 30,
        "kept" => 10_000,
        "idle" => 30_000,
        "serve" => 0,
        _ => return None,
    };
    let mut options = Options {
        test,
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

/// Runs a test, and fails if a descriptor leaks.
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
            Ok(stream) => drop(spawn(echo_one(stream))),
            Err(error) => eprintln!("accept: {error}"),
        }
    }
}

async fn echo_one(stream: TcpStream) {
    let mut chunks = stream.recv_multishot();
    while let Some(Ok(chunk)) = chunks.next().await {
        if stream.send_all(chunk).await.is_err() {
            return;
        }
    }
}

/// Sends a number, and checks that the same number is returned.
async fn exchange(stream: &TcpStream, number: u64) -> Outcome {
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
    Err(format!("connection {number} received {response:?}").into())
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
                        exchange(&stream, number).await?;
                    }
                    Ok::<_, Box<dyn std::error::Error>>(())
                })
            })
            .collect();
        for handle in handles {
            handle.await??;
        }
        serving.abort();
        println!("churn: {count} connections were opened and closed");
        Ok(())
    })
}

/// A reader that pauses after each MiB until another connection has exchanged 20 messages.
fn slow(options: &Options) -> Outcome {
    let total = options.count;
    run(options, async move {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let serving = spawn(echo(listener));
        let other = TcpStream::connect(address).await?;
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
        let (mut received, mut pauses, mut most) = (0, 0, 0);
        let mut chunks = stream.recv_multishot();
        while let Some(chunk) = chunks.next().await {
            received += chunk?.len() as u64;
            if received / (1 << 20) > pauses {
                pauses += 1;
                for number in 0..20 {
                    exchange(&other, number).await?;
                }
                most = most.max(sent.get() - received.min(sent.get()));
            }
        }
        sending.await??;
        serving.abort();
        println!("slow: {received} bytes, of which at most {most} were in transit");
        if received == sent.get() && most < 64 << 20 {
            return Ok(());
        }
        Err(format!(
            "{} sent, {received} received, {most} in transit",
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

/// Returns the resident memory of a process in KiB. Kernel memory is not included.
fn resident_kib(pid: u32) -> Result<u64, Box<dyn std::error::Error>> {
    kib(&format!("/proc/{pid}/status"), "VmRSS:")
}

/// Returns the available memory of the machine in KiB. The kernel's memory for sockets and requests reduces it.
fn available_kib() -> Result<u64, Box<dyn std::error::Error>> {
    kib("/proc/meminfo", "MemAvailable:")
}

fn kib(file: &str, name: &str) -> Result<u64, Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string(file)?;
    let line = text.lines().find(|line| line.starts_with(name));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(kib.ok_or_else(|| format!("no {name} in {file}"))?.parse()?)
}

/// A server in another process.
struct Server {
    pid: u32,
    port: u16,
}

impl Server {
    fn descriptors(&self) -> io::Result<usize> {
        Ok(std::fs::read_dir(format!("/proc/{}/fd", self.pid))?.count())
    }

    /// Waits until the server has the given number of descriptors, and its port the given number of sockets. Sockets
    /// are the listeners and both ends of each connection. The kernel closes some of them with a delay.
    async fn wait_for(&self, descriptors: usize, sockets: usize) -> Outcome {
        let mut problem = String::new();
        for _ in 0..CLOSE_CHECKS {
            let open = (self.descriptors()?, kernel::held(self.port));
            if open == (descriptors, sockets) {
                return Ok(());
            }
            problem = format!(
                "the server has {} descriptors instead of {descriptors}; {} sockets are open instead of {sockets}, {} \
                 of them in CLOSE_WAIT",
                open.0,
                open.1,
                kernel::close_wait(self.port)
            );
            sleep(Duration::from_millis(100)).await;
        }
        Err(problem.into())
    }
}

/// Runs a client beside a server.
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

/// Opens connections, `ABREAST` at a time, with an exchange on each.
async fn connect(port: u16, count: u64) -> Result<Vec<TcpStream>, Box<dyn std::error::Error>> {
    let handles: Vec<_> = (0..ABREAST)
        .map(|first| {
            spawn(async move {
                let mut open = Vec::new();
                for number in (first..count).step_by(ABREAST as usize) {
                    let last = 1 + (number % u64::from(ADDRESSES)) as u8;
                    let address = SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), port));
                    let stream = TcpStream::connect(address).await?;
                    exchange(&stream, number).await?;
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

/// Opens connections, makes two exchanges on each, prints the memory in use, and closes them all.
async fn idle(server: Server, count: u64) -> Outcome {
    let resident = || resident_kib(server.pid);
    let (before, free, descriptors) = (resident()?, available_kib()?, server.descriptors()?);
    let all = connect(server.port, count).await?;
    let after = resident()?;
    for (number, stream) in all.iter().enumerate() {
        exchange(stream, number as u64).await?;
    }
    let again = resident()?;
    let each = |kib: u64| kib as f64 * 1024.0 / count as f64;
    println!(
        "idle: {} connections with two exchanges each, {} descriptors in the server; its resident memory was {before} \
         KiB before, {after} KiB after the first exchange ({:.0} bytes per connection), {again} KiB after the second \
         ({:.0} bytes per connection); both processes and the kernel together: {:.0} bytes per connection, if nothing \
         else runs on the machine",
        all.len(),
        server.descriptors()?,
        each(after.saturating_sub(before)),
        each(again.saturating_sub(before)),
        each(free.saturating_sub(available_kib()?)),
    );
    drop(all);
    server.wait_for(descriptors, usize::from(ADDRESSES)).await?;
    println!(
        "idle: all closed; {descriptors} descriptors in the server as before, no socket in CLOSE_WAIT, {} KiB resident",
        resident()?
    );
    Ok(())
}

/// Opens and closes connections while others are idle (trap 39).
async fn kept(server: Server, count: u64) -> Outcome {
    let before = server.descriptors()?;
    let idle = connect(server.port, KEPT).await?;
    let rounds = count.div_ceil(KEPT);
    for _ in 0..rounds {
        drop(connect(server.port, KEPT).await?);
    }
    let (closed, stay) = (rounds * KEPT, KEPT as usize);
    // The listeners, and both ends of the idle connections.
    server
        .wait_for(before + stay, usize::from(ADDRESSES) + 2 * stay)
        .await?;
    for (number, stream) in idle.iter().enumerate() {
        exchange(stream, number as u64).await?;
    }
    println!(
        "kept: {closed} connections were opened and closed beside {KEPT} idle ones; none in CLOSE_WAIT"
    );
    drop(idle);
    server.wait_for(before, usize::from(ADDRESSES)).await
}
