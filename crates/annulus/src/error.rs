//! What can go wrong: setting up (`SetupError`), and an operation that held a buffer (`BufError`).
//!
//! Operations without a buffer return plain `io::Error`: an errno of the kernel's, or an `EngineError` of the library.

use std::fmt;
use std::io;

/// Why a backend could not be set up. The text ends with what to do about it.
#[derive(Debug)]
#[non_exhaustive]
pub enum SetupError {
    /// The kernel has no io_uring (before Linux 5.1, or built without `CONFIG_IO_URING`), or a
    /// filter answers as if it had none.
    Missing {
        /// The kernel's release, as `uname -r` prints it.
        kernel: String,
        /// What to do.
        hint: String,
    },
    /// The kernel has io_uring and somebody forbids it.
    Refused {
        /// Who: a sysctl with its value, seccomp, or a security module.
        by: String,
        /// What to do.
        hint: String,
    },
    /// The kernel's io_uring lacks something that Annulus can't do without.
    TooOld {
        /// The kernel's release.
        have: String,
        /// The first kernel that has it.
        need: &'static str,
        /// What is lacking.
        what: &'static str,
    },
    /// The user's locked-memory limit does not hold the smallest ring, or what was to be registered.
    Memlock {
        /// What there is no room for.
        what: &'static str,
        /// `RLIMIT_MEMLOCK` in bytes; `None` is unlimited, or waived by `CAP_IPC_LOCK` (then the
        /// machine is short of memory).
        have_bytes: Option<u64>,
        /// What to do.
        hint: String,
    },
    /// The process, or the machine, has no descriptor left for a ring.
    Descriptors {
        /// `RLIMIT_NOFILE`; `None` is unlimited (then it is the machine's limit, `fs.file-max`).
        have: Option<u64>,
    },
    /// The kernel's io_uring is there, and polling, which was asked for, is not to be had.
    Polling {
        /// What was asked for.
        what: &'static str,
        /// Why not.
        because: String,
        /// What to do.
        hint: String,
    },
    /// A limit of the builder makes no sense.
    Config(String),
    /// Anything else the kernel answered.
    Os {
        /// What was tried.
        what: &'static str,
        /// Its answer.
        error: io::Error,
    },
}

impl SetupError {
    /// Whether `Backend::Auto` goes on without io_uring, or without the polling that was asked for: it
    /// is not there, not allowed, too old or starved of memory or descriptors. Everything else is the
    /// caller's to see.
    pub fn allows_fallback(&self) -> bool {
        !matches!(self, SetupError::Config(_) | SetupError::Os { .. })
    }
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetupError::Missing { kernel, hint } => {
                write!(
                    f,
                    "no io_uring in this kernel (Linux {kernel}, ENOSYS); {hint}"
                )
            }
            SetupError::Refused { by, hint } => write!(f, "io_uring refused by {by}; {hint}"),
            SetupError::TooOld { have, need, what } => {
                write!(
                    f,
                    "io_uring of Linux {have} lacks {what}; boot Linux {need} or later"
                )
            }
            SetupError::Memlock {
                what,
                have_bytes: Some(bytes),
                hint,
            } => {
                write!(
                    f,
                    "the locked-memory limit of {bytes} bytes is too small for {what}; {hint}"
                )
            }
            SetupError::Memlock {
                what,
                have_bytes: None,
                hint,
            } => {
                write!(f, "the kernel has no memory for {what}; {hint}")
            }
            SetupError::Descriptors { have: Some(have) } => {
                write!(
                    f,
                    "no descriptor left for a ring of {have} allowed; raise RLIMIT_NOFILE (ulimit -n 65536)"
                )
            }
            SetupError::Descriptors { have: None } => {
                write!(
                    f,
                    "the machine has no descriptor left for a ring; raise fs.file-max (sysctl)"
                )
            }
            SetupError::Polling {
                what,
                because,
                hint,
            } => write!(f, "{what} is refused: {because}; {hint}"),
            SetupError::Config(what) => f.write_str(what),
            SetupError::Os { what, error } => write!(f, "{what} failed: {error}"),
        }
    }
}

impl std::error::Error for SetupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SetupError::Os { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl From<SetupError> for io::Error {
    fn from(error: SetupError) -> io::Error {
        match error {
            SetupError::Os { error, .. } => error,
            wrong @ SetupError::Config(_) => io::Error::new(io::ErrorKind::InvalidInput, wrong),
            other => io::Error::new(io::ErrorKind::Unsupported, other),
        }
    }
}

/// A failed operation on a buffer: the error, and the buffer where it could be given back.
///
/// Turns into `io::Error` by `?`. The buffer comes back with every error but one: an operation whose
/// timeout passed while the kernel could no longer be stopped from using the buffer. The engine
/// then keeps it until the kernel lets go, and frees it.
pub struct BufError<B> {
    error: io::Error,
    buf: Option<B>,
}

impl<B> BufError<B> {
    pub(crate) fn new(error: io::Error, buf: Option<B>) -> BufError<B> {
        BufError { error, buf }
    }

    /// What went wrong.
    pub fn error(&self) -> &io::Error {
        &self.error
    }

    /// Takes the two apart.
    pub fn into_parts(self) -> (io::Error, Option<B>) {
        (self.error, self.buf)
    }

    /// The buffer, where it could be given back.
    pub fn into_buf(self) -> Option<B> {
        self.buf
    }
}

impl<B> fmt::Debug for BufError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let buf = if self.buf.is_some() {
            "given back"
        } else {
            "kept until the kernel lets go"
        };
        f.debug_struct("BufError")
            .field("error", &self.error)
            .field("buf", &buf)
            .finish()
    }
}

impl<B> fmt::Display for BufError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B> std::error::Error for BufError<B> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl<B> From<BufError<B>> for io::Error {
    fn from(error: BufError<B>) -> io::Error {
        error.error
    }
}

/// What an operation on a buffer returns: its result beside the buffer, or the error with it.
pub type BufResult<T, B> = Result<(T, B), BufError<B>>;

/// What an operation that transfers its whole buffer returns: the buffer, or the error with it.
pub type WholeResult<B> = Result<B, BufError<B>>;
