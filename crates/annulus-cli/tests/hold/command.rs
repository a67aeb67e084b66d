//! Runs the command in a folder, and tests in a mount namespace.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use annulus_testing::skip::skip;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// The limit after which a test hangs.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The variable that names the test of a child process in a mount namespace.
const ROLE: &str = "ANNULUS_TEST_MOUNTS";

/// The exit code and the output of the command.
pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl CommandOutput {
    #[track_caller]
    pub(crate) fn ends(&self, code: i32, text: &str) {
        let both = format!("{}{}", self.out, self.err);
        assert_eq!(self.code, Some(code), "{both}");
        assert!(both.contains(text), "expected {text:?} in:\n{both}");
        assert!(!both.contains("panicked"), "{both}");
    }
}

pub(crate) fn folder() -> TempDir {
    // Next to the build, which is on a disk; the system's temporary folder may be in memory.
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

pub(crate) fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

pub(crate) fn command(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_annulus"));
    command.args(args).current_dir(folder);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

pub(crate) fn run(folder: &Path, args: &[&str]) -> CommandOutput {
    result_of(command(folder, args).output().unwrap())
}

pub(crate) fn result_of(output: Output) -> CommandOutput {
    CommandOutput {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A running command. Dropping it kills it.
pub(crate) struct Running(Option<Child>);

impl Running {
    pub(crate) fn start(mut command: Command) -> Running {
        Running(Some(command.spawn().unwrap()))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.as_ref().unwrap().id()
    }

    pub(crate) fn send(&self, signal: Signal) {
        let pid = Pid::from_child(self.0.as_ref().unwrap());
        kill_process(pid, signal).unwrap();
    }

    /// Returns whether it has a thread with this name, or with this name and more words.
    pub(crate) fn has_thread(&self, name: &str) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        threads.flatten().any(|thread| {
            let own = fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
            // A prefix is not enough: before the exec, a child has the name of a thread of this process.
            own.trim_end() == name || own.starts_with(&format!("{name} "))
        })
    }

    /// Waits until it prints this text. Later output is discarded.
    pub(crate) fn wait_for_output(&mut self, text: &'static str) {
        let out = self.0.as_mut().unwrap().stdout.take().unwrap();
        let (sender, receiver) = channel();
        thread::spawn(move || {
            let mut lines = BufReader::new(out).lines();
            let _ = sender.send(lines.any(|line| line.unwrap().contains(text)));
        });
        match receiver.recv_timeout(PATIENCE) {
            Ok(appeared) => assert!(appeared, "it ended without printing {text:?}"),
            Err(_) => panic!("it does not print {text:?}"),
        }
    }

    pub(crate) fn end(mut self) -> CommandOutput {
        let mut child = self.0.take().unwrap();
        until("the command ends", || child.try_wait().unwrap().is_some());
        result_of(child.wait_with_output().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[track_caller]
pub(crate) fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_true() {
        assert!(Instant::now() < end, "timed out: {what}");
        thread::sleep(POLL_INTERVAL);
    }
}

pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0)
}

/// Runs `body` in a process with its own mount namespace, so that its mounts end with it.
pub(crate) fn with_own_mounts(test: &str, body: impl FnOnce(&Path)) {
    if std::env::var(ROLE).as_deref() == Ok(test) {
        return body(folder().path());
    }
    if !is_root() {
        return skip("mounting needs root");
    }
    let unshared = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--"])
        .arg(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, test)
        .stdin(Stdio::null())
        .output();
    let output = result_of(unshared.unwrap());
    assert!(
        output.code == Some(0) && output.out.contains("1 passed"),
        "{:?}: {}{}",
        output.code,
        output.out,
        output.err
    );
    println!("{}", output.out);
}

/// Mounts, or prints the reason and returns `false`.
pub(crate) fn mount(args: &[&str]) -> bool {
    let output = result_of(Command::new("mount").args(args).output().unwrap());
    if output.code != Some(0) {
        skip(format_args!("mount {args:?}: {}", output.err.trim()));
    }
    output.code == Some(0)
}
