//! Errors of the library's own: why an operation has no answer of the kernel's (`EngineError`).
//!
//! Between a driver and the operation that is answered they travel as numbers, as the kernel's errors do. Those
//! numbers are larger than any errno.

use std::fmt;
use std::io;

use super::errno::{EAGAIN, EBADR, ENOBUFS, ESHUTDOWN, ETIMEDOUT};

/// Why the library has not carried out an operation, or does not know what became of it.
///
/// It is inside the `io::Error` that the operation returns. Such an error has no
/// [`raw_os_error`](io::Error::raw_os_error), for no system call has failed.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EngineError {
    /// The engine has been shut down, or the runtime has ended.
    Ended,
    /// The engine or runtime was made by a parent of this process, which has forked since.
    Forked,
    /// The kernel refuses the ring of the operation for good. What was in flight may have happened or not.
    RingFailed {
        /// What the kernel said.
        errno: i32,
    },
    /// No thread could be started to carry the operation out.
    NoThread {
        /// What the kernel said: `EAGAIN` is a limit on threads.
        errno: i32,
    },
    /// A method of the operation's buffer has panicked, or a panic has ended the driver. What was in flight may have
    /// happened or not.
    Panicked,
    /// More operations are waiting or in flight than the engine has slots for.
    TooMany,
    /// The operation's timeout has passed. It may still happen if the kernel could not be stopped.
    TimedOut,
}

/// Above all errnos, and above the bits that hold one.
const SHIFT: u32 = 16;

impl EngineError {
    /// The error inside `error`, if it is one of the library's own.
    pub fn of(error: &io::Error) -> Option<EngineError> {
        error.get_ref()?.downcast_ref().copied()
    }

    /// An errno that comes close, for those who have to return a number: `ESHUTDOWN`, `ETIMEDOUT`, `ENOBUFS`, or
    /// the kernel's own where it has said one.
    pub fn errno(self) -> i32 {
        match self {
            EngineError::Ended | EngineError::Forked => ESHUTDOWN,
            EngineError::RingFailed { errno } | EngineError::NoThread { errno } => errno,
            EngineError::Panicked => EBADR,
            EngineError::TooMany => ENOBUFS,
            EngineError::TimedOut => ETIMEDOUT,
        }
    }

    /// As an answer's number; minus it is the answer.
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

    /// The error whose number this is; `None` for an errno.
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
                 open the file or socket with one that runs",
            ),
            EngineError::Forked => f.write_str(
                "the operation was not carried out: its engine or runtime belongs to the process that this one \
                 was forked from; build another one in the child",
            ),
            EngineError::RingFailed { errno } => write!(
                f,
                "the kernel no longer accepts calls on the io_uring of this operation ({}); whether the operation \
                 has happened is not known; build a new engine or runtime",
                os(errno)
            ),
            EngineError::NoThread { errno: EAGAIN } => write!(
                f,
                "the operation was not carried out: no thread could be started for it ({}); raise the limits on \
                 threads (RLIMIT_NPROC, pids.max of the cgroup) and build a new engine or runtime",
                os(EAGAIN)
            ),
            EngineError::NoThread { errno } => write!(
                f,
                "the operation was not carried out: no thread could be started for it ({}); build a new engine \
                 or runtime when there is room for one",
                os(errno)
            ),
            EngineError::Panicked => f.write_str(
                "a buffer has panicked while this operation or another one was carried out; whether the operation has \
                 happened is not known; if others fail like this, build a new engine or runtime",
            ),
            EngineError::TooMany => f.write_str(
                "the operation was not carried out: too many others are waiting or in flight; await some of them \
                 first",
            ),
            EngineError::TimedOut => f.write_str("the timeout of the operation has passed"),
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

/// What `code` stands for: an errno, or an error of the library's own.
#[cold]
pub(crate) fn error_of(code: i32) -> io::Error {
    match EngineError::of_code(code) {
        Some(error) => error.into(),
        None => io::Error::from_raw_os_error(code),
    }
}

/// The number that `error` had as an answer; `None` if it never was one.
pub(crate) fn code_of(error: &io::Error) -> Option<i32> {
    let own = || EngineError::of(error).map(EngineError::code);
    error.raw_os_error().or_else(own)
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
