//! The cases of RFC 6455, with frames by hand. The frames from the server are compared with those of axum's own server.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::on_each;

const UPGRADE: &str = "GET /ws HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                       sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

const CONTINUE: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
/// The bit of a message's last frame.
const FINAL: u8 = 0x80;

/// A frame from the server: its first byte and its payload.
type Frame = (u8, Vec<u8>);

/// Sends `request`, and returns all bytes until the server closes.
pub(crate) async fn raw(host: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(host).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).await.unwrap();
    String::from_utf8(all).unwrap()
}

/// Returns a frame as clients send it, masked.
fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    const MASK: [u8; 4] = [1, 2, 3, 4];
    let mut frame = vec![first];
    match payload.len() {
        length @ 0..126 => frame.push(0x80 | length as u8),
        length @ 126..65_536 => {
            frame.push(0x80 | 126);
            frame.extend((length as u16).to_be_bytes());
        }
        length => {
            frame.push(0x80 | 127);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    frame.extend(MASK);
    frame.extend(
        payload
            .iter()
            .zip(MASK.iter().cycle())
            .map(|(byte, mask)| byte ^ mask),
    );
    frame
}

struct Socket(TcpStream);

impl Socket {
    async fn open(host: &str) -> Socket {
        let mut stream = TcpStream::connect(host).await.unwrap();
        stream.write_all(UPGRADE.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        assert!(head.starts_with(b"HTTP/1.1 101 "));
        Socket(stream)
    }

    async fn send(&mut self, first: u8, payload: &[u8]) {
        self.0.write_all(&masked(first, payload)).await.unwrap();
    }

    /// Returns the next frame; `None` at the end of the stream, or if it was reset.
    async fn frame(&mut self) -> Option<Frame> {
        let first = self.0.read_u8().await.ok()?;
        let length = match self.0.read_u8().await.ok()? {
            126 => u64::from(self.0.read_u16().await.ok()?),
            127 => self.0.read_u64().await.ok()?,
            length => u64::from(length),
        };
        let mut payload = vec![0; length as usize];
        self.0.read_exact(&mut payload).await.ok()?;
        Some((first, payload))
    }

    async fn rest(mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.frame().await {
            frames.push(frame);
        }
        frames
    }
}

pub(crate) fn echo() {
    on_each(async |host, _| {
        let mut socket = Socket::open(&host).await;
        for bytes in [0, 1, 125, 126, 127, 65_535, 65_536, 100_000] {
            for kind in [TEXT, BINARY] {
                socket.send(FINAL | kind, &vec![b'x'; bytes]).await;
                assert_eq!(
                    socket.frame().await.unwrap(),
                    (FINAL | kind, vec![b'x'; bytes])
                );
            }
        }
    });
}

/// Sockets that all have a message under way.
pub(crate) fn concurrent() {
    on_each(async |host, _| {
        let mut sockets = Vec::new();
        for _ in 0..50 {
            sockets.push(Socket::open(&host).await);
        }
        for round in 0..20 {
            for (number, socket) in sockets.iter_mut().enumerate() {
                let text = format!("{round} of {number}");
                socket.send(FINAL | TEXT, text.as_bytes()).await;
            }
            for (number, socket) in sockets.iter_mut().enumerate() {
                let text = format!("{round} of {number}");
                assert_eq!(
                    socket.frame().await.unwrap(),
                    (FINAL | TEXT, text.into_bytes())
                );
            }
        }
    });
}

pub(crate) fn of_16_megabytes() {
    on_each(async |host, _| {
        let mut socket = Socket::open(&host).await;
        let message: Vec<u8> = (0..16 << 20).map(|at: u32| (at % 251) as u8).collect();
        let frame = masked(FINAL | BINARY, &message);
        let (mut reader, mut writer) = socket.0.into_split();
        let sends = tokio::spawn(async move {
            writer.write_all(&frame).await.unwrap();
            writer
        });
        let mut head = [0; 10];
        reader.read_exact(&mut head).await.unwrap();
        let mut echoed = vec![0; message.len()];
        reader.read_exact(&mut echoed).await.unwrap();
        assert!(echoed == message);
        socket = Socket(sends.await.unwrap().reunite(reader).unwrap());
        socket.send(FINAL | CLOSE, &[]).await;
        (head, socket.rest().await)
    });
}

pub(crate) fn ping() {
    on_each(async |host, _| {
        let mut socket = Socket::open(&host).await;
        socket.send(FINAL | PING, b"are you there?").await;
        assert_eq!(
            socket.frame().await.unwrap(),
            (FINAL | PONG, b"are you there?".to_vec())
        );
    });
}

pub(crate) fn fragments() {
    on_each(async |host, _| {
        let mut socket = Socket::open(&host).await;
        socket.send(TEXT, b"one, ").await;
        socket.send(CONTINUE, b"").await;
        socket.send(CONTINUE, b"two, ").await;
        socket.send(FINAL | CONTINUE, b"three").await;
        assert_eq!(
            socket.frame().await.unwrap(),
            (FINAL | TEXT, b"one, two, three".to_vec())
        );
    });
}

pub(crate) fn ping_between_fragments() {
    on_each(async |host, _| {
        let mut socket = Socket::open(&host).await;
        socket.send(BINARY, b"one, ").await;
        socket.send(FINAL | PING, b"between").await;
        assert_eq!(
            socket.frame().await.unwrap(),
            (FINAL | PONG, b"between".to_vec())
        );
        socket.send(FINAL | CONTINUE, b"two").await;
        assert_eq!(
            socket.frame().await.unwrap(),
            (FINAL | BINARY, b"one, two".to_vec())
        );
    });
}

pub(crate) fn invalid_utf8() {
    on_each(async |host, _| {
        let mut socket = Socket::open(&host).await;
        socket.send(FINAL | TEXT, b"\xff\xfe").await;
        socket.rest().await
    });
}

pub(crate) fn close_codes() {
    on_each(async |host, _| {
        let mut all = Vec::new();
        let payloads: [&[u8]; 7] = [
            b"",
            &1000_u16.to_be_bytes(),
            b"\x03\xe8with a reason",
            &1002_u16.to_be_bytes(),
            &4999_u16.to_be_bytes(),
            // Codes that no frame may have, and half a code.
            &1005_u16.to_be_bytes(),
            b"\x03",
        ];
        for payload in payloads {
            let mut socket = Socket::open(&host).await;
            socket.send(FINAL | CLOSE, payload).await;
            all.push(socket.rest().await);
        }
        assert_eq!(all[1], [(FINAL | CLOSE, 1000_u16.to_be_bytes().to_vec())]);
        all
    });
}

pub(crate) fn wrong_frames() {
    on_each(async |host, _| {
        let mut all = Vec::new();
        // A reserved bit, a reserved kind, a ping of two frames, and a frame that continues nothing.
        for first in [FINAL | 0x40 | TEXT, FINAL | 3, PING, FINAL | CONTINUE] {
            let mut socket = Socket::open(&host).await;
            socket.send(first, b"x").await;
            all.push(socket.rest().await);
        }
        // Not masked.
        let mut socket = Socket::open(&host).await;
        socket.0.write_all(&[FINAL | TEXT, 1, b'x']).await.unwrap();
        all.push(socket.rest().await);
        all
    });
}

pub(crate) fn without_close() {
    on_each(async |host, _| {
        let mut socket = Socket::open(&host).await;
        socket.send(FINAL | TEXT, b"last").await;
        assert_eq!(
            socket.frame().await.unwrap(),
            (FINAL | TEXT, b"last".to_vec())
        );
        socket.0.shutdown().await.unwrap();
        socket.rest().await
    });
}

/// Extended CONNECT (RFC 8441).
pub(crate) fn over_http2() {
    on_each(async |host, _| {
        let stream = TcpStream::connect(&host).await.unwrap();
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let mut client = client.ready().await.unwrap();
        while !client.is_extended_connect_protocol_enabled() {
            tokio::task::yield_now().await;
        }
        let request = http::Request::connect(format!("http://{host}/ws"))
            .extension(h2::ext::Protocol::from_static("websocket"))
            .header("sec-websocket-version", "13");
        let (response, mut sends) = client
            .send_request(request.body(()).unwrap(), false)
            .unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        sends
            .send_data(masked(FINAL | TEXT, b"hello").into(), false)
            .unwrap();
        let mut received = Vec::new();
        let mut body = response.into_body();
        while received.len() < 7 {
            received.extend(body.data().await.unwrap().unwrap());
        }
        assert_eq!(received, [&[FINAL | TEXT, 5], &b"hello"[..]].concat());
    });
}
