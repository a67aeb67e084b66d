//! `annulus bench multiget` as a command.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

fn multiget(args: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_annulus"));
    command.args(["bench", "multiget"]).args(args);
    // Nothing is found in this PATH.
    command.env("PATH", folder).current_dir(folder);
    command.output().unwrap()
}

#[test]
fn a_missing_program_results_in_the_command_that_builds_it() {
    let folder = tempfile::tempdir().unwrap();
    let output = multiget(&[], folder.path());
    let shown = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    let build = "cargo build --release --locked --manifest-path bench/Cargo.toml";
    assert!(shown.contains(build), "{shown}");

    let output = multiget(&["--program", "missing"], folder.path());
    let shown = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(shown.contains("cannot execute missing"), "{shown}");
}

#[test]
fn a_program_built_in_the_clone_gets_the_options_and_its_exit_code_is_returned() {
    let clone = tempfile::tempdir().unwrap();
    let built = clone.path().join("bench/target/release");
    let below = clone.path().join("docs");
    fs::create_dir_all(&built).unwrap();
    fs::create_dir(&below).unwrap();
    let program = built.join("annulus-multiget");
    fs::write(&program, "#!/bin/sh\necho \"got $*\"\nexit 7\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let output = multiget(&["--", "--short", "--repeat", "1"], &below);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "got --short --repeat 1\n"
    );
}
