//! Runs the command in a new folder, and reads the files there.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// The message if pages of the file could not be evicted, because they were still in use.
pub(crate) const NOT_COLD: &str = "not cold";
/// The number of attempts for a run.
const ATTEMPTS: usize = 6;

/// A folder and the command that runs in it.
pub(crate) struct Workspace {
    dir: TempDir,
}

/// The exit code and the output of the command.
pub(crate) struct CommandOutput {
    pub(crate) pid: u32,
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Workspace {
    pub(crate) fn new() -> Workspace {
        // Next to the build, which is on a disk; the system's temporary folder may be in memory.
        Workspace {
            dir: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Creates a file of random bytes.
    pub(crate) fn file(&self, name: &str, bytes: usize) -> PathBuf {
        let mut content = vec![0; bytes];
        fastrand::fill(&mut content);
        let path = self.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }

    /// Returns every file in the folder, with its contents.
    pub(crate) fn files(&self) -> Vec<(String, Vec<u8>)> {
        let mut files: Vec<_> = fs::read_dir(self.path())
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| {
                (
                    entry.file_name().into_string().unwrap(),
                    fs::read(entry.path()).unwrap_or_default(),
                )
            })
            .collect();
        files.sort();
        files
    }

    pub(crate) fn command(&self, args: &[impl AsRef<OsStr>]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_annulus"));
        command
            .args(["bench", "file"])
            .args(args)
            .current_dir(self.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub(crate) fn run(&self, args: &[impl AsRef<OsStr>]) -> CommandOutput {
        let child = self.command(args).spawn().unwrap();
        let pid = child.id();
        let Output {
            status,
            stdout,
            stderr,
        } = child.wait_with_output().unwrap();
        CommandOutput {
            pid,
            code: status.code(),
            out: String::from_utf8(stdout).unwrap(),
            err: String::from_utf8(stderr).unwrap(),
        }
    }

    /// Runs the command, and repeats it if the machine's other work prevented the measurement.
    pub(crate) fn run_patiently(&self, args: &[&str]) -> CommandOutput {
        let mut args: Vec<String> = args.iter().map(|arg| arg.to_string()).collect();
        for _ in 1..ATTEMPTS {
            let output = self.run(&args);
            if !output.out.contains(NOT_COLD) {
                return output;
            }
            println!("repeated after:\n{}", output.out);
            let has = |name: &str| args.iter().any(|arg| arg == name);
            if has("--json") && !has("--replace") {
                args.push("--replace".to_owned());
            }
        }
        self.run(&args)
    }

    /// Runs the command with `--json`, asserts that it succeeds, and returns the report.
    pub(crate) fn report(&self, args: &[&str]) -> Value {
        let json = self.path().join("report.json");
        let output = self.run_patiently(&[args, &["--json", "report.json"]].concat());
        assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
        let report = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
        fs::remove_file(json).unwrap();
        report
    }
}
