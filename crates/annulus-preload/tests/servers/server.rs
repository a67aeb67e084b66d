//! A server of the distribution, on a free port and in a temporary folder, with the preload library or without. When
//! the server has ended, the library's counters are read.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread::sleep;
use std::time::{Duration, Instant};

use annulus_testing::skip::skip;
use rustix::process::{Pid, Signal, kill_process};

use crate::library::library;

/// The longest wait: more than any step takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The name, the path and the package of each server.
const SERVERS: [(&str, &str, &str); 3] = [
    ("redis-server", "/usr/bin/redis-server", "redis-server"),
    ("nginx", "/usr/sbin/nginx", "nginx-light"),
    ("memcached", "/usr/bin/memcached", "memcached"),
];

/// The mode of a run: with the library or without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    With,
    Without,
}

/// Returns the path of an installed server, or skips.
pub(crate) fn installed(name: &str) -> Option<&'static Path> {
    let (_, path, package) = SERVERS.iter().find(|(server, ..)| *server == name).unwrap();
    let path = Path::new(path);
    if !path.exists() {
        skip(format_args!("no {name}; install the package {package}"));
        return None;
    }
    Some(path)
}

/// Returns a port without a listener, on which port + 10,000, used between nodes of a cluster, is free as well. It is
/// below the ephemeral ports, so that no client of another test takes it. While this process lives, no other test of
/// this user gets it, of another build either: each port has a file, which is locked.
pub(crate) fn free_port() -> u16 {
    const FIRST: u16 = 12_000;
    const COUNT: u16 = 7_000;
    static TAKEN: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let user = rustix::process::getuid().as_raw();
    let folder = std::env::temp_dir().join(format!("annulus-test-ports-{user}"));
    fs::create_dir_all(&folder).unwrap();
    let first = (std::process::id() % u32::from(COUNT)) as u16;
    for nth in 0..COUNT {
        let port = FIRST + (first + nth) % COUNT;
        let file = File::create(folder.join(port.to_string())).unwrap();
        let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if file.try_lock().is_ok() && free(port) && free(port + 10_000) {
            TAKEN.lock().unwrap().push(file);
            return port;
        }
    }
    panic!("no free port from {FIRST}");
}

/// A running server. Dropping it kills the process.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    log: PathBuf,
    how: How,
}

impl Server {
    /// Starts `command`, which listens on `port`, and waits until it responds. Its output is in `output.log` of
    /// `folder`.
    pub(crate) fn start(how: How, folder: &Path, port: u16, command: &mut Command) -> Server {
        let log = folder.join("annulus.log");
        let output = fs::File::options()
            .create(true)
            .append(true)
            .open(folder.join("output.log"))
            .unwrap();
        command
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output);
        if how == How::With
            && let Some(library) = library()
        {
            command
                .env("LD_PRELOAD", library)
                .env("ANNULUS_STATS", "1")
                .env("ANNULUS_MIN_CONNECTIONS", "1")
                .env("ANNULUS_LOG", &log);
        }
        let mut server = Server {
            child: command.spawn().unwrap(),
            port,
            log,
            how,
        };
        server.wait_until_it_listens(folder);
        server
    }

    fn wait_until_it_listens(&mut self, folder: &Path) {
        let start = Instant::now();
        while let Err(error) = TcpStream::connect(("127.0.0.1", self.port)) {
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            let ended = self.child.try_wait().unwrap();
            if ended.is_some() || start.elapsed() > PATIENCE {
                let output = fs::read_to_string(folder.join("output.log")).unwrap();
                panic!(
                    "the server does not listen on {} ({ended:?}):\n{output}",
                    self.port
                );
            }
            sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Waits until the server ends.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "the server does not end");
            sleep(Duration::from_millis(5));
        }
    }

    /// Makes the server exit, checks that it succeeds, and returns the library's counters.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Stats {
        self.signal(Signal::TERM);
        let status = self.wait();
        assert!(status.success(), "the server ended with {status}");
        self.stats()
    }

    /// Returns the library's counters of processes of this server that have ended.
    #[track_caller]
    pub(crate) fn stats(&self) -> Stats {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        // annulus[123]: {"pid":123, …
        let counts = text
            .lines()
            .filter_map(|line| Some(&line[line.find(": {")? + 2..]));
        let processes = counts.map(|counts| serde_json::from_str(counts).unwrap());
        let stats = Stats(processes.collect());
        assert_eq!(
            stats.0.is_empty(),
            self.how == How::Without || library().is_none(),
            "{text}"
        );
        stats
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
    }
}

/// The library's counters, one JSON value per process.
#[derive(Debug)]
pub(crate) struct Stats(pub(crate) Vec<serde_json::Value>);

impl Stats {
    /// Returns the number of times that `call` was served in all processes.
    pub(crate) fn served(&self, call: &str) -> u64 {
        let of = |process: &serde_json::Value| process["served"][call].as_u64().unwrap_or(0);
        self.0.iter().map(of).sum()
    }

    /// Returns the number of times that all processes entered the kernel with a ring.
    pub(crate) fn enters(&self) -> u64 {
        let of = |process: &serde_json::Value| process["enters"].as_u64().unwrap_or(0);
        self.0.iter().map(of).sum()
    }

    /// Checks that reads, writes and waits were served: otherwise a test shows nothing.
    #[track_caller]
    pub(crate) fn assert_served(&self) {
        if library().is_none() {
            return;
        }
        let any = |calls: &[&str]| calls.iter().any(|call| self.served(call) > 0);
        let read = any(&["read", "recv", "readv", "recvmsg", "recvfrom"]);
        let written = any(&["write", "send", "writev", "sendmsg", "sendto"]);
        let waited = any(&["epoll_wait", "epoll_pwait"]);
        assert!(read && written && waited, "not served: {self:?}");
    }
}

/// Repeats `probe` until it returns a value.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(response) = probe() {
            return response;
        }
        assert!(
            start.elapsed() < PATIENCE,
            "timed out after waiting until {what}"
        );
        sleep(Duration::from_millis(5));
    }
}
