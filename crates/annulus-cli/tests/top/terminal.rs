//! On a terminal: `script` of util-linux makes one.

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

/// A test that takes longer hangs. It decides nothing else.
const PATIENCE: Duration = Duration::from_secs(60);
const ROWS: NonZero<u16> = NonZero::new(24).unwrap();
const COLUMNS: NonZero<u16> = NonZero::new(100).unwrap();

/// A shell on a terminal that runs `annulus top`, and says before and after it how the terminal is set.
struct Terminal {
    script: Child,
    keys: ChildStdin,
    screen: Arc<Mutex<vt100::Parser>>,
    reader: Option<JoinHandle<()>>,
    /// The file in which `annulus top` has its number.
    number: PathBuf,
    _dir: TempDir,
}

impl Terminal {
    fn start(pid: &str) -> Option<Terminal> {
        let annulus = env!("CARGO_BIN_EXE_annulus");
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let number = dir.path().join("number");
        let top = format!(
            "echo $$ >\"{}\"; exec \"{annulus}\" top {pid} --interval 0.1",
            number.display()
        );
        let shell = format!(
            "stty rows {ROWS} cols {COLUMNS}; echo before $(stty -g); sh -c '{top}'; \
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
            number,
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
        let until = Instant::now() + PATIENCE;
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

    /// What was left on the ordinary screen, once the shell has ended; the terminal must be as it was.
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
        // Where the first line has not been moved off the screen.
        if let Some((_, before)) = shown.split_once("before ") {
            assert!(before.starts_with(&format!("{settings}\n")), "{shown}");
        }
        shown
    }
}

#[test]
fn it_draws_on_a_terminal_and_puts_it_back_by_a_key_by_a_signal_and_when_the_process_ends() {
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
    assert!(
        !left.contains("OPERATION"),
        "nothing is left behind:\n{left}"
    );

    let Some(terminal) = Terminal::start(&server.pid()) else {
        return;
    };
    terminal.wait_for("\nrecv ");
    let top = std::fs::read_to_string(&terminal.number).unwrap();
    let top = top.trim().parse().unwrap();
    kill_process(Pid::from_raw(top).unwrap(), Signal::TERM).unwrap();
    terminal.end();

    let Some(terminal) = Terminal::start(&server.pid()) else {
        return;
    };
    terminal.wait_for("\nrecv ");
    server.kill();
    let left = terminal.end();
    let says = format!(
        "process {} has ended; that was its last state",
        server.pid()
    );
    assert!(left.contains(&says), "{left}");
    assert!(left.contains("OPERATION"), "{left}");
}
