//! A child process that traces other processes: starts it, waits until it is attached, and ends it.
//!
//! The tracer ends when this process ends (see `net-child`). SIGINT makes it print its results and exit, within a time
//! limit.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The time limit for attaching and for ending. Attaching is slow on a busy machine or with thousands of threads.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Tracer {
    child: Child,
    /// The tracer's standard input. perf reads commands from it.
    input: Option<ChildStdin>,
    /// Lines of the tracer's standard error.
    lines: Receiver<String>,
    output: String,
}

impl Tracer {
    /// Starts the tracer with its standard output redirected to `output`, or discarded if that is `None`.
    pub(super) fn start(
        program: &str,
        args: &[String],
        output: Option<File>,
    ) -> Result<Tracer, String> {
        let failed = |error: std::io::Error| format!("{program}: {error}");
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command
            .args(["bench", "net-child", "--parent"])
            .arg(std::process::id().to_string())
            .args(["--", program])
            .args(args)
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(output.map_or_else(Stdio::null, Stdio::from))
            .stderr(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let (sender, lines) = channel();
        if let Some(stderr) = child.stderr.take() {
            // Drains the pipe until the child exits. A full pipe would block the tracer, and perhaps this process with
            // it.
            thread::spawn(move || {
                let mut from = BufReader::new(stderr);
                let mut line = Vec::new();
                while from.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                    // perf writes a zero byte after the newline of an acknowledgement.
                    line.retain(|&byte| byte != 0);
                    let text = String::from_utf8_lossy(&line).into_owned();
                    if sender.send(text).is_err() {
                        return;
                    }
                    line.clear();
                }
            });
        }
        Ok(Tracer {
            input: child.stdin.take(),
            child,
            lines,
            output: String::new(),
        })
    }

    /// Sends a command to the tracer.
    pub(super) fn send(&mut self, text: &str) -> Result<(), String> {
        let input = self.input.as_mut().ok_or("it reads no commands")?;
        // If the tracer has exited, its output explains the failure better than this error.
        let _ = input
            .write_all(text.as_bytes())
            .and_then(|()| input.flush());
        Ok(())
    }

    /// Waits for a line that matches. Fails with the tracer's message if it exits first, or after the time limit.
    pub(super) fn wait_for(&mut self, is_it: impl Fn(&str) -> bool) -> Result<(), String> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self
                .lines
                .recv_timeout(until.saturating_duration_since(Instant::now()))
            {
                Ok(line) if is_it(line.trim_end()) => return Ok(()),
                Ok(line) => self.output += &line,
                Err(RecvTimeoutError::Disconnected) => return Err(self.reason()),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("not attached after {} s", PATIENCE.as_secs()));
                }
            }
        }
    }

    /// Ends the tracer and returns its output, without the lines that [`Tracer::wait_for`] matched.
    pub(super) fn end(mut self) -> Result<String, String> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // The tracer may already have exited together with the traced processes.
            let _ = kill_process(pid, Signal::INT);
        }
        let until = Instant::now() + PATIENCE;
        loop {
            match self
                .lines
                .recv_timeout(until.saturating_duration_since(Instant::now()))
            {
                Ok(line) => self.output += &line,
                Err(RecvTimeoutError::Disconnected) => return Ok(std::mem::take(&mut self.output)),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("did not end within {} s", PATIENCE.as_secs()));
                }
            }
        }
    }

    /// Returns the first line of output that is not empty or a bare `Error:` heading.
    fn reason(&self) -> String {
        let mut lines = self.output.lines().map(str::trim);
        let line = lines.find(|line| !line.is_empty() && *line != "Error:");
        line.unwrap_or("it ended without a message").to_string()
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        // The kill fails if the tracer has already exited. It must be reaped in both cases.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
