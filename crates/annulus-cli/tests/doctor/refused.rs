//! Filters and limits of our own making: the right one is named, with what to change.

use std::os::unix::process::CommandExt;
use std::thread;

use annulus_testing::skip::{root_or_skip, skip};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use serde_json::Value;

use crate::below::below;
use crate::command::{command, output, report, rules};

const SETUP: i64 = 425;
const ENTER: i64 = 426;
const REGISTER: i64 = 427;
const EPERM: u32 = 1;
const ENOSYS: u32 = 38;
/// A user who has nothing locked: limits are per user, and other tests are "nobody".
const USER: u32 = 54_321;

/// Runs `body` in a thread with a filter, which the processes that it starts inherit.
fn filtered<T: Send>(calls: &[i64], errno: u32, body: impl FnOnce() -> T + Send) -> T {
    let rules = calls.iter().map(|&call| (call, Vec::new())).collect();
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let answer = SeccompAction::Errno(errno);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, answer, arch).unwrap();
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
fn a_filter_that_refuses_is_named_and_distinguished_from_one_that_plays_an_old_kernel() {
    let all = [SETUP, ENTER, REGISTER];
    let of =
        |calls: &[i64], errno| filtered(calls, errno, || report(command(&["--quick", "--json"])));
    let refuses = of(&all, EPERM);
    assert_blocked_by(&refuses, "seccomp-refuses");
    assert_eq!(refuses["causes"], serde_json::json!(["seccomp-refuses"]));
    assert_eq!(refuses["environment"]["policy"]["seccomp"], "filter");
    assert_blocked_by(&of(&[SETUP], EPERM), "seccomp-refuses");
    // Old kernels have no io_uring to hide.
    if refuses["environment"]["kernel"]["version"][0].as_u64() >= Some(6) {
        assert_blocked_by(&of(&all, ENOSYS), "seccomp-says-missing");
    }
}

#[test]
fn a_filter_that_lets_a_ring_be_made_and_not_used_is_named() {
    let command = || command(&["--quick", "--json"]);
    if report(command())["exit_code"] == 77 {
        return skip("a filter that lets a ring be made needs io_uring");
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
fn a_refusal_is_reported_in_words_with_what_to_change() {
    let output = filtered(&[SETUP, ENTER, REGISTER], EPERM, || {
        output(command(&["--quick"]))
    });
    assert_eq!(output.code, Some(77), "{}", output.err);
    let text = output.out.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "refused a seccomp filter refuses io_uring: EPERM",
        "→ allow io_uring_setup, io_uring_enter and io_uring_register:",
        "so epoll and blocking threads instead of io_uring; everything works. Next: annulus doctor",
    ] {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
}

/// With a limit, as a user for whom it counts.
fn limited(limit: &str) -> Option<Value> {
    let mut command = below(&["prlimit", limit], &["--quick", "--json"]);
    command.uid(USER).gid(USER).current_dir("/");
    match command.output() {
        Ok(output) if output.status.code() == Some(126) || output.stdout.is_empty() => {
            let why = String::from_utf8_lossy(&output.stderr);
            skip(format_args!(
                "the command can't be run as another user: {why}"
            ));
            None
        }
        Ok(_) => Some(report(command)),
        Err(error) => {
            skip(format_args!(
                "prlimit can't be run as another user: {error}"
            ));
            None
        }
    }
}

#[test]
fn sixty_four_kib_of_locked_memory_are_too_little_and_it_is_reported() {
    if !root_or_skip("being a user with a limit of locked memory") {
        return;
    }
    let Some(report) = limited("--memlock=65536:65536") else {
        return;
    };
    assert_eq!(report["environment"]["limits"]["memlock_bytes"], 65536);
    assert_eq!(report["environment"]["limits"]["memlock_waived"], false);
    if report["verdict"] == "no-io-uring" {
        return println!(
            "no io_uring here, whatever the limit: {}",
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
fn few_descriptors_are_reported_as_few() {
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
