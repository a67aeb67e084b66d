//! memcached with its text and binary protocols, with one thread and with several.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::thread;

use tempfile::TempDir;

use crate::server::{How, PATIENCE, Server, free_port, installed};

/// Starts memcached with `threads` threads under the library, or skips.
fn memcached(threads: usize, options: &[&str]) -> Option<(Server, TempDir)> {
    let folder = TempDir::new().unwrap();
    let port = free_port();
    let mut command = Command::new(installed("memcached")?);
    command.args([
        "-l",
        "127.0.0.1",
        "-U",
        "0",
        "-u",
        "root",
        "-p",
        &port.to_string(),
    ]);
    command.args(["-t", &threads.to_string()]).args(options);
    let server = Server::start(How::With, folder.path(), port, &mut command);
    Some((server, folder))
}

struct Client(BufReader<TcpStream>);

impl Client {
    #[track_caller]
    fn connect(server: &Server) -> Client {
        Client::to(server.port)
    }

    #[track_caller]
    fn to(port: u16) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Client(BufReader::new(stream))
    }

    #[track_caller]
    fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    #[track_caller]
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }

    #[track_caller]
    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    #[track_caller]
    fn set(&mut self, key: &str, value: &[u8]) {
        self.send(&text_set(key, value));
        assert_eq!(self.line(), "STORED\r\n");
    }

    /// Reads the response to one `get` that hits.
    #[track_caller]
    fn assert_value(&mut self, key: &str, value: &[u8]) {
        assert_eq!(self.line(), format!("VALUE {key} 0 {}\r\n", value.len()));
        assert!(self.bytes(value.len()) == value, "{key}");
        assert_eq!(self.line(), "\r\n");
        assert_eq!(self.line(), "END\r\n");
    }
}

fn text_set(key: &str, value: &[u8]) -> Vec<u8> {
    let head = format!("set {key} 0 0 {}\r\n", value.len());
    [head.as_bytes(), value, b"\r\n"].concat()
}

/// Sets and gets values of all sizes, with keys that contain `name`.
fn use_it(client: &mut Client, name: usize, rounds: usize) {
    for round in 0..rounds {
        let key = format!("key{name}-{round}");
        let value = key.repeat(1 + round * 13 % 600);
        client.set(&key, value.as_bytes());
        client.send(format!("get {key}\r\n").as_bytes());
        client.assert_value(&key, value.as_bytes());
    }
}

#[test]
fn a_pipeline_of_gets_and_sets_returns_in_order() {
    let Some((server, _folder)) = memcached(1, &[]) else {
        return;
    };
    let mut client = Client::connect(&server);
    let mut pipeline = Vec::new();
    for n in 0..500 {
        let value = n.to_string().repeat(1 + n % 50);
        pipeline.extend(text_set(&format!("key{n}"), value.as_bytes()));
        pipeline.extend(format!("get key{n}\r\nget none{n}\r\n").into_bytes());
    }
    client.send(&pipeline);
    for n in 0..500 {
        assert_eq!(client.line(), "STORED\r\n");
        client.assert_value(
            &format!("key{n}"),
            n.to_string().repeat(1 + n % 50).as_bytes(),
        );
        assert_eq!(client.line(), "END\r\n");
    }
    server.finish().assert_served();
}

#[test]
fn values_of_a_megabyte_and_more_come_back_byte_for_byte() {
    let Some((server, _folder)) = memcached(1, &["-I", "8m", "-m", "128"]) else {
        return;
    };
    let mut clients: Vec<_> = (0..3).map(|_| Client::connect(&server)).collect();
    let mut random = fastrand::Rng::with_seed(5);
    let mut value = vec![0; 5_000_000];
    random.fill(&mut value);
    for (n, client) in clients.iter_mut().enumerate() {
        let value = &value[n..value.len() - 1_000_000 * n];
        client.set(&format!("big{n}"), value);
        client.send(format!("get big{n}\r\n").repeat(3).as_bytes());
    }
    for (n, client) in clients.iter_mut().enumerate() {
        for _ in 0..3 {
            client.assert_value(&format!("big{n}"), &value[n..value.len() - 1_000_000 * n]);
        }
    }
    server.finish().assert_served();
}

