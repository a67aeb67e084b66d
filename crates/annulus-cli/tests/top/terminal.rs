//! Tests on a terminal, which `script` of util-linux provides.

use std::io::{Read, Write};
use std::num::NonZero;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use annulus_testing::skip::skip;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::server::Server;

/// The limit after which a test has failed.
const TIMEOUT: Duration = Duration::from_secs(60);
const ROWS: NonZero<u16> = NonZero::new(24).unwrap();
const COLUMNS: NonZero<u16> = NonZero::new(100).unwrap();

/// A shell on a terminal that runs `annulus top`, and prints the settings of the terminal before and after it.
struct Terminal {
    script: Child,
    keys: ChildStdin,
    screen: Arc<Mutex<vt100::Parser>>,
    reader: Option<JoinHandle<()>>,
    /// The file with the process ID of `annulus top`.
    pid_file: PathBuf,
    _dir: TempDir,
}

impl Terminal {
    fn start(pid: &str) -> Option<Terminal> {
        Terminal::of_size(pid, ROWS.get(), COLUMNS.get())
    }

    /// Starts on a terminal that claims this size. What it shows is read as if it had the usual one.
    fn of_size(pid: &str, rows: u16, columns: u16) -> Option<Terminal> {
        let annulus = env!("CARGO_BIN_EXE_annulus");
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let pid_file = dir.path().join("pid");
        let top = format!(
            "echo $$ >\"{}\"; exec \"{annulus}\" top {pid} --interval 0.1",
            pid_file.display()
        );
        let shell = format!(
            "stty rows {rows} cols {columns}; echo before $(stty -g); sh -c '{top}'; \
             echo code $?; echo after $(stty -g)"
        );
        let spawned = Command::new("script")
            .args(["-qec", &shell, "/dev/null"])
            .env("TERM", "xterm")
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut script = match spawned {
            Ok(script) => script,
            Err(error) => {
                skip(format_args!("no terminal: `script` of util-linux: {error}"));
                return None;
            }
        };
        let mut out = script.stdout.take().unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(ROWS, COLUMNS, 0)));
        let shown = screen.clone();
        let reader = thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = out.read(&mut bytes) {
                shown.lock().unwrap().process(&bytes[..count]);
            }
        });
        Some(Terminal {
            keys: script.stdin.take().unwrap(),
            script,
            screen,
            reader: Some(reader),
            pid_file,
            _dir: dir,
        })
    }

    fn shown(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    fn is_taken(&self) -> bool {
        self.screen.lock().unwrap().screen().alternate_screen()
    }

    #[track_caller]
    fn wait_for(&self, text: &str) {
        let until = Instant::now() + TIMEOUT;
        while !self.shown().contains(text) {
            let shown = self.shown();
            assert!(Instant::now() < until, "{text:?} is not shown:\n{shown}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn type_key(&mut self, key: &str) {
        self.keys.write_all(key.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// Waits for the end of the shell, and returns the text of the main screen. The terminal must be restored.
    fn end(mut self) -> String {
        self.wait_for("after ");
        drop(self.keys);
        self.script.wait().unwrap();
        self.reader.take().unwrap().join().unwrap();
        let parser = self.screen.lock().unwrap();
        let screen = parser.screen();
        assert!(!screen.alternate_screen() && !screen.hide_cursor());
        let shown = screen.contents();
        assert!(shown.contains("code 0"), "{shown}");
        let (_, settings) = shown.rsplit_once("after ").unwrap();
        let settings = settings.trim_end();
        assert!(!settings.is_empty());
        // If the first line is still on the screen.
        if let Some((_, before)) = shown.split_once("before ") {
            assert!(before.starts_with(&format!("{settings}\n")), "{shown}");
        }
        shown
    }
}

#[test]
fn the_terminal_is_restored_after_a_key_a_signal_and_the_end_of_the_process() {
    let mut server = Server::start();
    let Some(mut terminal) = Terminal::start(&server.pid()) else {
        return;
    };
    terminal.wait_for("\nrecv ");
    assert!(terminal.is_taken());
    terminal.type_key("?");
    terminal.wait_for("sort operations");
    terminal.type_key("?");
    terminal.wait_for("\nrecv ");
    terminal.type_key("q");
    let left = terminal.end();
    assert!(left.contains("before "), "{left}");
    assert!(!left.contains("OPERATION"), "the table remains:\n{left}");

    let Some(terminal) = Terminal::start(&server.pid()) else {
        return;
    };
    terminal.wait_for("\nrecv ");
    let top = std::fs::read_to_string(&terminal.pid_file).unwrap();
    let top = top.trim().parse().unwrap();
    kill_process(Pid::from_raw(top).unwrap(), Signal::TERM).unwrap();
    terminal.end();

    let Some(terminal) = Terminal::start(&server.pid()) else {
        return;
    };
    terminal.wait_for("\nrecv ");
    server.kill();
    let left = terminal.end();
    let message = format!(
        "process {} has ended; this was its last state",
        server.pid()
    );
    assert!(left.contains(&message), "{left}");
    assert!(left.contains("OPERATION"), "{left}");
}

#[test]
fn a_terminal_that_claims_the_largest_size_is_used_in_part() {
    let server = Server::start();
    for (rows, columns) in [(u16::MAX, u16::MAX), (1, u16::MAX), (u16::MAX, 1)] {
        let Some(mut terminal) = Terminal::of_size(&server.pid(), rows, columns) else {
            return;
        };
        let shown = if rows > 1 && columns > 1 {
            "\nrecv "
        } else {
            "q"
        };
        terminal.wait_for(shown);
        terminal.type_key("q");
        terminal.end();
    }
}
