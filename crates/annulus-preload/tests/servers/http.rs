//! An HTTP/1.1 client on a socket, which compares sent and received data byte for byte.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::server::PATIENCE;

/// A response, with its body after chunked encoding was removed.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let header = self
            .headers
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name));
        header.map(|(_, value)| value.as_str())
    }

    /// Returns the first position at which the body differs from `body`.
    pub(crate) fn first_difference(&self, body: &[u8]) -> Option<usize> {
        let differs = self.body.iter().zip(body).position(|(a, b)| a != b);
        let shorter = self.body.len().min(body.len());
        differs.or((self.body.len() != body.len()).then_some(shorter))
    }

    #[track_caller]
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

/// A connection.
pub(crate) struct Http {
    stream: BufReader<TcpStream>,
}

impl Http {
    pub(crate) fn open(port: u16) -> io::Result<Http> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Http {
            stream: BufReader::new(stream),
        })
    }

    #[track_caller]
    pub(crate) fn connect(port: u16) -> Http {
        Http::open(port).unwrap()
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        self.stream.get_ref()
    }

    pub(crate) fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Sends a request with further headers, each of which includes its end of line.
    pub(crate) fn send(&mut self, path: &str, headers: &str) -> io::Result<()> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
        self.send_raw(request.as_bytes())
    }

    #[track_caller]
    pub(crate) fn get(&mut self, path: &str) -> Response {
        self.get_with(path, "")
    }

    #[track_caller]
    pub(crate) fn get_with(&mut self, path: &str, headers: &str) -> Response {
        self.send(path, headers).unwrap();
        self.read().unwrap()
    }

    #[track_caller]
    pub(crate) fn send_with_body(&mut self, method: &str, path: &str, body: &[u8]) -> Response {
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
        );
        self.send_raw(head.as_bytes()).unwrap();
        self.send_raw(body).unwrap();
        self.read().unwrap()
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        assert!(line.ends_with("\r\n"), "incomplete line: {line:?}");
        line.truncate(line.len() - 2);
        Ok(line)
    }

    /// Reads the next response.
    pub(crate) fn read(&mut self) -> io::Result<Response> {
        let first = self.line()?;
        let status = first.split(' ').nth(1).unwrap().parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            let (key, value) = line.split_once(": ").unwrap();
            headers.push((key.to_owned(), value.to_owned()));
        }
        let mut response = Response {
            status,
            headers,
            body: Vec::new(),
        };
        if response.header("Transfer-Encoding") == Some("chunked") {
            self.read_chunks(&mut response.body)?;
        } else if let Some(length) = response.header("Content-Length") {
            response.body.resize(length.parse().unwrap(), 0);
            self.stream.read_exact(&mut response.body)?;
        } else {
            self.stream.read_to_end(&mut response.body)?;
        }
        Ok(response)
    }

    fn read_chunks(&mut self, body: &mut Vec<u8>) -> io::Result<()> {
        loop {
            let length = usize::from_str_radix(&self.line()?, 16).unwrap();
            let start = body.len();
            body.resize(start + length, 0);
            self.stream.read_exact(&mut body[start..])?;
            assert_eq!(self.line()?, "");
            if length == 0 {
                return Ok(());
            }
        }
    }

    /// Checks that no more bytes arrive and that the connection ends in order.
    #[track_caller]
    pub(crate) fn assert_ended(&mut self) {
        let mut remaining = Vec::new();
        self.stream.read_to_end(&mut remaining).unwrap();
        assert!(remaining.is_empty(), "{} bytes more", remaining.len());
    }
}
