//! Processes of nginx: a new configuration and a new program under load, and connections shared among workers.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tempfile::TempDir;

use super::{Config, Nginx, command, nginx};
use crate::http::Http;
use crate::library::library;
use crate::server::{How, free_port, until};

/// Clients that send requests until they are stopped, and accept no failure.
struct Load {
    stop: Arc<AtomicBool>,
    responses: Arc<AtomicU64>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(port: u16) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let responses = Arc::new(AtomicU64::new(0));
        let client = |kept: bool| {
            let (stop, responses) = (stop.clone(), responses.clone());
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    match kept {
                        true => request_on_one(port, &stop, &responses),
                        false => request_once(port, &responses),
                    }
                }
            })
        };
        let clients = (0..4).map(|n| client(n % 2 == 0)).collect();
        Load {
            stop,
            responses,
            clients,
        }
    }

    /// Waits until that many more responses have arrived.
    fn goes_on(&self, more: u64) {
        let now = self.responses.load(Ordering::Relaxed);
        until("requests are served", || {
            (self.responses.load(Ordering::Relaxed) >= now + more).then_some(())
        });
    }

    #[track_caller]
    fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.join().unwrap();
        }
    }
}

/// Sends a request on a new connection: a listener that stays open loses none of them.
fn request_once(port: u16, responses: &AtomicU64) {
    let mut client = Http::connect(port);
    let response = client.get_with("/file", "Connection: close\r\n");
    assert_eq!((response.status, response.body.len()), (200, 3000));
    client.assert_ended();
    responses.fetch_add(1, Ordering::Relaxed);
}

