//! The cost of each way to send a response body, for the server and the client. docs/reference/http.md quotes the
//! results.
//!
//! ```sh
//! cargo run --release -p annulus-http --example body_ways [ROUNDS [SERVER-CPU CLIENT-CPU]]
//! ```
//!
//! A core serves 64 connections. The client sends a byte on each of them, and then receives all responses: a head of
//! 200 bytes, and a body that is in memory and in the page cache. Each round runs every way, in an order that changes.
//! The figures are medians of the rounds: CPU time per response of the server's and of the client's thread, and
//! responses per second of elapsed time.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream as Client};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Instant;

use annulus::IoBuf;
use annulus::net::{Descriptor, TcpListener, TcpStream, splice};
use annulus::runtime::{self, Runtime};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

const HEAD: [u8; 200] = [b'h'; 200];
const CONNECTIONS: usize = 64;
const SIZES: [usize; 7] = [
    1 << 10,
    4 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
];
/// The approximate number of body bytes in a run, which then takes some tens of milliseconds.
const RUN_BYTES: usize = 128 << 20;
const RUN_RESPONSES_MAX: usize = 12_800;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    /// Head and body are copied into one buffer; one send.
    Copied,
    /// One send of two buffers, without a copy in the server.
    Gathered,
    /// `sendfile` for the body. The send of the head waits for it (`MSG_MORE`).
    Sendfile,
    /// `splice` from the file into a pipe and from there to the socket, through the ring.
    Spliced,
    /// A send of the head, and a zero-copy send of the body through the ring.
    ZeroCopy,
}

const WAYS: [Way; 5] = [
    Way::Copied,
    Way::Gathered,
    Way::Sendfile,
    Way::Spliced,
    Way::ZeroCopy,
];

/// The body, in memory and as a file.
struct Content {
    bytes: Arc<[u8]>,
    file: File,
}

async fn response(stream: TcpStream, content: Rc<Content>, way: Way) -> io::Result<()> {
    let bytes = content.bytes.len();
    let mut buffer = Vec::new();
    let pipe = match way {
        Way::Spliced => {
            let (out, into) = io::pipe()?;
            Some((Descriptor::new(out)?, Descriptor::new(into)?))
        }
        _ => None,
    };
    while let Some(received) = stream.recv_multishot().next().await {
        drop(received?);
        match way {
            Way::Copied => {
                buffer.clear();
                buffer.extend_from_slice(&HEAD);
                buffer.extend_from_slice(&content.bytes);
                buffer = stream.send_all(buffer).await?;
            }
            Way::Gathered => {
                let pieces: Vec<Box<dyn IoBuf>> = vec![
                    Box::new(HEAD.to_vec()),
                    Box::new(Arc::clone(&content.bytes)),
                ];
                stream.send_vectored_all(pieces).await?;
            }
            Way::Sendfile => {
                let file = content.file.as_fd();
                stream
                    .send_file(&HEAD, file, 0, bytes as u64, || {})
                    .await?;
            }
            Way::Spliced => {
                stream.send_all(HEAD.to_vec()).await?;
                let Some((out, into)) = &pipe else { continue };
                // Opened again, for a separate file position.
                let path = format!(
                    "/proc/self/fd/{}",
                    std::os::fd::AsRawFd::as_raw_fd(&content.file)
                );
                let file = Descriptor::new(File::open(path)?)?;
                let mut left = bytes;
                while left > 0 {
                    let mut inside = splice(&file, into, left).await?;
                    left -= inside;
                    while inside > 0 {
                        inside -= splice(out, &stream, inside).await?;
                    }
                }
            }
            Way::ZeroCopy => {
                stream.send_all(HEAD.to_vec()).await?;
                stream.send_zc(Arc::clone(&content.bytes)).await?;
            }
        }
    }
    Ok(())
}

/// Returns the CPU time of the calling thread, ns.
fn thread_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

