//! Tests of refused rules and refused addresses.

use std::net::TcpListener;

use crate::server::{annulus, errors_and_code};

#[test]
fn wrong_rules_are_refused_before_the_server_starts() {
    for (rule, text) in [
        ("read.p9 > 1us", "  read.p9 > 1us\n       ^^"),
        ("in_flight > 1%", "operations in flight has no unit"),
    ] {
        let command = ["serve", "echo", "--alert", rule];
        let (err, code) = errors_and_code(&annulus(&command).output().unwrap());
        assert_eq!(code, Some(2), "{rule}: {err}");
        assert!(err.contains(text), "{rule} lacks {text:?}:\n{err}");
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
