//! Runs the command on a job file in a folder of its own.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A folder with job files in it.
pub(crate) struct Workspace {
    dir: TempDir,
}

/// What the command said.
pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Workspace {
    pub(crate) fn new() -> Workspace {
        // Beside the build, which is on a disk; the system's temporary folder may be in memory.
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

    /// A file of `bytes` random bytes.
    pub(crate) fn file(&self, name: &str, bytes: usize) {
        let mut content = vec![0; bytes];
        fastrand::fill(&mut content);
        fs::write(self.path().join(name), content).unwrap();
    }

    /// The names of all files here.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path()).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Runs `annulus bench file --job job.fio` with `args` behind it.
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

    /// The JSON in a file here.
    pub(crate) fn json(&self, name: &str) -> serde_json::Value {
        serde_json::from_slice(&fs::read(self.path().join(name)).unwrap()).unwrap()
    }
}
