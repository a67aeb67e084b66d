//! The server of `echo.c` under the library.

use std::fs;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use annulus::metrics::Snapshot;
use annulus_observe::snapshot_of;
use annulus_testing::once::once_per_run;
use annulus_testing::skip::skip;
use serde_json::Value;

use crate::library;

/// A wait that takes longer fails the test; shorter times decide nothing.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Server {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Lines<BufReader<ChildStdout>>,
    log: PathBuf,
    /// The port of each thread.
    pub(crate) ports: Vec<u16>,
}

/// A started server. `None`: it cannot run on this machine, which has been reported.
pub(crate) struct Started(pub(crate) Option<Server>);

impl Server {
    pub(crate) fn start(threads: usize, variables: &[(&str, &str)]) -> Started {
        if let Err(error) = annulus::Engine::builder()
            .backend(annulus::Backend::Uring)
            .build()
        {
            skip(error);
            return Started(None);
        }
        let log = scratch("log");
        let mut child = Command::new(program())
            .arg(threads.to_string())
            .env("LD_PRELOAD", library())
            .env("ANNULUS_STATS", "1")
            .env("ANNULUS_HOLD", "1")
            .env("ANNULUS_MIN_CONNECTIONS", "1")
            .env("ANNULUS_LOG", &log)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        let port = |_| stdout.next().unwrap().unwrap().parse().unwrap();
        let ports = (0..threads).map(port).collect();
        Started(Some(Server {
            child,
            stdin,
            stdout,
            log,
            ports,
        }))
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    fn request(&mut self, word: &str) -> String {
        writeln!(self.stdin.as_ref().unwrap(), "{word}").unwrap();
        self.stdout.next().unwrap().unwrap()
    }

    /// Returns the number of its calls of `read`, `write` and `epoll_wait`.
    pub(crate) fn counts(&mut self) -> [u64; 3] {
        let stdout = self.request("counts");
        let numbers = stdout.split(' ').map(|number| number.parse().unwrap());
        numbers.collect::<Vec<u64>>().try_into().unwrap()
    }

    pub(crate) fn close_all(&mut self) {
        assert_eq!(self.request("close"), "closed");
    }

    /// Makes the server fork. Returns the child's process ID and port.
    pub(crate) fn fork(&mut self) -> (u32, u16) {
        let pid = self.request("fork").parse().unwrap();
        let port = self.stdout.next().unwrap().unwrap().parse().unwrap();
        (pid, port)
    }

    pub(crate) fn look(&self) -> Snapshot {
        snapshot_of(self.id()).unwrap()
    }

    /// Waits for a snapshot that satisfies `is_so`: the gauges of a ring are updated when its thread enters the kernel.
    pub(crate) fn look_until(&self, is_so: impl Fn(&Snapshot) -> bool) -> Snapshot {
        let until = Instant::now() + PATIENCE;
        loop {
            let now = self.look();
            if is_so(&now) {
                return now;
            }
            assert!(Instant::now() < until, "{now:#?}");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends the server, and returns the line of counts that it has logged.
    pub(crate) fn end(&mut self) -> Value {
        drop(self.stdin.take());
        assert!(self.child.wait().unwrap().success());
        let log = fs::read_to_string(&self.log).unwrap();
        let counts = log.lines().filter_map(|line| {
            let line: Value = serde_json::from_str(line.strip_prefix("annulus: ")?).ok()?;
            (line["pid"] == self.id()).then_some(line)
        });
        let counts: Vec<Value> = counts.collect();
        let [counts] = &counts[..] else {
            panic!("expected one line of counts in {log:?}");
        };
        counts.clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.log);
    }
}

/// Sends a message `rounds` times, and receives it each time.
pub(crate) fn exchange(stream: &mut TcpStream, message: &[u8], times: usize) {
    let mut response = vec![0; message.len()];
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    for _ in 0..times {
        stream.write_all(message).unwrap();
        stream.read_exact(&mut response).unwrap();
        assert_eq!(response, message);
    }
}

fn scratch(kind: &str) -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let nth = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("visible-{}-{nth}.{kind}", std::process::id());
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn program() -> &'static PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let built = || {
        let path = scratch("echo");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/visible/echo.c");
        let output = Command::new("cc")
            .args(["-O1", "-Wall", "-Werror", "-pthread", "-o"])
            .arg(&path)
            .arg(source)
            .output()
            .expect("cannot run cc; install a C compiler");
        let stdout = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stdout}");
        Some(path)
    };
    BUILT.get_or_init(|| once_per_run(tmp, "visible-echo", built).unwrap())
}
