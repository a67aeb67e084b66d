//! A server of its own for each test.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A test that takes longer hangs. It decides nothing else.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const BACKENDS: [&str; 2] = ["auto", "epoll"];

pub(crate) fn command(args: &[&str]) -> Command {
    command_as("echo", args)
}

pub(crate) fn command_as(what: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_annulus"));
    command.args(["serve", what]).args(args);
    command
}

/// The same by a shell, which does `first` and then becomes the server.
pub(crate) fn behind(first: &str, what: &str, args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let script = format!("{first}; exec \"$@\"");
    let program = env!("CARGO_BIN_EXE_annulus");
    command.args(["-c", &script, "sh", program, "serve", what]);
    command.args(args);
    command
}

/// A server that listens. Dropped, it is killed.
pub(crate) struct Server {
    child: Child,
    out: BufReader<ChildStdout>,
    /// What it said: `listening on …`.
    pub(crate) address: String,
}

impl Server {
    pub(crate) fn start(args: &[&str]) -> Server {
        Server::start_as("echo", args)
    }

    /// Another one than echo.
    pub(crate) fn start_as(what: &str, args: &[&str]) -> Server {
        Server::start_of(command_as(what, args))
    }

    /// Whatever is started so, if it says where it listens.
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

    /// Waits for its end; what it said to standard error.
    pub(crate) fn wait(self) -> (ExitStatus, String) {
        let (status, error, rest) = self.wait_and_read();
        assert_eq!(rest, "", "nothing more is reported to standard output");
        (status, error)
    }

    /// The same, and what it printed to standard output after its address.
    pub(crate) fn wait_and_read(mut self) -> (ExitStatus, String, String) {
        let until = Instant::now() + PATIENCE;
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
