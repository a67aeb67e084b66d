//! Runs the command on a job file in a new folder.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A folder with job files.
pub(crate) struct Workspace {
    dir: TempDir,
}

/// The exit code and the output of the command.
pub(crate) struct CommandOutput {
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

    /// Writes `text` as the job file `job.fio`.
    pub(crate) fn job(&self, text: impl AsRef<[u8]>) -> &Workspace {
        fs::write(self.path().join("job.fio"), text).unwrap();
        self
    }

    /// Creates a file of random bytes.
    pub(crate) fn file(&self, name: &str, bytes: usize) {
        let mut content = vec![0; bytes];
        fastrand::fill(&mut content);
        fs::write(self.path().join(name), content).unwrap();
    }

    /// Returns the names of all files in the folder.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path()).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Runs `annulus bench file --job job.fio` with more arguments.
    pub(crate) fn run(&self, args: &[&str]) -> CommandOutput {
        let output = Command::new(env!("CARGO_BIN_EXE_annulus"))
            .args(["bench", "file", "--job", "job.fio"])
            .args(args)
            .current_dir(self.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        CommandOutput {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Reads a JSON file in the folder.
    pub(crate) fn json(&self, name: &str) -> serde_json::Value {
        serde_json::from_slice(&fs::read(self.path().join(name)).unwrap()).unwrap()
    }
}
