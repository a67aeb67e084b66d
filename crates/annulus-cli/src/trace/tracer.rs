//! A program that looks at other processes: started, known to be attached, ended.
//!
//! It dies with us (`net-child` sees to that), is ended by SIGINT, which makes it tell what it saw, and is given a
//! limited time for that.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A process with thousands of threads takes a while to attach to; and a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Tracer {
    child: Child,
    /// Commands for it; perf reads them.
    input: Option<ChildStdin>,
    /// What it says on standard error, line by line.
    lines: Receiver<String>,
    output: String,
}

impl Tracer {
    /// Starts it; what it writes to its standard output goes to `output`.
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
            // Ends with the child; a full pipe would stop it, and with it perhaps us.
            thread::spawn(move || {
                let mut from = BufReader::new(stderr);
                let mut line = Vec::new();
                while from.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                    // perf ends its acknowledgements with a zero byte behind the line's end.
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

    /// Gives it a command.
    pub(super) fn send(&mut self, text: &str) -> Result<(), String> {
        let input = self.input.as_mut().ok_or("it reads no commands")?;
        // If it has ended already, what it said on the way is the better reason.
        let _ = input
            .write_all(text.as_bytes())
            .and_then(|()| input.flush());
        Ok(())
    }

    /// Waits until it says a line like that; else what it said instead.
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

    /// Ends it; all it said that nobody waited for.
    pub(super) fn end(mut self) -> Result<String, String> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // It may have ended by itself, with the processes it looked at.
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

    /// The first line with something in it that is no frame around a message.
    fn reason(&self) -> String {
        let mut lines = self.output.lines().map(str::trim);
        let line = lines.find(|line| !line.is_empty() && *line != "Error:");
        line.unwrap_or("it ended without a word").to_string()
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        // One that has ended cannot be killed; waiting is right for both.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
