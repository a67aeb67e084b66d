//! `annulus serve http` with more clients than descriptors.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use crate::server::{BACKENDS, Server};

const CLIENTS: usize = 400;

/// Starts a server with a limit of descriptors, of which it inherits some.
fn serve(descriptors: usize, inherited: usize, backend: &str) -> Server {
    let opens: String = (0..inherited)
        .map(|number| format!("exec {}</dev/null; ", number + 10))
        .collect();
    let script = format!("{opens}ulimit -n {descriptors}; exec \"$0\" \"$@\"");
    let mut command = Command::new("bash");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_annulus")]);
    command.args(["serve", "http", "--respond", "200", "--addr", "127.0.0.1:0"]);
    command.args(["--backend", backend, "--idle-timeout", "3600"]);
    Server::start_of(command)
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address()).unwrap();
    let timeout = Some(Duration::from_secs(60));
    stream.set_read_timeout(timeout).unwrap();
    stream
}

fn is_served(mut stream: &TcpStream) {
    let mut start = [0; 13];
    stream.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 200 ");
}

/// Each client sends its request when it connects: the server may close a connection that stays without a request.
fn all_are_served(server: &Server) {
    let clients = (0..CLIENTS).map(|_| {
        let mut stream = connect(server);
        let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        stream.write_all(request).unwrap();
        stream
    });
    let streams: Vec<_> = clients.collect();
    streams.iter().for_each(is_served);
}

#[test]
fn more_clients_than_descriptors_are_all_served() {
    for backend in BACKENDS {
        let server = serve(128, 0, backend);
        all_are_served(&server);
        server.signal(rustix::process::Signal::TERM);
        let (status, error) = server.wait();
        assert!(status.success(), "{error}");
        assert!(
            !error.contains("cannot accept"),
            "the limit of connections is below that of descriptors: {error}"
        );
    }
}

#[test]
fn without_a_descriptor_for_an_accept_idle_connections_are_closed() {
    for backend in BACKENDS {
        // Inherited descriptors leave fewer than the limit suggests.
        let server = serve(128, 70, backend);
        all_are_served(&server);
        server.signal(rustix::process::Signal::TERM);
        let (status, error) = server.wait();
        assert!(status.success(), "{error}");
        assert!(
            error.contains("cannot accept"),
            "the server has not run out of descriptors: {error}"
        );
    }
}
