//! Loads on a server that is already running.

use std::thread;
use std::time::Duration;

use annulus_testing::schema;
use serde_json::Value;

use super::{CommandOutput, net, servers};

fn run(protocol: &str, addr: &str, runtime: &str, more: &[&str]) -> CommandOutput {
    let short = [
        "--runtime",
        runtime,
        "--warmup",
        "0.02",
        "--connections",
        "5",
    ];
    net(&[&[protocol, addr], &short[..], more].concat())
}

/// Runs the command, checks its exit code and the schema, and returns the report. Returns `None` without a ring.
fn report(protocol: &str, addr: &str, more: &[&str], code: i32) -> Option<Value> {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let json = dir.path().join("net.json");
    let more = [more, &["--json", json.to_str().unwrap(), "--replace"]].concat();
    let mut output = run(protocol, addr, "0.2", &more);
    // On a busy machine the server may not have been asked often enough to fail.
    for runtime in ["2", "20"] {
        if code != 0 && output.code == Some(0) {
            output = run(protocol, addr, runtime, &more);
        }
    }
    if output.is_skipped() {
        return None;
    }
    assert_eq!(output.code, Some(code), "{}", output.both());
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let schema = concat!(env!("CARGO_MANIFEST_DIR"), "/schema/bench-net.json");
    let schema = serde_json::from_slice(&std::fs::read(schema).unwrap()).unwrap();
    schema::assert_matches(&schema, &report);
    Some(report)
}

#[test]
fn a_correct_server_is_measured_and_all_counts_agree() {
    let addr = servers::echo();
    let pid = std::process::id().to_string();
    let Some(report) = report("echo", &addr, &["--pid", &pid, "--pipeline", "3"], 0) else {
        return;
    };
    let sample = &report["runs"][0]["sample"];
    let totals = &sample["totals"];
    assert_eq!(totals["requests"], totals["responses"]);
    assert_eq!(totals["connections_open"], 5);
    let responses = sample["responses"].as_u64().unwrap();
    assert!(responses > 0);
    let per_second = sample["requests_per_second"].as_f64().unwrap();
    let seconds = sample["measured_seconds"].as_f64().unwrap();
    assert!((per_second * seconds - responses as f64).abs() < 1.0);
    assert!(sample["server"]["cpu_us_per_request"].as_f64().unwrap() > 0.0);
    // Either a number or the reason why there is none.
    let server = &sample["server"];
    assert_ne!(
        server["syscalls_per_request"].is_null(),
        server["syscalls_note"].is_null()
    );
    let latency = &sample["latency_uncorrected"];
    let us = |name: &str| latency[name].as_f64().unwrap();
    assert!(us("p50_us") <= us("p99_us") && us("p99_us") <= us("max_us"));
}

#[test]
fn without_a_pid_the_output_explains_that_the_servers_costs_are_missing() {
    let addr = servers::echo();
    let output = run("echo", &addr, "0.2", &[]);
    if output.is_skipped() {
        return;
    }
    assert_eq!(output.code, Some(0), "{}", output.both());
    assert!(
        output.out.contains("--pid PID watches the server"),
        "{}",
        output.out
    );
}

/// Asserts that a run against a server with one fault counts only errors of this kind, and exits with 1.
fn assert_fails(kind: &str, protocol: &str, addr: &str, more: &[&str]) {
    let Some(report) = report(protocol, addr, more, 1) else {
        return;
    };
    let errors = report["runs"][0]["sample"]["errors"].as_array().unwrap();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0]["kind"], kind);
    assert!(errors[0]["count"].as_u64().unwrap() > 0);
    assert!(report["rows"][0]["reason"].as_str().unwrap().contains(kind));
}

#[test]
fn a_wrong_byte_fails_the_run() {
    let addr = servers::responding(128, |number, request| {
        let mut response = request.to_vec();
        response[100] ^= u8::from(number == 7);
        Some(response)
    });
    assert_fails("wrong response", "echo", &addr, &[]);
}

