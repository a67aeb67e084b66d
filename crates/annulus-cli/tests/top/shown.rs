//! Tests of the output for a running server.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use annulus_testing::schema;
use serde_json::Value;

use crate::server::Server;
use crate::{code_and_error, top};

fn schema() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/schema/top.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn once_with_json_prints_rates_and_latencies_by_the_schema() {
    let server = Server::start();
    let args = [
        &server.pid(),
        "--once",
        "--json",
        "--interval",
        "0.3",
        "--alert",
        "rate > 0/s",
    ];
    let output = top(&args).output().unwrap();
    let (code, error) = code_and_error(&output);
    assert_eq!((code, error.as_str()), (Some(3), ""), "the alert is raised");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    schema::assert_matches(&schema(), &report);
    // The schema rejects a wrong type.
    let mut wrong = report.clone();
    wrong["total"]["in_flight"] = "many".into();
    assert_eq!(schema::mismatches(&schema(), &wrong).len(), 1);

    assert_eq!(report["alerts"][0]["raised"], true);
    assert_eq!(report["process"]["pid"].to_string(), server.pid());
    let command = report["process"]["command"].as_str().unwrap();
    assert!(
        command.contains("serve echo --addr 127.0.0.1:0"),
        "{command}"
    );
    let core = (report["sources"].as_array().unwrap().iter())
        .find(|source| source["kind"] == "core")
        .unwrap();
    assert!(!core["backend"].as_str().unwrap().is_empty());
    assert!(report["total"]["per_second"]["completed"].as_f64().unwrap() > 0.0);
    let operations = report["total"]["operations"].as_array().unwrap();
    let recv = (operations.iter())
        .find(|operation| operation["name"] == "recv")
        .unwrap_or_else(|| panic!("no operation recv: {operations:?}"));
    assert!(recv["completed_per_second"].as_f64().unwrap() > 0.0);
    let measured = operations.iter().any(|operation| {
        operation["latency"]["samples"]
            .as_u64()
            .is_some_and(|samples| samples > 0)
    });
    assert!(
        measured,
        "latencies are recorded while a reader is attached: {operations:?}"
    );
}

#[test]
fn json_lines_are_printed_until_the_process_ends() {
    let mut server = Server::start();
    let mut child = top(&[&server.pid(), "--json", "--interval", "0.1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut at_ns = 0;
    for _ in 0..2 {
        let report: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert!(
            report["at_ns"].as_u64().unwrap() > at_ns,
            "the clock advances"
        );
        at_ns = report["at_ns"].as_u64().unwrap();
    }
    server.kill();
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert!(
        rest.iter()
            .all(|line| serde_json::from_str::<Value>(line).is_ok()),
        "{rest:?}"
    );
    let mut error = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut error)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{error}");
    assert_eq!(
        error,
        format!("annulus: process {} has ended\n", server.pid())
    );
}

#[test]
fn without_a_terminal_one_interval_is_printed_with_a_message() {
    let server = Server::start();
    let output = top(&[&server.pid(), "--interval", "0.1"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (code, error) = code_and_error(&output);
    assert_eq!(code, Some(0), "{error}");
    assert!(
        error.contains("one interval is shown, as with --once"),
        "{error}"
    );
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with(&format!("process {}  up ", server.pid())),
        "{text}"
    );
    assert!(text.contains("\ncore 1.0 "), "{text}");
    assert!(text.contains("\nrecv "), "{text}");
    assert!(!text.contains('\u{1b}'), "the text has no escape sequences");
}

#[test]
fn without_a_process_id_the_processes_are_listed() {
    let (one, other) = (Server::start(), Server::start());
    let output = top(&["--interval", "0.1"]).output().unwrap();
    let (code, error) = code_and_error(&output);
    assert_eq!(code, Some(0), "{error}");
    let text = String::from_utf8(output.stdout).unwrap();
    for pid in [one.pid(), other.pid()] {
        let row = |line: &str| line.split_whitespace().next() == Some(&pid);
        assert!(text.lines().any(row), "{text}");
    }
    assert!(text.contains("name one: annulus top "), "{text}");
    // With --json, the list is an error.
    let output = top(&["--json", "--interval", "0.1"]).output().unwrap();
    let (code, error) = code_and_error(&output);
    assert_eq!(code, Some(2), "{error}");
    assert!(output.stdout.is_empty());
}
