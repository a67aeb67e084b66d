//! `--for postgresql`, with limits and filters that prevent the start of the server.

use std::os::unix::process::CommandExt;
use std::process::Command;

use annulus::support::Support;
use annulus_testing::child_process::own_user;
use annulus_testing::skip::{root_or_skip, skip};

use crate::below::below;
use crate::command::{CommandOutput, command, output};
use crate::refused::{EPERM, filtered};

const ARGS: [&str; 5] = ["--for", "postgresql", "--max-connections", "100", "--quick"];

/// Returns the answer with its line breaks removed. A server of this machine is not considered.
fn answer(mut command: Command) -> CommandOutput {
    command.env("PATH", "/bin:/usr/bin").current_dir("/");
    let mut output = output(command);
    output.out = output.out.split_whitespace().collect::<Vec<_>>().join(" ");
    output
}

#[test]
fn with_enough_of_everything_the_server_starts() {
    if Support::detect().ring().is_err() {
        return skip("rings of PostgreSQL need io_uring");
    }
    // The limits are only lowered: this needs no capability.
    let answer = answer(below(&["prlimit", "--nofile=2000:2000"], &ARGS));
    if answer.out.contains("LimitMEMLOCK=") {
        return skip("this kernel charges rings to the limit of locked memory, which is too low");
    }
    assert_eq!(answer.code, Some(0), "{}{}", answer.out, answer.err);
    assert!(
        answer.out.contains("142 rings of 64 entries"),
        "{}",
        answer.out
    );
    assert!(
        answer.out.ends_with("io_method = io_uring will start"),
        "{}",
        answer.out
    );
}

#[test]
fn a_low_limit_of_descriptors_is_named_with_the_missing_number() {
    let answer = answer(below(&["prlimit", "--nofile=150:150"], &ARGS));
    assert_eq!(answer.code, Some(77), "{}{}", answer.out, answer.err);
    let expected = "→ 992 more: ulimit -n 1142; systemd: LimitNOFILE=1142;";
    assert!(answer.out.contains(expected), "{}", answer.out);
    assert!(answer.out.contains("will not start: "), "{}", answer.out);
}

#[test]
fn a_low_limit_of_locked_memory_is_named_on_kernels_that_charge_rings() {
    if !root_or_skip("another user's limit of locked memory") {
        return;
    }
    let limits = ["prlimit", "--memlock=65536:65536", "--nofile=2000:2000"];
    let mut limited = below(&limits, &ARGS);
    limited.uid(own_user()).gid(own_user());
    let answer = answer(limited);
    if answer.out.is_empty() {
        return skip(format_args!("cannot run as another user: {}", answer.err));
    }
    match answer.code {
        Some(0) => println!("this kernel does not charge rings: {}", answer.out),
        Some(77) => {
            for part in [
                "64 KiB for all processes of the user",
                "systemd: LimitMEMLOCK=",
                "will not start: ",
            ] {
                assert!(answer.out.contains(part), "{part}: {}", answer.out);
            }
        }
        code => panic!("{code:?}: {}", answer.out),
    }
}

#[test]
fn a_filter_is_named_with_its_remedy() {
    let answer = filtered(&[425, 426, 427], EPERM, || answer(command(&ARGS)));
    assert_eq!(answer.code, Some(77), "{}{}", answer.out, answer.err);
    let expected = "a seccomp filter refuses io_uring";
    assert!(answer.out.contains(expected), "{}", answer.out);
    assert!(
        answer.out.contains("→ allow io_uring_setup"),
        "{}",
        answer.out
    );
}

#[test]
fn another_server_needs_a_profile() {
    let output = output(command(&["--for", "redis-server"]));
    assert_eq!(output.code, Some(2));
    assert!(
        output.err.contains("annulus run --explain -- redis-server"),
        "{}",
        output.err
    );
}
