//! A server in this process for each test, on each backend.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use annulus::Backend;
use annulus::net::TcpListener;
use annulus::runtime::{self, Handle, Runtime};
use annulus_http::site::SiteOptions;
use annulus_http::{Limits, Options};
use annulus_testing::skip::skip;

/// The limit of each test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The grace period of the runtime.
const GRACE: Duration = Duration::from_secs(20);

pub(crate) const BODY: &str = "Hello, World!";

/// Returns the options of a server with a fixed response and no files.
pub(crate) fn respond() -> Options {
    let ok = http::StatusCode::OK;
    let mut site = SiteOptions::default();
    site.respond = Some((ok, BODY.into()));
    Options::new(site)
}

pub(crate) fn with_limits(change: impl FnOnce(&mut Limits)) -> Options {
    let mut options = respond();
    change(&mut options.limits);
    options
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    handle: Handle,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// Runs the test against a server on each backend. A backend that is not available is reported as
/// skipped.
pub(crate) fn for_each_backend(options: &Options, test: impl Fn(&Server)) {
    for backend in [Backend::Uring, Backend::Fallback] {
        match Runtime::builder().backend(backend).block_on(async {}) {
            Ok(()) => {}
            Err(error) if error.allows_fallback() => {
                skip(format_args!("{backend:?}: {error}"));
                continue;
            }
            Err(error) => panic!("{backend:?}: {error}"),
        }
        let server = Server::start(backend, options.clone());
        test(&server);
        server.end();
        println!("{backend:?}: done");
    }
}

impl Server {
    pub(crate) fn start(backend: Backend, options: Options) -> Server {
        let (listens, listening) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = Runtime::builder().cores(1).backend(backend).grace(GRACE);
            runtime.run(|_| {
                let (options, listens) = (options.clone(), listens.clone());
                async move {
                    let listener = TcpListener::bind("127.0.0.1:0")?;
                    let address = listener.local_addr()?;
                    listens.send((runtime::handle(), address)).unwrap();
                    annulus_http::serve(listener, &options).await
                }
            })
        });
        let Ok((handle, address)) = listening.recv() else {
            panic!("{backend:?}: {:?}", thread.join().unwrap());
        };
        Server {
            address,
            handle,
            thread: Some(thread),
        }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Sends `bytes` and returns everything until the end.
    pub(crate) fn exchange(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(bytes).unwrap();
        rest(&mut stream)
    }

    pub(crate) fn shut_down(&self) {
        self.handle.shutdown();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops the server and waits for its end.
    pub(crate) fn end(mut self) {
        self.shut_down();
        let until = Instant::now() + PATIENCE;
        while !self.has_ended() {
            assert!(Instant::now() < until, "the server does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
        self.thread.take().unwrap().join().unwrap().unwrap();
    }
}

/// Returns everything until the end of the stream. A reset is an error.
pub(crate) fn rest(stream: &mut TcpStream) -> String {
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap_or_else(|error| {
        panic!("{error} after {:?}", String::from_utf8_lossy(&received));
    });
    String::from_utf8_lossy(&received).into_owned()
}

/// Returns the head of a response, and the body with the announced length.
pub(crate) fn response(stream: &mut impl Read) -> (String, Vec<u8>) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap_or_else(|error| {
            panic!("{error} after {:?}", String::from_utf8_lossy(&head));
        });
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let mut body = vec![0; length(&head)];
    stream.read_exact(&mut body).unwrap();
    (head, body)
}

pub(crate) fn length(head: &str) -> usize {
    let lines = head.lines().filter_map(|line| line.split_once(": "));
    let mut lengths = lines.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    lengths
        .next()
        .map_or(0, |(_, length)| length.parse().unwrap())
}

pub(crate) fn status(head: &str) -> u16 {
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
    status.unwrap_or_else(|| panic!("no status: {head:?}"))
}

/// Returns the statuses of consecutive responses.
pub(crate) fn statuses(mut responses: &[u8]) -> Vec<u16> {
    let mut statuses = Vec::new();
    while !responses.is_empty() {
        statuses.push(status(&response(&mut responses).0));
    }
    statuses
}
