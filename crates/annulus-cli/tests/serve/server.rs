//! A separate server for each test.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The limit after which a test has failed.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) const BACKENDS: [&str; 2] = ["auto", "epoll"];

pub(crate) fn command(args: &[&str]) -> Command {
    command_as("echo", args)
}

pub(crate) fn command_as(protocol: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_annulus"));
    command.args(["serve", protocol]).args(args);
    command
}

/// Returns a shell that runs `first` and then executes the server.
pub(crate) fn behind(first: &str, protocol: &str, args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let script = format!("{first}; exec \"$@\"");
    let program = env!("CARGO_BIN_EXE_annulus");
    command.args(["-c", &script, "sh", program, "serve", protocol]);
    command.args(args);
    command
}

/// A listening server, which is killed when it is dropped.
pub(crate) struct Server {
    child: Child,
    out: BufReader<ChildStdout>,
    /// The address from its line `listening on …`.
    pub(crate) address: String,
}

impl Server {
    pub(crate) fn start(args: &[&str]) -> Server {
        Server::start_as("echo", args)
    }

    /// Starts a server of this protocol.
    pub(crate) fn start_as(protocol: &str, args: &[&str]) -> Server {
        Server::start_of(command_as(protocol, args))
    }

    /// Starts a command, and waits until it prints its address.
    pub(crate) fn start_of(mut command: Command) -> Server {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let Some(address) = line.trim_end().strip_prefix("listening on ") else {
            let mut error = String::new();
            let _ = child.stderr.take().unwrap().read_to_string(&mut error);
            panic!("{command:?}: {line:?} {error:?}");
        };
        Server {
            address: address.to_owned(),
            child,
            out,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address.parse().unwrap()
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end, and returns the standard error.
    pub(crate) fn wait(self) -> (ExitStatus, String) {
        let (status, error, rest) = self.wait_and_read();
        assert_eq!(rest, "", "nothing more is printed to standard output");
        (status, error)
    }

    /// Waits for the end, and returns the standard error and the standard output after the address.
    pub(crate) fn wait_and_read(mut self) -> (ExitStatus, String, String) {
        let until = Instant::now() + TIMEOUT;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < until, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut error = String::new();
        let mut pipe = self.child.stderr.take().unwrap();
        pipe.read_to_string(&mut error).unwrap();
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).unwrap();
        (status, error, rest)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
