//! A Redis client that sends one command or many at a time, and returns replies in order.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::server::PATIENCE;

/// A reply of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Status(String),
    Error(String),
    Number(i64),
    Bytes(Vec<u8>),
    Nothing,
    List(Vec<Reply>),
}

impl Reply {
    pub(crate) fn ok() -> Reply {
        Reply::Status("OK".to_owned())
    }

    pub(crate) fn bytes(bytes: impl AsRef<[u8]>) -> Reply {
        Reply::Bytes(bytes.as_ref().to_vec())
    }

    /// Returns the text of a text reply.
    #[track_caller]
    pub(crate) fn text(self) -> String {
        match self {
            Reply::Bytes(bytes) => String::from_utf8(bytes).unwrap(),
            Reply::Status(text) => text,
            other => panic!("not a text reply: {other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn number(self) -> i64 {
        match self {
            Reply::Number(number) => number,
            other => panic!("not a number: {other:?}"),
        }
    }
}

/// A connection.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
}

/// Encodes a command.
pub(crate) fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

impl Client {
    #[track_caller]
    pub(crate) fn connect(port: u16) -> Client {
        Client::over(TcpStream::connect(("127.0.0.1", port)).unwrap())
    }

    pub(crate) fn over(stream: TcpStream) -> Client {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Client {
            stream: BufReader::new(stream),
        }
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        self.stream.get_ref()
    }

    pub(crate) fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Sends a command and returns before its reply.
    #[track_caller]
    pub(crate) fn send(&mut self, line: &str) {
        let words: Vec<_> = line.split(' ').map(str::as_bytes).collect();
        self.send_raw(&command(&words)).unwrap();
    }

    /// Sends the words of `line` as a command. Returns its reply.
    #[track_caller]
    pub(crate) fn call(&mut self, line: &str) -> Reply {
        self.send(line);
        self.read().unwrap()
    }

    /// Sends a command with arguments that may contain spaces or any bytes. Returns its reply.
    #[track_caller]
    pub(crate) fn call_words(&mut self, words: &[&[u8]]) -> Reply {
        self.send_raw(&command(words)).unwrap();
        self.read().unwrap()
    }

    /// Reads the next reply.
    pub(crate) fn read(&mut self) -> io::Result<Reply> {
        let line = self.read_line()?;
        let (kind, remaining) = line.split_at(1);
        let count = || remaining.parse::<i64>().unwrap();
        Ok(match kind {
            "+" => Reply::Status(remaining.to_owned()),
            "-" => Reply::Error(remaining.to_owned()),
            ":" => Reply::Number(count()),
            "$" | "*" if count() == -1 => Reply::Nothing,
            "$" => {
                let mut bytes = vec![0; count() as usize + 2];
                self.stream.read_exact(&mut bytes)?;
                assert!(bytes.ends_with(b"\r\n"), "{bytes:?}");
                bytes.truncate(bytes.len() - 2);
                Reply::Bytes(bytes)
            }
            "*" => Reply::List(
                (0..count())
                    .map(|_| self.read())
                    .collect::<io::Result<_>>()?,
            ),
            _ => panic!("not a Redis reply: {line:?}"),
        })
    }

    fn read_line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        assert!(line.ends_with("\r\n"), "incomplete line: {line:?}");
        line.truncate(line.len() - 2);
        Ok(line)
    }

    /// Returns a field of `INFO`.
    #[track_caller]
    pub(crate) fn info(&mut self, field: &str) -> String {
        let all = self.call("INFO everything").text();
        let value = all
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value
            .unwrap_or_else(|| panic!("no {field} in {all}"))
            .to_owned()
    }

    /// Checks that the server ends the connection, after any bytes that it has sent.
    #[track_caller]
    pub(crate) fn assert_ended(&mut self) {
        loop {
            match self.read() {
                Ok(_) => {}
                Err(error) => {
                    let kinds = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset];
                    assert!(kinds.contains(&error.kind()), "{error}");
                    return;
                }
            }
        }
    }
}
