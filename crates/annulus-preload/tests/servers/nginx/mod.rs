//! nginx, by topic.

mod life;
mod responses;
mod tls;
mod upstream;

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::http::Http;
use crate::server::{How, Server, free_port, installed};

/// A running nginx and the folder of its files.
struct Nginx {
    server: Server,
    folder: TempDir,
}

/// The parts of a configuration that differ between tests.
struct Config<'a> {
    workers: usize,
    /// Directives of `main`, `http` and `server`.
    main: &'a str,
    http: &'a str,
    server: &'a str,
    /// Parameters of `listen`.
    listen: &'a str,
}

impl Default for Config<'_> {
    fn default() -> Self {
        Config {
            workers: 1,
            main: "daemon off;",
            http: "",
            server: "",
            listen: "",
        }
    }
}

impl Config<'_> {
    /// Writes the configuration into `folder`, which holds all files of this nginx.
    fn write(&self, folder: &Path, port: u16) {
        let Config {
            workers,
            main,
            http,
            server,
            listen,
        } = self;
        let root = fs::metadata("/proc/self")
            .is_ok_and(|of| std::os::unix::fs::MetadataExt::uid(&of) == 0);
        // The workers of a server that root starts run as another user, and could not read this folder.
        let user = if root { "user root;" } else { "" };
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|kind| format!("{kind}_temp_path {kind};\n"))
            .collect();
        let text = format!(
            "{main}\n{user}\nworker_processes {workers};\npid nginx.pid;\nerror_log error.log;\n\
             events {{ worker_connections 1024; }}\n\
             http {{\naccess_log off;\n{temporary}{http}\n\
             server {{\nlisten 127.0.0.1:{port} {listen};\nroot {};\n{server}\n\
             location = /pid {{ return 200 $pid; }}\n}}\n}}\n",
            folder.display()
        );
        fs::write(folder.join("nginx.conf"), text).unwrap();
    }
}

/// Returns the command that starts nginx with a configuration.
fn command(folder: &Path) -> Option<Command> {
    let mut command = Command::new(installed("nginx")?);
    command
        .arg("-p")
        .arg(folder)
        .arg("-c")
        .arg(folder.join("nginx.conf"));
    command.args(["-e", "error.log"]);
    Some(command)
}

impl Nginx {
    fn start(how: How, config: Config<'_>) -> Option<Nginx> {
        Nginx::start_in(how, config, TempDir::new().unwrap())
    }

    /// Starts nginx in a folder that already contains files.
    fn start_in(how: How, config: Config<'_>, folder: TempDir) -> Option<Nginx> {
        let port = free_port();
        config.write(folder.path(), port);
        let server = Server::start(how, folder.path(), port, &mut command(folder.path())?);
        Some(Nginx { server, folder })
    }

    fn port(&self) -> u16 {
        self.server.port
    }

    #[track_caller]
    fn client(&self) -> Http {
        Http::connect(self.port())
    }

    /// Creates a file of random bytes that nginx serves. Returns the bytes.
    fn file(&self, name: &str, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        fastrand::Rng::with_seed(length as u64).fill(&mut bytes);
        fs::write(self.folder.path().join(name), &bytes).unwrap();
        bytes
    }

    /// Ends nginx, and checks that it was served and logged no serious error.
    #[track_caller]
    fn finish_served(self) {
        let Nginx { server, folder } = self;
        server.finish().assert_served();
        let log = fs::read_to_string(folder.path().join("error.log")).unwrap();
        assert!(!log.contains("[alert]") && !log.contains("[crit]"), "{log}");
    }
}

/// Starts nginx under the library, or skips.
fn nginx(config: Config<'_>) -> Option<Nginx> {
    Nginx::start(How::With, config)
}
