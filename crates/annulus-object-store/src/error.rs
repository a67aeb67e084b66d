//! Errors, before a version of `object_store` gives them its type.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// An error with the kind that the traits distinguish.
#[derive(Debug)]
pub(crate) enum Failure {
    NotFound { path: PathBuf, source: io::Error },
    AlreadyExists { path: PathBuf, source: io::Error },
    Other(Failed),
}

/// An error of any other kind.
#[derive(Debug)]
pub(crate) struct Failed {
    /// The action and its object, as in "open /data/a".
    what: String,
    source: io::Error,
}

impl Failure {
    /// Returns an error of the kind `Other`.
    pub(crate) fn other(action: &str, path: &Path, source: io::Error) -> Failure {
        Failure::new(format!("{action} {}", path.display()), source)
    }

    /// Returns an error of the kind `Other`, with the action and its object.
    pub(crate) fn new(what: impl Into<String>, source: io::Error) -> Failure {
        Failure::Other(Failed {
            what: what.into(),
            source,
        })
    }

    /// Returns the error of an engine that does not start.
    pub(crate) fn no_engine(error: annulus::SetupError) -> Failure {
        Failure::new(
            "start an engine for the object store",
            io::Error::other(error),
        )
    }

    /// Returns an error that the system did not report.
    pub(crate) fn invalid(action: &str, path: &Path, reason: impl Into<String>) -> Failure {
        let source = io::Error::new(io::ErrorKind::InvalidInput, reason.into());
        Failure::other(action, path, source)
    }

    pub(crate) fn not_synced(folder: &Path, source: io::Error) -> Failure {
        Failure::other("sync the folder", folder, source)
    }

    /// Returns `NotFound` if the file does not exist, and `Other` for every other error.
    pub(crate) fn not_found_or(action: &str, path: &Path, source: io::Error) -> Failure {
        match source.kind() {
            io::ErrorKind::NotFound => Failure::NotFound {
                path: path.to_owned(),
                source,
            },
            _ => Failure::other(action, path, source),
        }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}", self.what, self.source)
    }
}

impl std::error::Error for Failed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}
