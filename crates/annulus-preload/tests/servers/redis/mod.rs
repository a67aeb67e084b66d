//! Redis, by topic.

mod clients;
mod durable;
mod flow;
mod idle;
mod replicas;
mod several;
mod switches;

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use tempfile::TempDir;

use crate::resp::{Client, Reply};
use crate::server::{How, Server, free_port, installed, until};

/// A running Redis and the folder of its files.
struct Redis {
    server: Server,
    folder: TempDir,
}

/// Starts Redis under the library with command line options, or skips.
fn redis(options: &str) -> Option<Redis> {
    Redis::start(How::With, options)
}

impl Redis {
    fn start(how: How, options: &str) -> Option<Redis> {
        Redis::start_with(how, options, &[])
    }

    /// Starts Redis with variables for the library.
    fn start_with(how: How, options: &str, variables: &[(&str, &str)]) -> Option<Redis> {
        let folder = TempDir::new().unwrap();
        let server = start_in(how, folder.path(), options, variables)?;
        Some(Redis { server, folder })
    }

    /// Starts Redis again in the same folder, after the first process has ended.
    #[track_caller]
    fn again(&mut self, options: &str) {
        self.server = start_in(How::With, self.folder.path(), options, &[]).unwrap();
    }

    #[track_caller]
    fn client(&self) -> Client {
        Client::connect(self.server.port)
    }

    fn port(&self) -> u16 {
        self.server.port
    }

    /// Ends Redis, and checks that it was served.
    #[track_caller]
    fn finish_served(self) {
        self.server.finish().assert_served();
    }
}

fn start_in(how: How, folder: &Path, options: &str, variables: &[(&str, &str)]) -> Option<Server> {
    let port = free_port();
    let mut command = Command::new(installed("redis-server")?);
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
    command.args(["--dir", folder.to_str().unwrap(), "--save", ""]);
    command.args([
        "--enable-debug-command",
        "yes",
        "--repl-diskless-sync-delay",
        "0",
    ]);
    command
        .args(options.split_whitespace())
        .envs(variables.iter().copied());
    let server = Server::start(how, folder, port, &mut command);
    let mut client = Client::connect(port);
    until("the data are loaded", || {
        (client.call("PING") == Reply::Status("PONG".to_owned())).then_some(())
    });
    Some(server)
}

/// Runs `redis-cli` with these arguments, and returns its output.
#[track_caller]
fn redis_cli(arguments: &[&str]) -> String {
    let output = Command::new("redis-cli")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "redis-cli {arguments:?}: {stdout:?}"
    );
    stdout
}

/// Gives a server time to read what was sent; no result depends on it.
fn moment() {
    sleep(Duration::from_millis(50));
}