#[test]
fn four_threads_serve_many_connections() {
    let Some((server, _folder)) = memcached(4, &[]) else {
        return;
    };
    let port = server.port;
    let clients: Vec<_> = (0..8)
        .map(|name| {
            thread::spawn(move || {
                // Long-lived connections, which the threads get in turn, and short ones in between.
                let mut kept: Vec<_> = (0..4).map(|_| Client::to(port)).collect();
                for (n, client) in kept.iter_mut().enumerate() {
                    use_it(client, name * 100 + n, 20);
                    use_it(&mut Client::to(port), name * 100 + 50 + n, 3);
                }
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
    server.finish().assert_served();
}

/// A request or a response of the binary protocol.
fn binary(opcode: u8, key: &[u8], extras: &[u8], value: &[u8], opaque: u32) -> Vec<u8> {
    let total = (key.len() + extras.len() + value.len()) as u32;
    let mut bytes = vec![0x80, opcode];
    bytes.extend((key.len() as u16).to_be_bytes());
    bytes.extend([extras.len() as u8, 0, 0, 0]);
    bytes.extend(total.to_be_bytes());
    bytes.extend(opaque.to_be_bytes());
    bytes.extend([0; 8]);
    bytes.extend([extras, key, value].concat());
    bytes
}

/// Reads the next response: opcode, status, opaque, and the body without extras.
#[track_caller]
fn read_binary(client: &mut Client) -> (u8, u16, u32, Vec<u8>) {
    let head = client.bytes(24);
    assert_eq!(head[0], 0x81);
    let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
    let body = client.bytes(number(8) as usize);
    let status = u16::from_be_bytes([head[6], head[7]]);
    (
        head[1],
        status,
        number(12),
        body[head[4] as usize..].to_vec(),
    )
}

#[test]
fn the_binary_protocol_responds_only_where_required() {
    const SET: u8 = 0x01;
    const GET_QUIETLY: u8 = 0x09;
    const NO_OPERATION: u8 = 0x0a;
    let Some((server, _folder)) = memcached(1, &[]) else {
        return;
    };
    let mut client = Client::connect(&server);
    for n in (0..200).step_by(2) {
        let (key, value) = (format!("key{n}"), format!("value{n}").repeat(1 + n));
        client.send(&binary(
            SET,
            key.as_bytes(),
            &[0; 8],
            value.as_bytes(),
            n as u32,
        ));
        assert_eq!(read_binary(&mut client), (SET, 0, n as u32, vec![]));
    }
    // Quiet gets respond only on a hit; all responses come together at the end.
    let mut pipeline = Vec::new();
    for n in 0..200 {
        pipeline.extend(binary(
            GET_QUIETLY,
            format!("key{n}").as_bytes(),
            &[],
            &[],
            n,
        ));
    }
    pipeline.extend(binary(NO_OPERATION, &[], &[], &[], 77));
    client.send(&pipeline);
    for n in (0..200).step_by(2) {
        let value = format!("value{n}").repeat(1 + n).into_bytes();
        assert_eq!(read_binary(&mut client), (GET_QUIETLY, 0, n as u32, value));
    }
    assert_eq!(read_binary(&mut client), (NO_OPERATION, 0, 77, vec![]));
    server.finish().assert_served();
}

#[test]
fn clients_that_disconnect_within_a_value_harm_no_other_client() {
    let Some((server, _folder)) = memcached(2, &[]) else {
        return;
    };
    let mut other = Client::connect(&server);
    let value = vec![b'x'; 500_000];
    other.set("big", &value);
    for n in 0..20 {
        let mut leaving = Client::connect(&server);
        match n % 2 {
            0 => leaving.send(&text_set("half", &value)[..70_000]),
            _ => {
                leaving.send(&b"get big\r\n".repeat(20));
                leaving.bytes(1000);
            }
        }
    }
    other.send(b"get half\r\n");
    assert_eq!(other.line(), "END\r\n");
    use_it(&mut other, 1, 20);
    server.finish().assert_served();
}
