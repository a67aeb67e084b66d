//! The load of `bench/axum`: `axum_load ADDRESS LOAD CONNECTIONS SECONDS`.
//!
//! LOAD is `hello`, `pipelined` (16 requests at a time), `sleep`, `compute`, `sqlite`, `upload` (64 KiB) or `websocket`
//! (128 bytes). Each connection sends the next message when the response to the last one has arrived. Prints the
//! messages per second and percentiles of their latencies as JSON.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use annulus::net::TcpStream;
use annulus::runtime::{self, Runtime};
use annulus::time;

const USAGE: &str =
    "axum_load ADDRESS hello|pipelined|sleep|compute|sqlite|upload|websocket CONNECTIONS SECONDS";
const PIPELINED: usize = 16;
const UPLOAD_BYTES: usize = 64 << 10;
const MESSAGE_BYTES: u8 = 128;
/// The load before the measurement, as a part of its time.
const WARM_UP: f64 = 0.2;

#[derive(Clone)]
struct Load {
    /// A request, or a frame of a WebSocket.
    message: Vec<u8>,
    /// The messages of one exchange.
    at_a_time: usize,
    is_websocket: bool,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some((address, load, connections, seconds)) = read(&words) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let run =
        Runtime::builder().block_on(async move { run(address, load, connections, seconds).await });
    match run.unwrap_or_else(|error| Err(error.into())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the load on {address} failed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn read(words: &[String]) -> Option<(SocketAddr, Load, usize, f64)> {
    let [address, load, connections, seconds] = words else {
        return None;
    };
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").into_bytes();
    let message = match load.as_str() {
        "hello" | "pipelined" => get("/"),
        "sleep" => get("/sleep"),
        "compute" => get("/compute"),
        "sqlite" => get("/user"),
        "upload" => {
            let head = format!(
                "POST /upload HTTP/1.1\r\nhost: x\r\ncontent-length: {UPLOAD_BYTES}\r\n\r\n"
            );
            let mut request = head.into_bytes();
            request.resize(request.len() + UPLOAD_BYTES, b'x');
            request
        }
        // Binary, final, masked with zeros, a length of two bytes.
        "websocket" => {
            let mut frame = vec![0x82, 0x80 | 126, 0, MESSAGE_BYTES, 0, 0, 0, 0];
            frame.resize(frame.len() + usize::from(MESSAGE_BYTES), b'x');
            frame
        }
        _ => return None,
    };
    let load_of = Load {
        message,
        at_a_time: if load == "pipelined" { PIPELINED } else { 1 },
        is_websocket: load == "websocket",
    };
    let seconds: f64 = seconds.parse().ok()?;
    Some((
        address.parse().ok()?,
        load_of,
        connections.parse().ok()?,
        seconds,
    ))
}

async fn run(address: SocketAddr, load: Load, connections: usize, seconds: f64) -> io::Result<()> {
    let latencies = Rc::new(RefCell::new(Vec::new()));
    let mut tasks = Vec::new();
    let begin = Instant::now() + Duration::from_secs_f64(seconds * WARM_UP);
    let end = begin + Duration::from_secs_f64(seconds);
    for _ in 0..connections {
        let stream = TcpStream::connect(address).await?;
        stream.options().set_nodelay(true)?;
        let (load, latencies) = (load.clone(), Rc::clone(&latencies));
        tasks.push(runtime::spawn(async move {
            let response_bytes = begin_with(&stream, &load).await?;
            exchange(&stream, &load, response_bytes, [begin, end], &latencies).await
        }));
    }
    for task in tasks {
        // A server that stops responding is an error, not a hang.
        time::timeout(Duration::from_secs_f64(seconds * 3.0 + 30.0), task).await???;
    }
    let mut latencies = latencies.take();
    latencies.sort_unstable();
    if latencies.is_empty() {
        return Err(io::Error::other("no response arrived"));
    }
    let part =
        |share: f64| f64::from(latencies[((latencies.len() - 1) as f64 * share) as usize]) / 1e3;
    println!(
        "{{\"per_second\": {:.1}, \"p50_us\": {:.1}, \"p99_us\": {:.1}}}",
        (latencies.len() * load.at_a_time) as f64 / seconds,
        part(0.5),
        part(0.99)
    );
    Ok(())
}

/// Begins a connection. Returns the length of the response to one message; all have the same.
async fn begin_with(stream: &TcpStream, load: &Load) -> io::Result<usize> {
    let upgrade = "GET /ws HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                   sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    match load.is_websocket {
        true => drop(stream.send_all(upgrade).await?),
        false => drop(stream.send_all(load.message.clone()).await?),
    }
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.extend(stream.recv_exact(vec![0; 1]).await?);
    }
    let head = String::from_utf8_lossy(&head).to_lowercase();
    let expected = if load.is_websocket {
        "http/1.1 101 "
    } else {
        "http/1.1 200 "
    };
    if !head.starts_with(expected) {
        return Err(io::Error::other(format!("another response: {head}")));
    }
    if load.is_websocket {
        // The server does not mask.
        return Ok(load.message.len() - 4);
    }
    let length = head
        .split("content-length: ")
        .nth(1)
        .and_then(|rest| rest.split('\r').next());
    let length: usize = length
        .and_then(|length| length.parse().ok())
        .ok_or(io::ErrorKind::InvalidData)?;
    stream.recv_exact(vec![0; length]).await?;
    Ok(head.len() + length)
}

async fn exchange(
    stream: &TcpStream,
    load: &Load,
    response_bytes: usize,
    [begin, end]: [Instant; 2],
    latencies: &RefCell<Vec<u32>>,
) -> io::Result<()> {
    let mut messages = load.message.repeat(load.at_a_time);
    let mut chunks = stream.recv_multishot();
    loop {
        let sent = Instant::now();
        if sent >= end {
            return Ok(());
        }
        messages = stream.send_all(messages).await?;
        let mut left = response_bytes * load.at_a_time;
        while left > 0 {
            let chunk = chunks.next().await.ok_or(io::ErrorKind::UnexpectedEof)??;
            left = left
                .checked_sub(chunk.len())
                .ok_or(io::ErrorKind::InvalidData)?;
        }
        let received = Instant::now();
        if sent >= begin && received < end {
            let ns = received.duration_since(sent).as_nanos();
            latencies
                .borrow_mut()
                .push(u32::try_from(ns).unwrap_or(u32::MAX));
        }
    }
}
