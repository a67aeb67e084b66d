//! Runs the command with a library that writes to a file, and with programs compiled for a test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use annulus_testing::once::once_per_run;
use tempfile::TempDir;

/// The variable with the path of the file that the library writes to.
pub(crate) const MARK: &str = "ANNULUS_TEST_MARK";

/// A library that writes to the file of the variable before `main`.
const LIBRARY: &str = r#"
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void mark(void) {
    const char *name = getenv("ANNULUS_TEST_MARK");
    int file = name ? open(name, O_WRONLY | O_CREAT | O_APPEND, 0666) : -1;
    if (file >= 0) {
        if (write(file, "loaded\n", 7) != 7)
            abort();
        close(file);
    }
}
"#;

/// Creates a directory that all users can read, on a file system that allows setuid programs.
pub(crate) fn folder() -> TempDir {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(dir.path(), all).unwrap();
    dir
}

/// Compiles C source.
pub(crate) fn compiled(into: &Path, source: &str, flags: &[&str]) {
    let text = into.with_extension("c");
    fs::write(&text, source).unwrap();
    let output = Command::new("cc")
        .args(["-O1", "-Wall", "-Werror", "-o"])
        .args([into, &text])
        .args(flags)
        .output()
        .expect("the C compiler, which Rust uses for linking, is installed");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
}

/// Returns a substitute for the real library.
pub(crate) fn library() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let build = || {
        let folder = format!("run-library-{}", std::process::id());
        let path = tmp.join(folder);
        fs::create_dir_all(&path).unwrap();
        let path = path.join("libannulus_preload.so");
        compiled(&path, LIBRARY, &["-shared", "-fPIC"]);
        Some(path)
    };
    PATH.get_or_init(|| once_per_run(tmp, "run-library", build).unwrap())
}

/// Returns `annulus run` with the library and these arguments.
pub(crate) fn run(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_annulus"));
    command.arg("run").arg("--library").arg(library());
    command.args(args);
    command.env_remove("LD_PRELOAD");
    command
}

/// Returns the command of [`run`] as `"$@"` of a shell script, which can change its environment.
pub(crate) fn run_by_shell(script: &str, args: &[&str]) -> Command {
    let run = run(args);
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script, "sh"]);
    command.arg(run.get_program()).args(run.get_args());
    command.env_remove("LD_PRELOAD");
    command
}

pub(crate) struct CommandOutput {
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) code: Option<i32>,
}

pub(crate) fn output(mut command: Command) -> CommandOutput {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    CommandOutput {
        out: String::from_utf8(stdout).unwrap(),
        err: String::from_utf8(stderr).unwrap(),
        code: status.code(),
    }
}

/// Returns the output of a program that succeeded without messages.
#[track_caller]
pub(crate) fn quiet(command: Command) -> String {
    let output = output(command);
    assert_eq!(
        (output.err.as_str(), output.code),
        ("", Some(0)),
        "{}",
        output.out
    );
    output.out
}