/// Sends requests on one connection until the server ends it, which it may do between two requests.
fn request_on_one(port: u16, stop: &AtomicBool, responses: &AtomicU64) {
    let mut client = Http::connect(port);
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        let response = client.send("/file", "").and_then(|()| client.read());
        match response {
            Ok(response) => assert_eq!((response.status, response.body.len()), (200, 3000)),
            Err(error) => {
                let ends = [
                    io::ErrorKind::UnexpectedEof,
                    io::ErrorKind::ConnectionReset,
                    io::ErrorKind::BrokenPipe,
                ];
                assert!(
                    sent > 0 && ends.contains(&error.kind()),
                    "{error} after {sent}"
                );
                return;
            }
        }
        sent += 1;
        responses.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_new_configuration_under_load_fails_no_request() {
    let Some(nginx) = nginx(Config {
        workers: 2,
        ..Config::default()
    }) else {
        return;
    };
    nginx.file("file", 3000);
    let load = Load::start(nginx.port());
    let mut workers = vec![nginx.client().get("/pid").text().to_owned()];
    for _ in 0..4 {
        load.goes_on(100);
        nginx.server.signal(Signal::HUP);
        let worker = until("a new worker responds", || {
            let worker = nginx.client().get("/pid").text().to_owned();
            (!workers.contains(&worker)).then_some(worker)
        });
        // Two old workers may respond alternately: all of a generation are old once the load has gone on.
        load.goes_on(50);
        workers.push(worker);
        workers.push(nginx.client().get("/pid").text().to_owned());
    }
    load.finish();
    nginx.finish_served();
}

/// An nginx daemon, which is not a child of this test.
struct Daemon {
    port: u16,
    folder: TempDir,
}

impl Daemon {
    fn start() -> Option<Daemon> {
        let (folder, port) = (TempDir::new().unwrap(), free_port());
        let config = Config {
            // nginx passes only the variables named here to a new program.
            main: "env LD_PRELOAD; env ANNULUS_STATS; env ANNULUS_LOG; \
                   env ANNULUS_MIN_CONNECTIONS;",
            ..Config::default()
        };
        config.write(folder.path(), port);
        fs::write(folder.path().join("file"), vec![b'x'; 3000]).unwrap();
        let mut command = command(folder.path())?;
        command.current_dir(folder.path()).stdin(Stdio::null());
        if let Some(library) = library() {
            command
                .env("LD_PRELOAD", library)
                .env("ANNULUS_STATS", "1")
                .env("ANNULUS_MIN_CONNECTIONS", "1")
                .env("ANNULUS_LOG", folder.path().join("annulus.log"));
        }
        let daemon = Daemon { port, folder };
        assert!(command.status().unwrap().success());
        until("nginx responds", || Http::open(port).ok().map(|_| ()));
        Some(daemon)
    }

    fn pid_file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// Returns the process ID in a file.
fn pid_in(file: &Path) -> Option<Pid> {
    Pid::from_raw(fs::read_to_string(file).ok()?.trim().parse().ok()?)
}

impl Drop for Daemon {
    fn drop(&mut self) {
        for name in ["nginx.pid", "nginx.pid.oldbin"] {
            if let Some(pid) = pid_in(&self.pid_file(name)) {
                _ = kill_process(pid, Signal::TERM);
            }
        }
    }
}

#[test]
fn a_new_program_takes_over_under_load_and_fails_no_request() {
    let Some(daemon) = Daemon::start() else {
        return;
    };
    let load = Load::start(daemon.port);
    let old = pid_in(&daemon.pid_file("nginx.pid")).unwrap();
    let old_worker = Http::connect(daemon.port).get("/pid").text().to_owned();
    load.goes_on(50);
    kill_process(old, Signal::USR2).unwrap();
    let new = until("the new program runs", || {
        pid_in(&daemon.pid_file("nginx.pid")).filter(|pid| *pid != old)
    });
    load.goes_on(50);
    kill_process(old, Signal::QUIT).unwrap();
    until("the old process has ended", || {
        test_kill_process(old).is_err().then_some(())
    });
    load.goes_on(50);
    assert_ne!(Http::connect(daemon.port).get("/pid").text(), old_worker);
    load.finish();
    kill_process(new, Signal::QUIT).unwrap();
    until("the new process has ended", || {
        test_kill_process(new).is_err().then_some(())
    });
    if library().is_some() {
        let log = fs::read_to_string(daemon.folder.path().join("annulus.log")).unwrap();
        let served = log.lines().filter(|line| line.contains("\"epoll_wait\":"));
        assert!(
            served.count() >= 2,
            "the old and the new worker were served:\n{log}"
        );
    }
}

/// Returns the number of connections, of `count`, that the less and the more loaded of two workers has.
fn shares(how: How, count: usize, listen: &str) -> Option<(usize, usize)> {
    let nginx = Nginx::start(
        how,
        Config {
            workers: 2,
            listen,
            ..Config::default()
        },
    )?;
    let port = nginx.port();
    // Until both workers run, one accepts all connections.
    until("both workers respond", || {
        let fetch_pid = || Http::connect(port).get("/pid").text().to_owned();
        let first = fetch_pid();
        (0..200).any(|_| fetch_pid() != first).then_some(())
    });
    let opened: Vec<_> = (0..4)
        .map(|_| {
            thread::spawn(move || {
                let open = |_| {
                    let mut client = Http::connect(port);
                    let worker = client.get("/pid").text().to_owned();
                    (client, worker)
                };
                (0..count / 4).map(open).collect::<Vec<_>>()
            })
        })
        .collect();
    let opened: Vec<_> = opened
        .into_iter()
        .flat_map(|thread| thread.join().unwrap())
        .collect();
    let mut workers: HashMap<&str, usize> = HashMap::new();
    for (_, worker) in &opened {
        *workers.entry(worker).or_default() += 1;
    }
    let least = workers
        .values()
        .copied()
        .min()
        .filter(|_| workers.len() == 2);
    let most = workers.values().copied().max();
    println!("{how:?} {listen}: {workers:?}");
    drop(opened);
    let stats = nginx.server.finish();
    if how == How::With {
        stats.assert_served();
    }
    Some((least.unwrap_or(0), most.unwrap_or(0)))
}

#[test]
fn two_workers_share_connections_about_as_evenly_as_without() {
    const CONNECTIONS: usize = 400;
    // The worker that has a processor at that moment accepts, so a share is random: the best of three runs counts.
    const RUNS: usize = 3;
    let best = |how| {
        let lesser = |_| Some(shares(how, CONNECTIONS, "")?.0);
        (0..RUNS).map(lesser).max().flatten()
    };
    let Some(without) = best(How::Without) else {
        return;
    };
    let with = best(How::With).unwrap();
    assert!(
        with * 3 + CONNECTIONS / 20 >= without,
        "the lesser share is {with} with, {without} without"
    );
}

#[test]
fn two_workers_with_a_listener_each_share_as_the_kernel_does() {
    let Some((least, most)) = shares(How::With, 400, "reuseport") else {
        return;
    };
    // A hash assigns each connection to a worker: a share below a quarter is practically impossible.
    assert!(least >= 100 && least + most == 400, "{least} and {most}");
}
