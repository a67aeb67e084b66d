//! `annulus bench nop` as a command: its table, its JSON, and refused input.

use std::process::{Command, Output};

use serde_json::Value;

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
