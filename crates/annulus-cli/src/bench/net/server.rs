//! The server process of a variant: starts it, waits until it listens, and always ends it.
//!
//! Dropping [`Server`] kills the process and waits for it. If this process ends in any other way, the kernel kills the
//! server.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use annulus_baselines::net::load::Target;
use rustix::process::{Pid, Signal, kill_process_group};

use super::options::Options;
use super::pages::{Pages, find_program};
use super::variants::{NGINX_PRELOAD, Variant};
use crate::fault::Fault;
use crate::signals;
use crate::trace::AtCell;

/// The time limit for a server to start listening.
const PATIENCE: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The number of bytes that are kept of the server's standard error.
const STDERR_BYTES_MAX: u64 = 4096;
/// The prefix of the line that a built-in server prints when it listens.
const LISTENING: &str = "listening on ";

pub(crate) struct Server {
    child: Child,
    name: String,
    stderr: Receiver<String>,
    pub(crate) target: Target,
}

impl Server {
    /// Starts the server for a cell and waits until it listens.
    pub(crate) fn start(
        variant: &Variant,
        options: &Options,
        cell: AtCell,
    ) -> Result<Server, Fault> {
        let cpus = &options.server_cpus;
        let name = variant.name().to_string();
        let failed = |why: String| failed!("starting {name}: {why}");
        let own = std::env::current_exe()
            .map_err(|error| failed(format!("finding our own program: {error}")))?;
        let fixed_address = match variant {
            Variant::Command { .. }
            | Variant::BuiltIn {
                name: "nginx" | NGINX_PRELOAD,
            } => Some(free_address().map_err(|error| failed(error.to_string()))?),
            _ => None,
        };
        let mut command = Command::new(&own);
        command
            .args(["bench", "net-child", "--parent"])
            .arg(std::process::id().to_string());
        if !cpus.is_empty() {
            let list: Vec<String> = cpus.iter().map(usize::to_string).collect();
            command.arg("--cpu").arg(list.join(","));
        }
        let pages = options.pages.as_ref();
        let argv = match (variant, pages, fixed_address) {
            (Variant::BuiltIn { name }, Some(pages), fixed_address) => {
                page_server(name, own, pages, cell, fixed_address)
                    .map_err(|error| failed(error.to_string()))?
            }
            _ => program(variant, own.into(), fixed_address, pages),
        };
        command.arg("--").args(argv);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C on a terminal signals the whole process group. A separate group lets the run end before its server
            // does.
            .process_group(0);
        let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
        let stderr = listen_to(child.stderr.take());
        let lines = first_line(child.stdout.take());
        let mut server = Server {
            child,
            name,
            stderr,
            target: Target::Tcp(SocketAddr::from(([127, 0, 0, 1], 1))),
        };
        let address = server.wait(fixed_address, &lines)?;
        server.target = Target::Tcp(address);
        Ok(server)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns how the server ended, with its standard error. `None` while it runs.
    pub(crate) fn death(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        let stderr = self.stderr.recv_timeout(PATIENCE).unwrap_or_default();
        let stderr = stderr.trim();
        Some(match stderr.is_empty() {
            true => format!("the server {} ended early ({status})", self.name),
            false => format!("the server {} ended early ({status}): {stderr}", self.name),
        })
    }

    fn wait(
        &mut self,
        fixed_address: Option<SocketAddr>,
        lines: &Receiver<String>,
    ) -> Result<SocketAddr, Fault> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            signals::check("a server was being started")?;
            if let Some(death) = self.death() {
                return Err(Fault::failed(death));
            }
            match fixed_address {
                Some(address) if TcpStream::connect_timeout(&address, PATIENCE).is_ok() => {
                    return Ok(address);
                }
                Some(_) => thread::sleep(POLL_INTERVAL),
                None => {
                    if let Ok(line) = lines.recv_timeout(POLL_INTERVAL) {
                        return self.address_in(&line);
                    }
                }
            }
        }
        Err(failed!(
            "{} does not listen after {} s",
            self.name,
            PATIENCE.as_secs()
        ))
    }

    fn address_in(&self, line: &str) -> Result<SocketAddr, Fault> {
        let address = line.trim().strip_prefix(LISTENING).map(str::parse);
        match address {
            Some(Ok(address)) => Ok(address),
            _ => Err(failed!(
                "{} printed `{1}` instead of `{LISTENING}ADDRESS`",
                self.name,
                line.trim()
            )),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The kill fails if the server has already exited. It must be reaped in both cases.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Returns the program and arguments of a server that has no pages to serve, or of a custom command.
fn program(
    variant: &Variant,
    own: OsString,
    fixed_address: Option<SocketAddr>,
    pages: Option<&Pages>,
) -> Vec<OsString> {
    let own_with = |arguments: &[&str]| {
        let arguments = arguments.iter().map(OsString::from);
        [own.clone()].into_iter().chain(arguments).collect()
    };
    let serve = |backend: &str| {
        let line = format!("serve echo --addr 127.0.0.1:0 --threads 1 --backend {backend}");
        own_with(&line.split(' ').collect::<Vec<_>>())
    };
    match variant {
        Variant::External { .. } => Vec::new(),
        Variant::BuiltIn { name: "annulus" } => serve("uring"),
        Variant::BuiltIn {
            name: "annulus-epoll",
        } => serve("epoll"),
        Variant::BuiltIn { name } => own_with(&["bench", "net-server", name]),
        Variant::Command { argv, .. } => {
            let address =
                fixed_address.map_or(String::new(), |fixed_address| fixed_address.to_string());
            let port = fixed_address.map_or(String::new(), |address| address.port().to_string());
            let folder = pages.map_or(String::new(), |pages| pages.files().display().to_string());
            let argv = (argv.iter()).map(|argument| {
                argument
                    .replace("{addr}", &address)
                    .replace("{port}", &port)
                    .replace("{dir}", &folder)
            });
            argv.map(OsString::from).collect()
        }
    }
}

/// Returns the program and arguments of a built-in HTTP server.
fn page_server(
    name: &str,
    own: PathBuf,
    pages: &Pages,
    cell: AtCell,
    fixed_address: Option<SocketAddr>,
) -> std::io::Result<Vec<OsString>> {
    let arguments = |arguments: &[&str]| arguments.iter().map(OsString::from).collect::<Vec<_>>();
    let mut line = vec![OsString::from(own)];
    match (name, fixed_address) {
        ("nginx" | NGINX_PRELOAD, Some(address)) => {
            let nginx = find_program("nginx").ok_or(ErrorKind::NotFound)?;
            match name {
                NGINX_PRELOAD => line.extend(arguments(&["run", "--"])),
                _ => line.clear(),
            }
            line.extend([nginx.into(), "-p".into(), pages.folder().into()]);
            line.extend(["-c".into(), pages.nginx(address, cell.connections)?.into()]);
        }
        ("hyper", _) => {
            line.extend(arguments(&["bench", "net-server", "hyper", "--body"]));
            line.push(pages.file(cell.size).into());
        }
        (name, _) => {
            let backend = match name {
                "annulus-epoll" => "epoll",
                _ => "uring",
            };
            line.extend(arguments(&["serve", "http", "--addr", "127.0.0.1:0"]));
            line.extend(arguments(&["--threads", "1", "--backend", backend]));
            match cell.size {
                None => line.extend(arguments(&["--respond", "200"])),
                Some(_) => line.push(pages.files().into()),
            }
        }
    }
    Ok(line)
}

/// Returns a loopback address with a free port.
fn free_address() -> std::io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

/// Sends the first line as soon as it is complete. Discards the rest so that the writer never blocks on a full pipe.
fn first_line(from: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = channel();
    if let Some(from) = from {
        thread::spawn(move || {
            let (mut from, mut line) = (BufReader::new(from), String::new());
            if from.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
                let _ = sender.send(line);
            }
            let _ = std::io::copy(&mut from, &mut std::io::sink());
        });
    }
    receiver
}

/// Sends the first [`STDERR_BYTES_MAX`] bytes after the end of the stream. Discards the rest.
fn listen_to(from: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = channel();
    if let Some(mut from) = from {
        thread::spawn(move || {
            let mut stderr = Vec::new();
            let _ = from
                .by_ref()
                .take(STDERR_BYTES_MAX)
                .read_to_end(&mut stderr);
            let _ = std::io::copy(&mut from, &mut std::io::sink());
            let _ = sender.send(String::from_utf8_lossy(&stderr).into_owned());
        });
    }
    receiver
}
