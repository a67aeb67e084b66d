//! Errors of the library itself (`EngineError`), for operations that have no result from the kernel.
//!
//! Between a driver and its operations these errors are passed as numbers, like the kernel's errors. The numbers are
//! larger than any errno.

use std::fmt;
use std::io;

use super::errno::{EAGAIN, EBADR, ENOBUFS, ESHUTDOWN, ETIMEDOUT};

/// The reason why the library did not carry out an operation, or does not know its outcome.
///
/// It is the inner error of the `io::Error` that the operation returns. Such an error has no
/// [`raw_os_error`](io::Error::raw_os_error), because no system call failed.
///
/// ```
/// use annulus::{Engine, EngineError};
///
/// let engine = Engine::new()?;
/// engine.shutdown();
/// let error = pollster::block_on(engine.nop()).unwrap_err();
/// assert_eq!(EngineError::of(&error), Some(EngineError::Ended));
/// # Ok::<(), annulus::SetupError>(())
/// ```
///
/// Its [`kind`](io::Error::kind) is `TimedOut` or `Other`. Errors of the kernel have a `raw_os_error`. A third class
/// has neither: kinds of std such as `UnexpectedEof`, `WriteZero` and `InvalidInput`, for ends of files and wrong
/// arguments.
///
/// These failures have no errno: a made-up one would be taken for an answer of the kernel. A separate type for all
/// errors would not fit functions that return `io::Result`. So it travels inside an `io::Error`, also through `?` and
/// [`BufError`](crate::BufError). [`of`](EngineError::of) finds it, and so do std's methods, for code that does not
/// depend on this crate directly:
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// use annulus::EngineError;
///
/// let engine = annulus::Engine::new()?;
/// let file = engine.create(dir.path().join("data")).await?;
/// engine.shutdown();
/// let error = file.sync_all().await.unwrap_err();
/// assert_eq!(error.raw_os_error(), None); // no system call has failed
/// let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<EngineError>());
/// assert_eq!(inner, Some(&EngineError::Ended));
///
/// // The error of an operation with a buffer has it, too.
/// let error = std::io::Error::from(file.write_all_at("record", 0).await.unwrap_err());
/// assert_eq!(EngineError::of(&error), Some(EngineError::Ended));
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EngineError {
    /// The engine has been shut down, or the runtime has ended.
    Ended,
    /// The engine or runtime was created by a parent of this process, which was forked afterwards.
    Forked,
    /// The kernel permanently refuses calls on the operation's ring. Operations in flight may or may not have happened.
    RingFailed {
        /// The errno of the refused call.
        errno: i32,
    },
    /// No thread could be started to carry out the operation.
    NoThread {
        /// The errno of the failed thread start. `EAGAIN` means that a limit on threads was reached.
        errno: i32,
    },
    /// A method of the operation's buffer panicked, or a panic ended the driver. Operations in flight may or may not
    /// have happened.
    Panicked,
    /// More operations are waiting or in flight than the engine has slots for.
    TooMany,
    /// The operation's timeout expired. If the kernel could not cancel the operation, it may still happen.
    TimedOut,
}

/// Shifts a kind above all errnos and above the bits that hold one.
const SHIFT: u32 = 16;

impl EngineError {
    /// Returns the `EngineError` inside `error`, if there is one.
    ///
    /// A program that stops at an engine's end, and repeats what was not carried out:
    ///
    /// ```
    /// use std::io;
    /// use annulus::EngineError;
    ///
    /// fn is_safe_to_repeat(error: &io::Error) -> bool {
    ///     match EngineError::of(error) {
    ///         Some(EngineError::TooMany | EngineError::NoThread { .. }) => true, // nothing has happened
    ///         Some(_) => false, // it may have happened, or a new engine is needed
    ///         None => error.kind() == io::ErrorKind::Interrupted, // the kernel's own errors
    ///     }
    /// }
    /// assert!(is_safe_to_repeat(&EngineError::TooMany.into()));
    /// assert!(!is_safe_to_repeat(&EngineError::TimedOut.into()));
    /// assert!(!is_safe_to_repeat(&io::Error::from_raw_os_error(5)));
    /// ```
    pub fn of(error: &io::Error) -> Option<EngineError> {
        error.get_ref()?.downcast_ref().copied()
    }

    /// Returns the closest errno, for callers that have to return a number: `ESHUTDOWN`, `ETIMEDOUT`, `ENOBUFS`,
    /// `EBADR`, or the kernel's errno if there is one.
    ///
    /// For a C interface, or a FUSE server:
    ///
    /// ```
    /// use annulus::EngineError;
    ///
    /// fn errno(error: &std::io::Error) -> i32 {
    ///     const EIO: i32 = 5;
    ///     let own = || EngineError::of(error).map(EngineError::errno);
    ///     error.raw_os_error().or_else(own).unwrap_or(EIO)
    /// }
    /// assert_eq!(errno(&EngineError::TimedOut.into()), 110); // `ETIMEDOUT`
    /// assert_eq!(errno(&std::io::ErrorKind::UnexpectedEof.into()), 5); // has neither
    /// ```
    pub fn errno(self) -> i32 {
        match self {
            EngineError::Ended | EngineError::Forked => ESHUTDOWN,
            EngineError::RingFailed { errno } | EngineError::NoThread { errno } => errno,
            EngineError::Panicked => EBADR,
            EngineError::TooMany => ENOBUFS,
            EngineError::TimedOut => ETIMEDOUT,
        }
    }

