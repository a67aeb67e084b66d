//! Small servers with threads, correct or with one fault.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// Starts a server with a thread for each connection. Returns its address.
pub(crate) fn serve(each: impl Fn(TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let each = Arc::new(each);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (each, stream) = (Arc::clone(&each), stream.unwrap());
            stream.set_nodelay(true).unwrap();
            thread::spawn(move || each(stream));
        }
    });
    address.to_string()
}

pub(crate) fn echo() -> String {
    serve(|mut stream| {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(len @ 1..) = stream.read(&mut buffer) {
            if stream.write_all(&buffer[..len]).is_err() {
                return;
            }
        }
    })
}

/// Starts a server that reads requests of one length. `respond` returns the response, or `None` to close the
/// connection.
pub(crate) fn responding(
    request_bytes: usize,
    respond: impl Fn(usize, &[u8]) -> Option<Vec<u8>> + Send + Sync + 'static,
) -> String {
    serve(move |mut stream| {
        let mut buffer = vec![0; request_bytes];
        for number in 1.. {
            if stream.read_exact(&mut buffer).is_err() {
                return;
            }
            match respond(number, &buffer) {
                Some(bytes) if stream.write_all(&bytes).is_ok() => {}
                _ => return,
            }
        }
    })
}

/// Starts a server that sends the same response to each HTTP request.
pub(crate) fn http(response: &'static str) -> String {
    serve(move |mut stream| {
        let (mut buffer, mut received) = ([0; 4096], Vec::new());
        while let Ok(len @ 1..) = stream.read(&mut buffer) {
            received.extend_from_slice(&buffer[..len]);
            while let Some(end) = received.windows(4).position(|four| four == b"\r\n\r\n") {
                received.drain(..end + 4);
                if stream.write_all(response.as_bytes()).is_err() {
                    return;
                }
            }
        }
    })
}
