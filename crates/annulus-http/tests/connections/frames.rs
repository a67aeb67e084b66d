//! Hand-written HTTP/2 frames, for hostile clients.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use crate::server::Server;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) payload: Vec<u8>,
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Returns `GET path`, encoded with the static table and literals only, so that no state is needed.
pub(crate) fn request(stream: u32, path: &str) -> Vec<u8> {
    let mut block = vec![0x82, 0x86, 0x04, path.len() as u8];
    block.extend(path.as_bytes());
    block.extend([0x41, 1, b'a']);
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &block)
}

/// Connects and sends the preface and settings.
pub(crate) fn connect(server: &Server, settings: &[(u16, u32)]) -> TcpStream {
    let mut stream = server.connect();
    let mut payload = Vec::new();
    for (name, value) in settings {
        payload.extend(name.to_be_bytes());
        payload.extend(value.to_be_bytes());
    }
    let begin = [PREFACE, &frame(SETTINGS, 0, 0, &payload)].concat();
    stream.write_all(&begin).unwrap();
    stream
}

pub(crate) fn read(stream: &mut TcpStream) -> io::Result<Frame> {
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    stream.read_exact(&mut payload)?;
    Ok(Frame {
        kind: head[3],
        flags: head[4],
        payload,
    })
}

/// Reads until a frame of this kind arrives. Returns `None` at the end.
pub(crate) fn until(stream: &mut TcpStream, kind: u8) -> Option<Frame> {
    loop {
        match read(stream) {
            Ok(frame) if frame.kind == kind => return Some(frame),
            Ok(_) => {}
            Err(_) => return None,
        }
    }
}
