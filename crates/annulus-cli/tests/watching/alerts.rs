//! Tests of rules on the command line: raised alerts, refusals and exit codes.

use std::net::TcpListener;

use crate::server::{annulus, errors_and_code};

#[test]
fn a_benchmark_that_raises_an_alert_reports_it_and_exits_with_3() {
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
    let raised = |variant: &str| {
        let mut lines = err
            .lines()
            .filter(|line| line.starts_with("annulus: alert raised: read.p99 > 1ns: "));
        lines.any(|line| line.contains(&format!("; {variant}, depth 4, repeat 1, ")))
    };
    assert!(raised("annulus") && raised("base"), "{err}");
    assert!(!err.contains("p50 > 100s"), "{err}");
    assert!(
        err.contains("annulus: metrics at http://127.0.0.1:"),
        "{err}"
    );
}

#[test]
fn a_benchmark_without_alerts_reports_that_they_were_checked() {
    let mut command = annulus(&[
        "bench",
        "file",
        "--size",
        "4M",
        "--hot",
        "--variants",
        "annulus",
        "--depth",
        "1",
        "--repeat",
        "1",
        "--runtime",
        "0.1",
    ]);
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    command.args(["--alert", "error_rate > 1/s"]);
    let (err, code) = errors_and_code(&command.current_dir(dir.path()).output().unwrap());
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("annulus: alerts: 1 checked over "), "{err}");
    assert!(err.contains(" runs, none raised"), "{err}");
}

#[test]
fn wrong_rules_are_refused_before_the_run() {
    for (command, rule, text) in [
        (
            &["bench", "file"][..],
            "read.p9 > 1us",
            "  read.p9 > 1us\n       ^^",
        ),
        (
            &["bench", "file"],
            "write.p99 > 1us",
            "bench file only measures read_at here",
        ),
        (
            &["bench", "net", "echo"],
            "recv.p99 > 1us",
            "bench net only measures request here",
        ),
        (
            &["serve", "echo"],
            "in_flight > 1%",
            "operations in flight has no unit",
        ),
    ] {
        let output = annulus(command).args(["--alert", rule]).output().unwrap();
        let (err, code) = errors_and_code(&output);
        assert_eq!(code, Some(2), "{command:?}: {err}");
        assert!(err.contains(text), "{command:?} lacks {text:?}:\n{err}");
        assert!(output.stdout.is_empty(), "{command:?}");
    }
}

#[test]
fn a_metrics_address_in_use_is_refused() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    for command in [
        &["serve", "echo", "--addr", "127.0.0.1:0"][..],
        &["bench", "file", "--size", "4M"],
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
