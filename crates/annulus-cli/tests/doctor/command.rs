//! Runs the command and returns its output.

use std::process::{Command, Output};

use annulus_testing::schema;
use serde_json::Value;

pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_annulus"));
    command.arg("doctor").args(args);
    command
}

pub(crate) fn output(mut command: Command) -> CommandOutput {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    CommandOutput {
        code: status.code(),
        out: String::from_utf8(stdout).unwrap(),
        err: String::from_utf8(stderr).unwrap(),
    }
}

/// Returns the JSON of a command with `--json`. The JSON must match the schema, and contain the exit code.
#[track_caller]
pub(crate) fn report(command: Command) -> Value {
    let output = output(command);
    let report: Value = serde_json::from_str(&output.out)
        .unwrap_or_else(|error| panic!("{error}: {}{}", output.out, output.err));
    let schema = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/schema/doctor.json"));
    let schema = serde_json::from_str(schema).unwrap();
    schema::assert_matches(&schema, &report);
    assert_eq!(report["exit_code"].as_i64(), output.code.map(i64::from));
    report
}

/// Returns the rules in the report, the most severe first.
pub(crate) fn rules(report: &Value) -> Vec<&str> {
    let advice = report["advice"].as_array().unwrap();
    advice
        .iter()
        .map(|one| one["rule"].as_str().unwrap())
        .collect()
}
