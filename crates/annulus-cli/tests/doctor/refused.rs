//! Filters and limits that a test sets up: the report names the right one, and the remedy.

use std::os::unix::process::CommandExt;
use std::thread;

use annulus_testing::child_process::own_user;
use annulus_testing::skip::{root_or_skip, skip};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use serde_json::Value;

use crate::below::below;
use crate::command::{command, output, report, rules};

const SETUP: i64 = 425;
const ENTER: i64 = 426;
const REGISTER: i64 = 427;
pub(crate) const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

/// Runs `body` on a thread with a seccomp filter, which its child processes inherit.
pub(crate) fn filtered<T: Send>(calls: &[i64], errno: u32, body: impl FnOnce() -> T + Send) -> T {
    with_action(calls, SeccompAction::Errno(errno), body)
}

fn with_action<T: Send>(
    calls: &[i64],
    action: SeccompAction,
    body: impl FnOnce() -> T + Send,
) -> T {
    let rules = calls.iter().map(|&call| (call, Vec::new())).collect();
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, arch).unwrap();
    let filter = BpfProgram::try_from(filter).unwrap();
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            seccompiler::apply_filter(&filter).unwrap();
            body()
        });
        thread.join().unwrap()
    })
}

#[track_caller]
fn assert_blocked_by(report: &Value, rule: &str) {
    assert_eq!(rules(report)[0], rule, "{}", report["advice"]);
    assert_eq!(report["verdict"], "no-io-uring");
    assert_eq!(report["exit_code"], 77);
    let first = &report["advice"][0];
    assert_eq!(first["severity"], "blocks");
    let next = first["next"].as_str().unwrap();
    assert!(
        next.contains("io_uring_setup, io_uring_enter and io_uring_register"),
        "{next}"
    );
}

#[test]
fn a_filter_that_refuses_is_distinguished_from_one_that_imitates_an_old_kernel() {
    let all = [SETUP, ENTER, REGISTER];
    let of =
        |calls: &[i64], errno| filtered(calls, errno, || report(command(&["--quick", "--json"])));
    let refuses = of(&all, EPERM);
    assert_blocked_by(&refuses, "seccomp-refuses");
    assert_eq!(refuses["causes"], serde_json::json!(["seccomp-refuses"]));
    assert_eq!(refuses["environment"]["policy"]["seccomp"], "filter");
    assert_blocked_by(&of(&[SETUP], EPERM), "seccomp-refuses");
    // Old kernels have no io_uring that a filter could hide.
    if refuses["environment"]["kernel"]["version"][0].as_u64() >= Some(6) {
        assert_blocked_by(&of(&all, ENOSYS), "seccomp-says-missing");
    }
}

#[test]
fn a_filter_that_kills_is_reported_and_ends_only_a_child() {
    for calls in [&[SETUP, ENTER, REGISTER][..], &[ENTER]] {
        let killed = with_action(calls, SeccompAction::KillProcess, || {
            report(command(&["--quick", "--json"]))
        });
        assert_blocked_by(&killed, "seccomp-kills");
        assert_eq!(killed["causes"], serde_json::json!(["seccomp-kills"]));
    }
}

#[test]
fn a_filter_that_allows_only_the_set_up_is_reported() {
    let command = || command(&["--quick", "--json"]);
    if report(command())["exit_code"] == 77 {
        return skip("a filter that allows the set-up needs io_uring");
    }
    let part = filtered(&[ENTER, REGISTER], EPERM, || report(command()));
    assert_blocked_by(&part, "seccomp-refuses-part");
    let what = part["advice"][0]["what"].as_str().unwrap();
    assert!(
        what.contains("io_uring_enter and io_uring_register"),
        "{what}"
    );
}

#[test]
fn the_text_reports_a_refusal_with_its_remedy() {
    let output = filtered(&[SETUP, ENTER, REGISTER], EPERM, || {
        output(command(&["--quick"]))
    });
    assert_eq!(output.code, Some(77), "{}", output.err);
    let text = output.out.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "refused a seccomp filter refuses io_uring: the calls fail with EPERM",
        "→ allow io_uring_setup, io_uring_enter and io_uring_register:",
        "verdict no io_uring; Annulus uses epoll and blocking threads instead. Next: annulus doctor",
    ] {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
}

/// Returns the report with a limit, as a user to whom it applies.
fn limited(limit: &str) -> Option<Value> {
    let mut command = below(&["prlimit", limit], &["--quick", "--json"]);
    command.uid(own_user()).gid(own_user()).current_dir("/");
    match command.output() {
        Ok(output) if output.status.code() == Some(126) || output.stdout.is_empty() => {
            let why = String::from_utf8_lossy(&output.stderr);
            skip(format_args!(
                "cannot run the command as another user: {why}"
            ));
            None
        }
        Ok(_) => Some(report(command)),
        Err(error) => {
            skip(format_args!("cannot run prlimit as another user: {error}"));
            None
        }
    }
}

#[test]
fn a_limit_of_64_kib_of_locked_memory_is_reported() {
    if !root_or_skip("running as a user with a limit of locked memory") {
        return;
    }
    let Some(report) = limited("--memlock=65536:65536") else {
        return;
    };
    assert_eq!(report["environment"]["limits"]["memlock_bytes"], 65536);
    assert_eq!(report["environment"]["limits"]["memlock_waived"], false);
    if report["verdict"] == "no-io-uring" {
        return println!(
            "no io_uring here, regardless of the limit: {}",
            report["advice"][0]
        );
    }
    assert!(
        rules(&report).contains(&"memlock-short"),
        "{}",
        report["advice"]
    );
    assert_eq!(report["verdict"], "less");
    assert_eq!(report["exit_code"], 1);
}

#[test]
fn a_low_limit_of_descriptors_is_reported() {
    let report = report(below(
        &["prlimit", "--nofile=40:40"],
        &["--quick", "--json"],
    ));
    assert_eq!(report["environment"]["limits"]["descriptors"], 40);
    if report["verdict"] == "no-io-uring" {
        return println!("no io_uring here: {}", report["advice"][0]);
    }
    assert!(
        rules(&report).contains(&"descriptors-short"),
        "{}",
        report["advice"]
    );
    assert_eq!(report["exit_code"], 1);
}
