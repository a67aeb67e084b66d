//! Any bytes from a client of the HTTP server: it sends well-formed responses and ends the connection.

#![no_main]

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use annulus::net::TcpListener;
use annulus::runtime::Runtime;
use annulus_http::Options;
use annulus_http::site::SiteOptions;
use libfuzzer_sys::fuzz_target;

/// A wait that takes longer is a hang.
const PATIENCE: Duration = Duration::from_secs(20);
/// The statuses of docs/reference/http.md.
const STATUSES: [u16; 21] = [
    100, 200, 204, 206, 301, 304, 400, 403, 404, 405, 408, 412, 413, 414, 416, 417, 431, 501, 503,
    505, 405,
];

/// Returns the socket of a server that runs until the process ends.
fn server() -> &'static PathBuf {
    static SOCKET: OnceLock<PathBuf> = OnceLock::new();
    SOCKET.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap().keep();
        let root = dir.join("root");
        fs::create_dir_all(root.join("sub")).unwrap();
        for (name, content) in [("index.html", "<p>index"), ("a.txt", "text"), ("sub/b", "")] {
            fs::write(root.join(name), content).unwrap();
        }
        let socket = dir.join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut site = SiteOptions::default();
        site.root = root;
        site.listing = true;
        let options = Options::new(site);
        thread::spawn(move || {
            let listener = std::sync::Mutex::new(Some(listener));
            Runtime::builder().cores(1).run(|_core| {
                let (options, listener) = (options.clone(), listener.lock().unwrap().take());
                async move {
                    let listener = std::net::TcpListener::from(OwnedFd::from(listener.unwrap()));
                    annulus_http::serve(TcpListener::from_std(listener)?, &options).await
                }
            })
        });
        socket
    })
}

/// Checks the responses. A response to HEAD has a length and no body, so the input decides whether bodies are skipped.
fn check(mut bytes: &[u8], has_bodies: bool) {
    while !bytes.is_empty() {
        let mut fields = [httparse::EMPTY_HEADER; 64];
        let mut response = httparse::Response::new(&mut fields);
        let head = response.parse(bytes).unwrap();
        let httparse::Status::Complete(head) = head else {
            panic!("an incomplete head: {}", bytes.escape_ascii());
        };
        let status = response.code.unwrap();
        assert!(STATUSES.contains(&status), "{status}");
        bytes = &bytes[head..];
        let field = |name: &str| {
            let mut fields = response.headers.iter();
            let field = fields.find(|field| field.name.eq_ignore_ascii_case(name))?;
            str::from_utf8(field.value).ok()
        };
        if !has_bodies {
            return;
        }
        assert_eq!(field("transfer-encoding"), None);
        if ![100, 204, 304].contains(&status) {
            let length: usize = field("content-length").unwrap().parse().unwrap();
            bytes = &bytes[length..];
        }
    }
}

fuzz_target!(|input: &[u8]| {
    // HTTP/2 with prior knowledge.
    if input.starts_with(b"PRI") {
        return;
    }
    let mut stream = UnixStream::connect(server()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    // The server may have ended the connection.
    let _ = stream.write_all(input);
    let _ = stream.shutdown(Shutdown::Write);
    let mut responses = Vec::new();
    match stream.read_to_end(&mut responses) {
        Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset => {
            panic!("{error} after {}", responses.escape_ascii())
        }
        _ => {}
    }
    let has_head = input.windows(4).any(|word| word == b"HEAD");
    check(&responses, !has_head);
});
