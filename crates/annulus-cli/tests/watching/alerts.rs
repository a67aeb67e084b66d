//! Rules on the command line: raised, refused, and what the exit code is.

use std::net::TcpListener;

use crate::server::{annulus, errors_and_code};

#[test]
fn a_bench_in_which_an_alert_was_raised_ends_with_3_and_says_which() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut command = annulus(&[
        "bench",
        "file",
        "--size",
        "4M",
        "--buffered",
        "--depth",
        "4",
    ]);
    command.args([
        "--repeat",
        "1",
        "--runtime",
        "0.5",
        "--hot",
        "--variants",
        "annulus",
    ]);
    command.args([
        "--alert",
        "read.p99>1ns",
        "--alert",
        "p50 > 100s",
        "--metrics",
        "127.0.0.1:0",
    ]);
    let output = command.current_dir(dir.path()).output().unwrap();
    let (err, code) = errors_and_code(&output);
    assert_eq!(code, Some(3), "{err}");
    let raised = |who: &str| {
        let mut lines = err
            .lines()
            .filter(|line| line.starts_with("annulus: alert raised: read.p99 > 1ns: "));
        lines.any(|line| line.contains(&format!("; {who}, depth 4, repeat 1, ")))
    };
    assert!(raised("annulus") && raised("base"), "{err}");
    assert!(!err.contains("p50 > 100s"), "{err}");
    assert!(
        err.contains("annulus: metrics at http://127.0.0.1:"),
        "{err}"
    );
}

#[test]
fn silence_is_not_mistaken_for_a_check() {
    let mut command = annulus(&[
        "bench",
        "nop",
        "--depth",
        "1",
        "--repeat",
        "1",
        "--runtime",
        "0.01",
    ]);
    let (err, code) = errors_and_code(
        &command
            .args(["--alert", "error_rate > 1/s"])
            .output()
            .unwrap(),
    );
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("annulus: alerts: 1 checked over "), "{err}");
    assert!(err.contains(" runs, none raised"), "{err}");
}

#[test]
fn rules_that_are_none_or_make_no_sense_are_refused_before_anything_is_done() {
    for (command, rule, says) in [
        (
            &["bench", "file"][..],
            "read.p9 > 1us",
            "  read.p9 > 1us\n       ^^",
        ),
        (
            &["bench", "file"],
            "write.p99 > 1us",
            "bench file measures read_at here, and nothing else",
        ),
        (
            &["bench", "nop"],
            "p99 > 1us",
            "bench nop measures no latencies; `rate` it does",
        ),
        (
            &["bench", "net", "echo"],
            "recv.p99 > 1us",
            "bench net measures request here",
        ),
        (
            &["serve", "echo"],
            "in_flight > 1%",
            "a number without a unit",
        ),
    ] {
        let output = annulus(command).args(["--alert", rule]).output().unwrap();
        let (err, code) = errors_and_code(&output);
        assert_eq!(code, Some(2), "{command:?}: {err}");
        assert!(
            err.contains(says),
            "{command:?} should say {says:?}:\n{err}"
        );
        assert!(output.stdout.is_empty(), "{command:?}");
    }
}

#[test]
fn an_address_that_somebody_else_has_is_refused_in_words() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    for command in [
        &["serve", "echo", "--addr", "127.0.0.1:0"][..],
        &["bench", "nop"],
    ] {
        let output = annulus(command)
            .args(["--metrics", &addr])
            .output()
            .unwrap();
        let (err, code) = errors_and_code(&output);
        assert_eq!(code, Some(1), "{err}");
        assert!(
            err.contains(&format!("cannot serve metrics at {addr}")),
            "{err}"
        );
        assert!(err.contains("give --metrics another port"), "{err}");
        assert!(output.stdout.is_empty(), "{command:?}");
    }
}
