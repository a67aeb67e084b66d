//! Tests of refusals and their exit codes.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use annulus_testing::child_process::own_user;
use annulus_testing::skip;

use crate::server::Server;
use crate::{code_and_error, top};

#[track_caller]
fn refuses(args: &[&str], code: i32, text: &str) {
    let output = top(args).output().unwrap();
    let (exit, error) = code_and_error(&output);
    assert_eq!(exit, Some(code), "{args:?}: {error}");
    assert!(error.contains(text), "{args:?} lacks {text:?}: {error}");
    assert!(
        output.stdout.is_empty(),
        "{args:?}: standard output is empty"
    );
}

#[test]
fn a_wrong_process_id_or_interval_is_refused() {
    refuses(&["1", "--alert", "p99 > 1"], 2, "--alert");
    refuses(&["echo"], 2, "not a process ID");
    refuses(&["0"], 2, "not a process ID");
    refuses(
        &["1", "--interval", "0"],
        2,
        "the interval must be from 0.1 s to 3600 s",
    );
    refuses(
        &["1", "--interval", "soon"],
        2,
        "the interval must be from 0.1 s to 3600 s",
    );
}

#[test]
fn a_process_that_is_missing_has_ended_or_shares_nothing_is_reported() {
    // An ID beyond the limit of the kernel.
    refuses(&["2147483647"], 1, "there is no process 2147483647");
    let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = sleeper.id().to_string();
    refuses(&[&pid, "--once"], 1, "annulus::metrics::share()");
    sleeper.kill().unwrap();
    // The parent has not waited for it, but the process has ended.
    let gone = top(&[&pid, "--once"]).output().unwrap();
    let (code, error) = code_and_error(&gone);
    assert_eq!(code, Some(1), "{error}");
    sleeper.wait().unwrap();
    refuses(&[&pid], 1, &format!("there is no process {pid}"));
}

#[test]
fn of_a_process_without_rings_the_child_processes_that_have_some_are_named() {
    // A master process, as that of nginx. It ends its worker when its standard input ends.
    let script = "\"$0\" \"$@\" & worker=$!; read -r _; kill $worker; wait";
    let mut master = Command::new("sh");
    master
        .args(["-c", script, env!("CARGO_BIN_EXE_annulus")])
        .stdin(Stdio::piped());
    let mut server = Server::start_with(master);
    let output = top(&[&server.pid(), "--once"]).output().unwrap();
    server.close_input();
    let (code, error) = code_and_error(&output);
    assert_eq!(code, Some(1), "{error}");
    let (_, named) = error.split_once("but its child processes do: ").unwrap();
    let (worker, command) = named.split_once(" (").unwrap();
    assert!(
        command.contains("annulus serve echo --addr 127.0.0.1:0"),
        "{error}"
    );
    assert!(
        error.trim_end().ends_with(&format!("annulus top {worker}")),
        "{error}"
    );
}

#[test]
fn a_process_of_another_user_needs_sudo() {
    let server = Server::start();
    let mut command = top(&[&server.pid(), "--once"]);
    command.stdin(Stdio::null());
    if rustix::process::geteuid().is_root() {
        command.uid(own_user()).gid(own_user());
    } else {
        // A process of root, which other users may not inspect.
        command = top(&["1", "--once"]);
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            return skip::skip(format_args!(
                "cannot run the command as another user: {error}"
            ));
        }
    };
    let (code, error) = code_and_error(&output);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("sudo"), "{error}");
}
