//! `annulus bench nop` as a command: its table, its JSON, and refused input.

use std::process::{Child, Command, Output};
use std::thread;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use serde_json::Value;

/// The number of `io_uring_setup`, which is the same on all architectures.
const SETUP: i64 = 425;

fn nop(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_annulus"))
        .args(["bench", "nop"])
        .args(args)
        .output()
        .unwrap()
}

#[test]
fn every_layer_has_a_row_and_the_json_is_valid() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let json = dir.path().join("nop.json");
    let path = json.to_str().unwrap();
    let line = [
        "--runtime",
        "0.02",
        "--repeat",
        "2",
        "--depth",
        "4,1,4",
        "--seed",
        "3",
        "--json",
        path,
    ];
    let output = nop(&line);
    let out = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{out}");
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let schema = concat!(env!("CARGO_MANIFEST_DIR"), "/schema/bench-nop.json");
    let schema = serde_json::from_slice(&std::fs::read(schema).unwrap()).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let errors: Vec<String> = (validator.iter_errors(&report))
        .map(|error| error.to_string())
        .collect();
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(report["depths"], serde_json::json!([1, 4]));
    assert_eq!(report["runs"].as_array().unwrap().len(), 2 * 2 * 8);
    for layer in report["layers"].as_array().unwrap() {
        let name = layer["name"].as_str().unwrap();
        assert_eq!(
            out.matches(&format!("\n{name} ")).count(),
            2,
            "{name}: {out}"
        );
    }
    let again = nop(&line);
    let err = String::from_utf8_lossy(&again.stderr);
    assert_eq!(again.status.code(), Some(2), "{err}");
    assert!(err.contains("exists; --replace replaces it"), "{err}");
}

#[test]
fn values_out_of_range_are_refused() {
    for (args, text) in [
        (["--depth", "0"], "--depth 0: a depth is from 1 to 4096"),
        (
            ["--depth", "9999"],
            "--depth 9999: a depth is from 1 to 4096",
        ),
        (["--repeat", "0"], "--repeat 0: from 1 to 1000"),
        (["--runtime", "0"], "the time must be from 1 ms to a day"),
    ] {
        let output = nop(&args);
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{err}");
        assert!(err.contains(text), "{args:?}: {err}");
        assert!(output.stdout.is_empty());
    }
}

/// Uses a processor until it is dropped.
struct Burner(Child);

impl Drop for Burner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_disturbed_run_shows_its_figures_without_a_verdict() {
    let burn = || {
        Burner(
            Command::new("sh")
                .args(["-c", "while :; do :; done"])
                .spawn()
                .unwrap(),
        )
    };
    let burners: Vec<Burner> = (0..thread::available_parallelism().unwrap().get())
        .map(|_| burn())
        .collect();
    let output = nop(&["--runtime", "0.3", "--repeat", "1", "--depth", "1"]);
    drop(burners);
    let out = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{out}");
    assert!(out.contains("\nnull-executor "), "{out}");
    assert!(out.contains("runs were disturbed (worst: "), "{out}");
    assert!(
        out.ends_with("No verdict: 1 of 1 repeats with depth 1 were disturbed.\n"),
        "{out}"
    );
}

#[test]
fn under_a_filter_that_kills_for_io_uring_the_rows_of_rings_have_the_reason() {
    let rules = [(SETUP, Vec::new())].into_iter().collect();
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::KillProcess,
        arch,
    );
    let filter = BpfProgram::try_from(filter.unwrap()).unwrap();
    // The filter holds for this thread and the processes that it starts.
    let started = thread::spawn(move || {
        seccompiler::apply_filter(&filter).unwrap();
        let args = ["--runtime", "0.01", "--repeat", "1", "--depth", "1"];
        [nop(&args), file_by_hand(), echo()]
    });
    let [nop, file, echo] = started.join().unwrap();
    let text = |output: &Output| {
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        out + &String::from_utf8_lossy(&output.stderr)
    };
    assert_eq!(nop.status.code(), Some(0), "{}", text(&nop));
    assert!(text(&nop).contains("\nnull-executor "), "{}", text(&nop));
    for (output, reason) in [
        (
            &nop,
            "\nabi: not available here: io_uring refused by a seccomp filter that kills",
        ),
        (
            &file,
            "\nbase     not available here: io_uring refused by a seccomp filter that kills",
        ),
        (
            &echo,
            "annulus: the load generator needs io_uring: io_uring refused by a seccomp filter that kills",
        ),
    ] {
        assert!(
            text(output).contains(reason),
            "no {reason:?} in {}",
            text(output)
        );
    }
    assert_eq!(echo.status.code(), Some(77), "{}", text(&echo));
}

fn file_by_hand() -> Output {
    let args = [
        "--size",
        "1M",
        "--hot",
        "--variants",
        "pread",
        "--runtime",
        "0.01",
        "--repeat",
        "1",
    ];
    let mut command = Command::new(env!("CARGO_BIN_EXE_annulus"));
    let command = command.args(["bench", "file", env!("CARGO_TARGET_TMPDIR")]);
    command.args(args).output().unwrap()
}

fn echo() -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_annulus"));
    command.args(["bench", "net", "echo"]).output().unwrap()
}
