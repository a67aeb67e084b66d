//! What all commands write: text, and JSON with the same head in files that are complete or absent.

use std::fs::{self, File};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::{Deserialize, Serialize};

use super::layout::{self, Digits};
use super::timeline::Timeline;
use crate::args::OutputArgs;
use crate::fault::Fault;
use crate::signals::Removal;

/// The head of a report in JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Header {
    /// The version of this format. It changes when a reader of older files would misread a newer file.
    pub(crate) version: u32,
    /// The version of annulus that wrote it.
    pub(crate) annulus: String,
    /// The command line.
    pub(crate) command: Vec<String>,
    /// The start time, in seconds since 1970.
    pub(crate) started_unix_s: u64,
}

impl Header {
    /// Returns the head of a report in this version of its format.
    pub(crate) fn new(version: u32, started: SystemTime) -> Header {
        let since = started.duration_since(UNIX_EPOCH);
        let words = std::env::args_os();
        Header {
            version,
            annulus: env!("CARGO_PKG_VERSION").into(),
            command: words
                .map(|word| word.to_string_lossy().into_owned())
                .collect(),
            started_unix_s: since.map_or(0, |since| since.as_secs()),
        }
    }
}

/// A report whose runs may have timelines.
pub(crate) trait Figures: Clone + Serialize {
    /// Returns the timelines of all runs.
    fn timelines(&mut self) -> impl Iterator<Item = &mut Option<Timeline>>;
}

/// The file to write. Everything that can be refused is refused before the measurement.
pub(crate) struct Destination {
    option: &'static str,
    path: PathBuf,
    replace: bool,
}

impl Destination {
    /// Returns the file of `--json`, if it is named.
    pub(crate) fn json(args: &OutputArgs) -> Result<Option<Destination>, Fault> {
        (args.json.as_deref())
            .map(|path| Destination::of("--json", path, args.replace))
            .transpose()
    }

    /// Returns the file that `option` names.
    pub(crate) fn of(
        option: &'static str,
        path: &Path,
        replace: bool,
    ) -> Result<Destination, Fault> {
        let shown = path.display();
        if !replace && fs::symlink_metadata(path).is_ok() {
            return Err(usage!("{option} {shown} exists; --replace replaces it"));
        }
        if path.is_dir() || path.file_name().is_none() {
            return Err(usage!("{option} {shown} is a directory; name a file"));
        }
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        if !folder.is_dir() {
            return Err(usage!(
                "{option} {shown}: the directory {} does not exist",
                folder.display()
            ));
        }
        rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).map_err(|error| {
            usage!(
                "{option} {shown}: cannot write in {}: {error}",
                folder.display()
            )
        })?;
        Ok(Destination {
            option,
            path: path.to_path_buf(),
            replace,
        })
    }

    /// Writes one line per run. With `timelines`, each run keeps its timeline and numbers have all digits, so that a
    /// report from the file is identical to the one from the run.
    pub(crate) fn write<R: Figures>(&self, report: &R, timelines: bool) -> Result<(), Fault> {
        if timelines {
            return self.write_lines(report, Digits::All);
        }
        let mut report = report.clone();
        report.timelines().for_each(|timeline| *timeline = None);
        self.write_lines(&report, Digits::Six)
    }

    /// Writes a report without timelines, one line per run.
    pub(crate) fn write_figures(&self, report: &impl Serialize) -> Result<(), Fault> {
        self.write_lines(report, Digits::Six)
    }

    fn write_lines(&self, report: &impl Serialize, digits: Digits) -> Result<(), Fault> {
        self.write_with(|file| {
            let mut out = BufWriter::new(file);
            layout::write_lines(&mut out, report, digits)?;
            out.write_all(b"\n")?;
            out.flush()
        })
    }

    /// Writes text.
    pub(crate) fn write_text(&self, text: &str) -> Result<(), Fault> {
        self.write_with(|file| file.write_all(text.as_bytes()))
    }

    /// Writes to a temporary file in the same folder and renames it, so that the file is complete or absent.
    fn write_with(&self, put: impl FnOnce(&mut File) -> std::io::Result<()>) -> Result<(), Fault> {
        let mut beside = self.path.clone().into_os_string();
        beside.push(format!(".tmp-{}", std::process::id()));
        let written = self.write_beside(Path::new(&beside), put);
        written.map_err(|error| {
            let hint = match error.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                    "; name a file on another disk"
                }
                _ => "",
            };
            let (option, shown) = (self.option, self.path.display());
            failed!("writing {option} {shown}: {error}{hint}")
        })
    }

    fn write_beside(
        &self,
        beside: &Path,
        put: impl FnOnce(&mut File) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let mut file = File::create_new(beside)?;
        // After the rename there is nothing left to remove.
        let name = beside.to_path_buf();
        let _removal = Removal::new(move || drop(fs::remove_file(name)));
        put(&mut file)?;
        file.sync_all()?;
        if self.replace {
            return fs::rename(beside, &self.path);
        }
        // Another process may have created the file in the meantime.
        renameat_with(CWD, beside, CWD, &self.path, RenameFlags::NOREPLACE)?;
        Ok(())
    }
}

/// Prints `text`. A closed pipe is not an error.
pub(crate) fn print_text(text: &str) -> Result<(), Fault> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(failed!("printing: {error}")),
        _ => Ok(()),
    }
}

/// Compares a schema with the one in the repository. `UPDATE_SCHEMA=1 cargo test -p annulus-cli schema` writes it.
#[cfg(test)]
pub(crate) fn schema_is_current(name: &str, schema: &schemars::Schema) {
    let path = format!("{}/schema/{name}", env!("CARGO_MANIFEST_DIR"));
    let schema = serde_json::to_string_pretty(schema).unwrap() + "\n";
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        fs::write(&path, &schema).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == schema,
        "{path} is not current; run: UPDATE_SCHEMA=1 cargo test -p annulus-cli schema"
    );
}
