//! Tests of `annulus release` and `annulus resume`. This process takes the role of the server.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use annulus::metrics::layout::switch::{self, SwitchCounter};
use annulus_testing::child_process::own_user;
use annulus_testing::skip::skip;

use crate::command::{CommandOutput, library, output};

fn switch_command(args: &[&str]) -> CommandOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_annulus"));
    command.args(args);
    output(command)
}

#[track_caller]
fn refuses(args: &[&str], code: i32, text: &str) {
    let output = switch_command(args);
    assert_eq!(output.code, Some(code), "{args:?}: {}", output.err);
    assert!(output.err.contains(text), "{args:?}: {}", output.err);
    assert_eq!(output.out, "");
}

/// Follows the requests, like the library, until `over` is set.
fn follow_requests(over: &AtomicBool) {
    let mut is_released = false;
    while !over.load(Ordering::Relaxed) {
        if switch::is_released() != is_released {
            is_released = !is_released;
            let (sets, connections, by) = match is_released {
                true => (SwitchCounter::SetsHandedBack, SwitchCounter::HandedBack, 1),
                false => (
                    SwitchCounter::SetsServedAgain,
                    SwitchCounter::ServedAgain,
                    -1,
                ),
            };
            switch::add(sets, 1);
            switch::add(connections, 300);
            switch::add(SwitchCounter::Released, by);
            switch::add(SwitchCounter::Serving, -by);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_process_is_released_and_resumed_and_the_counts_are_reported() {
    annulus::metrics::share().unwrap();
    switch::listen(false);
    switch::add(SwitchCounter::Serving, 1);
    let own = std::process::id().to_string();
    // No thread follows the request yet.
    let output = switch_command(&["release", &own, "--wait", "0.01"]);
    assert_eq!(output.code, Some(4), "{}", output.err);
    assert!(
        output.out.contains("1 epoll set remaining"),
        "{}",
        output.out
    );
    assert!(switch::is_released());
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| follow_requests(&over));
        let outcome = |word: &str| {
            let output = switch_command(&[word, &own, "--wait", "60"]);
            assert_eq!(
                (output.code, output.err.as_str()),
                (Some(0), ""),
                "{}",
                output.out
            );
            output
                .out
                .strip_prefix(&format!("process {own}: "))
                .unwrap()
                .to_owned()
        };
        let released = outcome("release");
        assert!(released.starts_with("was released before"), "{released}");
        for _ in 0..2 {
            let resumed = outcome("resume");
            assert_eq!(resumed, "1 epoll set with 300 connections served again\n");
            let resumed = outcome("resume");
            assert!(resumed.starts_with("was not released"), "{resumed}");
            let released = outcome("release");
            assert_eq!(
                released,
                "1 epoll set with 300 connections returned to the kernel\n"
            );
        }
        over.store(true, Ordering::Relaxed);
    });
    if !rustix::process::geteuid().is_root() {
        return skip("a request as another user needs root");
    }
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(env!("CARGO_BIN_EXE_annulus"));
    command
        .args(["resume", &own])
        .uid(own_user())
        .gid(own_user());
    if let Ok(output) = command.output() {
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("sudo"), "{error}");
        assert!(switch::is_released(), "the request was refused");
    }
}

#[test]
fn a_process_that_cannot_be_released_is_reported_with_the_reason() {
    refuses(&["release"], 2, "PID");
    refuses(&["release", "redis"], 2, "not a process ID");
    refuses(&["resume", "1", "--wait", "soon"], 2, "write a time");
    refuses(
        &["release", "2147483647"],
        1,
        "there is no process 2147483647",
    );
    let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = sleeper.id().to_string();
    refuses(&["release", &pid], 1, "does not run under `annulus run`");
    // A failure does not prevent the requests to other processes.
    let several = switch_command(&["release", "2147483647", &pid]);
    assert_eq!(several.err.lines().count(), 2, "{}", several.err);
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    let mut idle = Command::new("sh");
    idle.args(["-c", "echo; read line"])
        .env("LD_PRELOAD", library())
        .env("ANNULUS_MIN_CONNECTIONS", "1");
    idle.stdin(std::process::Stdio::piped());
    let mut idle = idle.stdout(std::process::Stdio::piped()).spawn().unwrap();
    // The library is loaded before the first output.
    let mut line = [0];
    std::io::Read::read_exact(idle.stdout.as_mut().unwrap(), &mut line).unwrap();
    let pid = idle.id().to_string();
    refuses(&["release", &pid], 1, "has no ring");
    drop(idle.stdin.take());
    idle.wait().unwrap();
}
