//! Tests of the command `annulus top`: with a server, on a terminal, and refusals.

mod machine;
mod server;
mod shown;
mod terminal;
mod wrong;

use std::process::{Command, Output};

fn top(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_annulus"));
    command.arg("top").args(args);
    command
}

fn code_and_error(output: &Output) -> (Option<i32>, String) {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), error)
}
