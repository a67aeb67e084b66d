//! Errors that end the command: a wrong command line (exit code 2), a failure (exit code 1), or a signal.

use std::fmt;
use std::process::ExitCode;

use crate::signals::Signal;

/// Returns a [`Fault::Usage`] with a formatted text.
macro_rules! usage {
    ($($arg:tt)*) => {
        crate::fault::Fault::usage(format!($($arg)*))
    };
}

/// Returns a [`Fault::Failed`] with a formatted text.
macro_rules! failed {
    ($($arg:tt)*) => {
        crate::fault::Fault::failed(format!($($arg)*))
    };
}

/// An error that ends the command. The text says what failed, on what, why, and what to do.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The command line is wrong, and another one may work.
    Usage(String),
    /// The command line is right, but the command failed: no space, a device error, a variant that hangs.
    Failed(String),
    /// A signal ended the command.
    Interrupted { signal: Signal, doing: &'static str },
}

impl Fault {
    pub(crate) fn usage(text: impl Into<String>) -> Fault {
        Fault::Usage(text.into())
    }

    pub(crate) fn failed(text: impl Into<String>) -> Fault {
        Fault::Failed(text.into())
    }

    /// Returns the refusal of an option that needs the feature `images`, if this build lacks it.
    pub(crate) fn without_images(option: &str) -> Option<Fault> {
        (!cfg!(feature = "images")).then(|| {
            Fault::usage(format!(
                "{option} needs the Cargo feature `images`, which this build of annulus-cli lacks; install it with its \
                 default features"
            ))
        })
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Fault::Usage(_) => ExitCode::from(2),
            Fault::Failed(_) => ExitCode::from(1),
            Fault::Interrupted { signal, .. } => ExitCode::from(signal.exit_code()),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Usage(text) | Fault::Failed(text) => f.write_str(text),
            Fault::Interrupted { signal, doing } => {
                write!(f, "interrupted by {signal} while {doing}")
            }
        }
    }
}

impl std::error::Error for Fault {}