fn pin(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// CPU time of the server and of the client per response, µs, and responses per second.
type Figures = [f64; 3];

fn run(way: Way, content: (Arc<[u8]>, File), cpus: (usize, usize)) -> io::Result<Figures> {
    let bytes = content.0.len();
    let rounds_per_connection =
        (RUN_BYTES / bytes).clamp(CONNECTIONS, RUN_RESPONSES_MAX) / CONNECTIONS;
    let (send_address, addresses) = mpsc::channel();
    let server = std::thread::spawn(move || -> io::Result<u64> {
        pin(cpus.0)?;
        Runtime::builder()
            .cores(1)
            .pin(false)
            .block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0")?;
                listener.options().set_nodelay(true)?;
                let content = Rc::new(Content {
                    bytes: content.0,
                    file: content.1,
                });
                let _ = send_address.send(listener.local_addr()?);
                let mut tasks = Vec::new();
                for _ in 0..CONNECTIONS {
                    let stream = listener.accept().await?;
                    tasks.push(runtime::spawn(response(stream, Rc::clone(&content), way)));
                }
                let begun = thread_ns();
                for task in tasks {
                    task.await??;
                }
                Ok(thread_ns() - begun)
            })?
    });
    let address = addresses
        .recv()
        .map_err(|_| io::Error::other("the server did not start"))?;
    let client = std::thread::spawn(move || request(address, bytes, rounds_per_connection, cpus.1));
    let ended = || io::Error::other("a thread has panicked");
    let (client_ns, seconds) = client.join().map_err(|_| ended())??;
    let server_ns = server.join().map_err(|_| ended())??;
    let responses = (rounds_per_connection * CONNECTIONS) as f64;
    Ok([
        server_ns as f64 / 1e3 / responses,
        client_ns as f64 / 1e3 / responses,
        responses / seconds,
    ])
}

fn request(
    address: SocketAddr,
    bytes: usize,
    rounds_per_connection: usize,
    cpu: usize,
) -> io::Result<(u64, f64)> {
    pin(cpu)?;
    let connect = |_| Client::connect(address);
    let mut clients = (0..CONNECTIONS)
        .map(connect)
        .collect::<io::Result<Vec<_>>>()?;
    let mut buffer = vec![0; HEAD.len() + bytes];
    let (begun, clock) = (thread_ns(), Instant::now());
    for _ in 0..rounds_per_connection {
        for client in &mut clients {
            client.write_all(b"?")?;
        }
        for client in &mut clients {
            client.read_exact(&mut buffer)?;
        }
    }
    Ok((thread_ns() - begun, clock.elapsed().as_secs_f64()))
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<usize>());
    let rounds = args.next().unwrap_or(Ok(5))?.max(1);
    let cpus = (args.next().unwrap_or(Ok(0))?, args.next().unwrap_or(Ok(1))?);
    println!("| body | way | server µs | client µs | responses/s | × copied |");
    println!("|--:|---|--:|--:|--:|--:|");
    for bytes in SIZES {
        let mut file = tempfile::tempfile()?;
        let content: Arc<[u8]> = (0..bytes).map(|at| at as u8).collect();
        file.write_all(&content)?;
        let mut all: BTreeMap<Way, Vec<Figures>> = BTreeMap::new();
        for round in 0..rounds {
            for nth in 0..WAYS.len() {
                let way = WAYS[(round + nth) % WAYS.len()];
                let content = (Arc::clone(&content), file.try_clone()?);
                all.entry(way).or_default().push(run(way, content, cpus)?);
            }
        }
        for (way, figures) in &all {
            let [server, client, speed] =
                [0, 1, 2].map(|nth| median(figures.iter().map(|one| one[nth])));
            let both = figures.iter().zip(&all[&Way::Copied]);
            let ratio = median(both.map(|(one, copied)| one[2] / copied[2]));
            let kib = bytes >> 10;
            println!(
                "| {kib} KiB | {way:?} | {server:.2} | {client:.2} | {speed:.0} | {ratio:.2} |"
            );
        }
    }
    Ok(())
}
