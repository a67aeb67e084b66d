//! The command, started by another program.

use std::process::Command;

/// Returns `annulus doctor`, started by another program such as `prlimit --nofile=40`.
pub(crate) fn below(program: &[&str], args: &[&str]) -> Command {
    let mut command = Command::new(program[0]);
    command
        .args(&program[1..])
        .arg(env!("CARGO_BIN_EXE_annulus"))
        .arg("doctor")
        .args(args);
    command
}
