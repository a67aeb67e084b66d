//! `annulus bench net` as a command: counts, failures, refused input, and processes that it leaves.

mod external;
mod refused;
mod servers;
mod variants;

use std::process::{Command, Output, Stdio};

use annulus_testing::skip;

/// The exit code and the output of the command.
pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl CommandOutput {
    /// Returns whether the test is skipped because this machine has no ring for the generator.
    pub(crate) fn is_skipped(&self) -> bool {
        if self.code == Some(77) {
            skip::skip(self.err.trim());
        }
        self.code == Some(77)
    }

    pub(crate) fn both(&self) -> String {
        format!("{}{}", self.out, self.err)
    }
}

pub(crate) fn net(args: &[&str]) -> CommandOutput {
    let Output {
        status,
        stdout,
        stderr,
    } = command(args).output().unwrap();
    CommandOutput {
        code: status.code(),
        out: String::from_utf8(stdout).unwrap(),
        err: String::from_utf8(stderr).unwrap(),
    }
}

pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_annulus"));
    command
        .args(["bench", "net"])
        .args(args)
        .stdin(Stdio::null());
    command
}
