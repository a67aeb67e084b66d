//! What ends the command early: used wrongly (exit code 2), could not do it (exit code 1), or a signal.

use std::fmt;
use std::process::ExitCode;

use crate::signals::Signal;

/// Why the command gives up; the text says what happened, to what, and what to do.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The question makes no sense: another command line would work.
    Usage(String),
    /// The question is fine, the answer is not: no space, a device error, a variant that hangs.
    Failed(String),
    /// A signal.
    Interrupted { signal: Signal, doing: &'static str },
}

impl Fault {
    pub(crate) fn usage(text: impl Into<String>) -> Fault {
        Fault::Usage(text.into())
    }

    pub(crate) fn failed(text: impl Into<String>) -> Fault {
        Fault::Failed(text.into())
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
