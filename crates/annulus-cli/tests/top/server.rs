//! An echo server under light load.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// A server with a client. Both end when it is dropped.
pub(crate) struct Server {
    child: Child,
    stop: Arc<AtomicBool>,
    client: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start() -> Server {
        Server::start_with(Command::new(env!("CARGO_BIN_EXE_annulus")))
    }

    /// Starts the server by `command`, which gets the arguments of the tool.
    pub(crate) fn start_with(mut command: Command) -> Server {
        let mut child = command
            .args(["serve", "echo", "--addr", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("listening on ").unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let client = thread::spawn(move || {
            let mut reply = [0; 64];
            while !stopped.load(Ordering::Relaxed) {
                // This fails when the server ends.
                if stream.write_all(&[7; 64]).is_err() || stream.read_exact(&mut reply).is_err() {
                    return;
                }
            }
        });
        Server {
            child,
            stop,
            client: Some(client),
        }
    }

    pub(crate) fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Closes the standard input of a server that ends for it, and waits for its end.
    pub(crate) fn close_input(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }

    pub(crate) fn kill(&mut self) {
        // The server may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.kill();
        if let Some(client) = self.client.take() {
            let _ = client.join();
        }
    }
}