    /// Returns the error's number. An operation's `res` is minus this number.
    pub(crate) const fn code(self) -> i32 {
        let (kind, errno) = match self {
            EngineError::Ended => (1, 0),
            EngineError::Forked => (2, 0),
            EngineError::RingFailed { errno } => (3, errno),
            EngineError::NoThread { errno } => (4, errno),
            EngineError::Panicked => (5, 0),
            EngineError::TooMany => (6, 0),
            EngineError::TimedOut => (7, 0),
        };
        kind << SHIFT | errno & 0xffff
    }

    /// Returns the error with this number; `None` for an errno.
    #[inline]
    pub(crate) fn of_code(code: i32) -> Option<EngineError> {
        if code < 1 << SHIFT {
            return None;
        }
        let errno = code & 0xffff;
        Some(match code >> SHIFT {
            1 => EngineError::Ended,
            2 => EngineError::Forked,
            3 => EngineError::RingFailed { errno },
            4 => EngineError::NoThread { errno },
            5 => EngineError::Panicked,
            6 => EngineError::TooMany,
            7 => EngineError::TimedOut,
            _ => return None,
        })
    }
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let os = io::Error::from_raw_os_error;
        match *self {
            EngineError::Ended => f.write_str(
                "the operation was not carried out: its engine has been shut down, or its runtime has ended; \
                 open the file or socket again with a running one",
            ),
            EngineError::Forked => f.write_str(
                "the operation was not carried out: its engine or runtime belongs to the process that this one \
                 was forked from; create a new one in the child",
            ),
            EngineError::RingFailed { errno } => write!(
                f,
                "the kernel no longer accepts calls on the io_uring of this operation ({}); the operation may or may \
                 not have happened; create a new engine or runtime",
                os(errno)
            ),
            EngineError::NoThread { errno: EAGAIN } => write!(
                f,
                "the operation was not carried out: no thread could be started for it ({}); raise the limits on \
                 threads (RLIMIT_NPROC, pids.max of the cgroup) and create a new engine or runtime",
                os(EAGAIN)
            ),
            EngineError::NoThread { errno } => write!(
                f,
                "the operation was not carried out: no thread could be started for it ({}); create a new engine \
                 or runtime once threads can be started again",
                os(errno)
            ),
            EngineError::Panicked => f.write_str(
                "a buffer panicked while this operation or another one was carried out; the operation may or may not \
                 have happened; if other operations fail like this, create a new engine or runtime",
            ),
            EngineError::TooMany => f.write_str(
                "the operation was not carried out: too many others are waiting or in flight; await some of them \
                 first",
            ),
            EngineError::TimedOut => f.write_str("the operation timed out"),
        }
    }
}

impl std::error::Error for EngineError {}

impl From<EngineError> for io::Error {
    fn from(error: EngineError) -> io::Error {
        let kind = match error {
            EngineError::TimedOut => io::ErrorKind::TimedOut,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

/// Converts `code` to an error: an errno, or the number of an `EngineError`.
#[cold]
pub(crate) fn error_of(code: i32) -> io::Error {
    match EngineError::of_code(code) {
        Some(error) => error.into(),
        None => io::Error::from_raw_os_error(code),
    }
}

/// Returns the number that `error` had as a result; `None` if it never was one.
pub(crate) fn code_of(error: &io::Error) -> Option<i32> {
    let own = || EngineError::of(error).map(EngineError::code);
    error.raw_os_error().or_else(own)
}

/// Copies an error. `io::Error` cannot be cloned; the errno is the part of a kernel error that matters.
pub(crate) fn same_error(error: &io::Error) -> io::Error {
    match code_of(error) {
        Some(code) => error_of(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [EngineError; 7] = [
        EngineError::Ended,
        EngineError::Forked,
        EngineError::RingFailed { errno: 77 },
        EngineError::NoThread { errno: EAGAIN },
        EngineError::Panicked,
        EngineError::TooMany,
        EngineError::TimedOut,
    ];

    #[test]
    fn each_error_of_the_library_differs_from_an_errno_and_from_the_others() {
        for own in ALL {
            let error = error_of(own.code());
            assert_eq!(EngineError::of(&error), Some(own));
            assert_eq!(
                (error.raw_os_error(), code_of(&error)),
                (None, Some(own.code()))
            );
            assert_eq!(EngineError::of_code(own.errno()), None);
        }
        for errno in 1..4096 {
            let error = error_of(errno);
            assert_eq!(
                (EngineError::of(&error), code_of(&error)),
                (None, Some(errno))
            );
        }
        let texts: std::collections::BTreeSet<String> = ALL.map(|own| own.to_string()).into();
        assert_eq!(texts.len(), ALL.len());
    }
}