#[test]
fn a_connection_closed_early_fails_the_run() {
    let addr = servers::responding(128, |number, request| {
        (number < 7).then(|| request.to_vec())
    });
    assert_fails("closed early", "echo", &addr, &[]);
}

#[test]
fn a_stall_fails_the_run() {
    let addr = servers::responding(128, |number, request| {
        if number == 7 {
            thread::sleep(Duration::from_secs(30));
        }
        Some(request.to_vec())
    });
    assert_fails("timeout", "echo", &addr, &["--timeout", "0.1"]);
}

#[test]
fn an_http_status_a_wrong_body_and_a_stores_error_fail_the_run() {
    let addr = servers::http("HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\noh");
    assert_fails("http status", "http", &addr, &[]);
    let addr = servers::responding(36, |_, _| Some(b"-ERR no\r\n".to_vec()));
    assert_fails("redis error", "redis", &addr, &[]);
    let addr = servers::responding(22, |_, _| Some(b"SERVER_ERROR no\r\n".to_vec()));
    assert_fails("memcached error", "memcached", &addr, &[]);
    let addr = servers::http("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let body = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::write(body.path(), "no").unwrap();
    let body = ["--body", body.path().to_str().unwrap()];
    assert_fails("wrong response", "http", &addr, &body);
}

/// The head of a request of `--post 1000 --host h --path /up`.
const HEAD_OF_POST: &str = "POST /up HTTP/1.1\r\nHost: h\r\nContent-Type: application/octet-stream\r\n\
    Content-Length: 1000\r\n\r\n";

#[test]
fn http_redis_and_memcached_are_measured() {
    let addr = servers::http("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    report("http", &addr, &["--reconnect"], 0);
    if let Some(report) = report("http", &addr, &["--disconnect"], 0) {
        assert_eq!(report["load"]["disconnect"], true);
        assert_eq!(report["load"]["reconnect"], true);
    }
    let addr = servers::responding(HEAD_OF_POST.len() + 1000, |_, request| {
        let is_post = request.starts_with(HEAD_OF_POST.as_bytes());
        is_post.then(|| b"HTTP/1.1 204 No Content\r\n\r\n".to_vec())
    });
    let post = ["--post", "1000", "--host", "h", "--path", "/up"];
    if let Some(report) = report("http", &addr, &post, 0) {
        assert_eq!(report["load"]["post_bytes"], 1000);
    }
    let addr = servers::responding(36, |_, _| Some(b"$-1\r\n".to_vec()));
    let redis = report("redis", &addr, &[], 0);
    let addr = servers::responding(22, |_, _| Some(b"END\r\n".to_vec()));
    let memcached = report("memcached", &addr, &[], 0);
    for report in redis.iter().chain(&memcached) {
        let totals = &report["runs"][0]["sample"]["totals"];
        assert_eq!(totals["nils"], totals["responses"]);
    }
}

#[test]
fn a_pause_shows_in_the_percentiles_of_a_fixed_rate() {
    let addr = servers::responding(128, |number, request| {
        if number == 300 {
            thread::sleep(Duration::from_millis(300));
        }
        Some(request.to_vec())
    });
    // One connection, and a time in which the pause is in the middle.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let json = dir.path().join("net.json");
    let json_path = json.to_str().unwrap();
    let line = [
        "echo",
        &addr,
        "--connections",
        "1",
        "--rate",
        "500",
        "--warmup",
        "0.05",
    ];
    let output = net(&[&line[..], &["--runtime", "2", "--json", json_path]].concat());
    if output.is_skipped() {
        return;
    }
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let sample = &report["runs"][0]["sample"];
    let due = |name: &str| sample["latency_since_due"][name].as_f64().unwrap();
    assert!(due("p99_9_us") >= 250_000.0, "{}", output.both());
    assert!(due("max_us") >= 250_000.0, "{}", output.both());
    assert!(
        output.out.contains("corrected for coordinated omission"),
        "{}",
        output.out
    );
}
