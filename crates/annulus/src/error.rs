//! Errors of set-up (`SetupError`) and of operations on buffers (`BufError`).
//!
//! Operations without a buffer return a plain `io::Error`, with an errno of the kernel or an `EngineError` of the
//! library.

use std::fmt;
use std::io;

/// The reason why a backend could not be set up. The message ends with a hint.
///
/// The variants are the causes with different remedies, so that a program can act on them. Each message names the cause
/// and ends with what to change; nothing has to be looked up. It is a separate type, not an `io::Error`, because most
/// causes have no errno, or a misleading one: a seccomp filter may return `ENOSYS` on a new kernel. `?` converts it
/// where a function returns `io::Result`.
///
/// ```
/// use annulus::{Backend, Engine, SetupError};
///
/// let engine = match Engine::builder().backend(Backend::Uring).build() {
///     Err(SetupError::Memlock { hint, .. }) => {
///         eprintln!("{hint}"); // one cause that this program treats differently
///         Engine::builder().backend(Backend::Fallback).build()?
///     }
///     Err(error) if error.allows_fallback() => {
///         eprintln!("{error}");
///         Engine::builder().backend(Backend::Fallback).build()?
///     }
///     engine => engine?,
/// };
/// pollster::block_on(engine.nop()).expect("works on each backend");
/// # Ok::<(), SetupError>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum SetupError {
    /// The kernel has no io_uring (before Linux 5.1, or built without `CONFIG_IO_URING`), or a filter returns `ENOSYS`.
    Missing {
        /// The kernel release, as `uname -r` prints it.
        kernel: String,
        /// The remedy.
        hint: String,
    },
    /// The kernel has io_uring, but policy forbids it.
    Refused {
        /// The policy: a sysctl with its value, seccomp, or a security module.
        by: String,
        /// The remedy.
        hint: String,
    },
    /// The kernel's io_uring lacks a feature that Annulus needs.
    TooOld {
        /// The kernel release.
        have: String,
        /// The first kernel version with the feature.
        need: &'static str,
        /// The missing feature.
        what: &'static str,
    },
    /// The locked-memory limit of the user is too small for the smallest ring, or for the memory to register.
    Memlock {
        /// The memory that does not fit: a ring, or a registration.
        what: &'static str,
        /// `RLIMIT_MEMLOCK` in bytes. `None` if it is unlimited or waived by `CAP_IPC_LOCK`; then the machine is short
        /// of memory.
        have_bytes: Option<u64>,
        /// The remedy.
        hint: String,
    },
    /// The process or the machine has no file descriptor left for a ring.
    Descriptors {
        /// `RLIMIT_NOFILE`. `None` if it is unlimited; then the limit is the machine's, `fs.file-max`.
        have: Option<u64>,
    },
    /// The kernel has io_uring, but refuses the requested polling.
    Polling {
        /// The requested kind of polling.
        what: &'static str,
        /// The reason.
        reason: String,
        /// The remedy.
        hint: String,
    },
    /// The library was built without io_uring, because the platform has none.
    Platform {
        /// The operating system that the program was built for.
        built_for: &'static str,
    },
    /// A setting of the builder is invalid.
    Config(String),
    /// Any other error of the kernel.
    Os {
        /// The step that failed.
        what: &'static str,
        /// The kernel's error.
        error: io::Error,
    },
}

impl SetupError {
    /// Returns whether `Backend::Auto` continues without io_uring, or without the requested polling: it is missing,
    /// forbidden, too old, or short of memory or descriptors. Every other error is returned to the caller.
    ///
    /// ```
    /// use annulus::{Engine, buf::BufferLayout};
    ///
    /// let engine = Engine::new()?;
    /// let error = engine.register_buffers(BufferLayout::new(0, 4096)).unwrap_err();
    /// assert!(!error.allows_fallback()); // a mistake of the program: no other backend would help
    /// let error = std::io::Error::from(error);
    /// assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    /// # Ok::<(), annulus::SetupError>(())
    /// ```
    pub fn allows_fallback(&self) -> bool {
        !matches!(self, SetupError::Config(_) | SetupError::Os { .. })
    }
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetupError::Missing { kernel, hint } => {
                write!(f, "io_uring is missing (ENOSYS, Linux {kernel}); {hint}")
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
                    "no file descriptor left for a ring (the limit is {have}); raise RLIMIT_NOFILE (ulimit -n 65536)"
                )
            }
            SetupError::Descriptors { have: None } => {
                write!(
                    f,
                    "the machine has no file descriptor left for a ring; raise the sysctl fs.file-max"
                )
            }
            SetupError::Polling { what, reason, hint } => {
                write!(f, "{what} is refused: {reason}; {hint}")
            }
            SetupError::Platform { built_for } => write!(
                f,
                "no io_uring in a program that was built for {built_for}; build it for Linux to use io_uring"
            ),
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
            invalid @ SetupError::Config(_) => io::Error::new(io::ErrorKind::InvalidInput, invalid),
            other => io::Error::new(io::ErrorKind::Unsupported, other),
        }
    }
}

/// The error of an operation on a buffer, with the buffer if the kernel no longer uses it.
///
/// `?` converts it into an `io::Error`; into a `Box<dyn Error>` it goes unchanged, with the `io::Error` as its source.
/// The buffer is returned unless the kernel may still use it: after a timeout or the end of an engine that could not
/// stop the operation, and after the engine's ring has failed. The engine then keeps the buffer, and frees it once the
/// kernel has finished with it.
///
/// A buffer moves into its operation, so an error has to return it. Otherwise each failed write would lose its data.
/// That is why the error is not a plain `io::Error`. A caller that does not need the buffer uses `?`.
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// # let path = dir.path().join("data"); std::fs::write(&path, "")?;
/// let file = engine.open(&path).await?; // for reading only
/// let error = file.write_all_at(b"precious".to_vec(), 0).await.unwrap_err();
/// let (error, buf) = error.into_parts();
/// assert_eq!(error.raw_os_error(), Some(9)); // `EBADF`, as from `pwrite(2)`
/// let data = buf.expect("the kernel has finished with it");
/// let copy = engine.create(dir.path().join("copy")).await?;
/// copy.write_all_at(data, 0).await?; // the next attempt, with the same memory
/// # Ok(()) }) }
/// ```
pub struct BufError<B> {
    error: io::Error,
    buf: Option<B>,
}

impl<B> BufError<B> {
    pub(crate) fn new(error: io::Error, buf: Option<B>) -> BufError<B> {
        BufError { error, buf }
    }

    /// Returns the error.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, "0123")?;
    /// use std::io::ErrorKind;
    ///
    /// let file = engine.open(&path).await?;
    /// let header = match file.read_exact_at(vec![0; 8], 0).await {
    ///     Err(error) if error.error().kind() == ErrorKind::UnexpectedEof => None, // a file that is too short
    ///     header => Some(header?),
    /// };
    /// assert_eq!(header, None);
    /// # Ok(()) }) }
    /// ```
    pub fn error(&self) -> &io::Error {
        &self.error
    }

    /// Splits into the error and the buffer, if the buffer was returned.
    pub fn into_parts(self) -> (io::Error, Option<B>) {
        (self.error, self.buf)
    }

    /// Returns the buffer, if it was returned.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, "0123")?;
    /// let file = engine.open(&path).await?;
    /// let error = file.read_exact_at(vec![0; 8], 0).await.unwrap_err();
    /// // What was read before the end of the file is in the buffer.
    /// assert_eq!(error.into_buf().unwrap(), b"0123\0\0\0\0");
    /// # Ok(()) }) }
    /// ```
    pub fn into_buf(self) -> Option<B> {
        self.buf
    }
}

impl<B> fmt::Debug for BufError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let buf = if self.buf.is_some() {
            "returned"
        } else {
            "kept until the kernel has finished with it"
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

/// The result of an operation on a buffer: a value and the buffer, or an error that holds the buffer.
///
/// A function that takes a buffer and gives it back has the same result:
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// use annulus::{BufResult, File};
///
/// async fn header(file: &File, buf: Vec<u8>) -> BufResult<u8, Vec<u8>> {
///     let buf = file.read_exact_at(buf, 0).await?; // the error has the same type
///     Ok((buf[0], buf))
/// }
/// # std::fs::write(dir.path().join("data"), "0123")?;
/// let file = engine.open(dir.path().join("data")).await?;
/// let (version, buf) = header(&file, vec![0; 4]).await?;
/// assert_eq!((version, buf.len()), (b'0', 4));
/// # Ok(()) }) }
/// ```
pub type BufResult<T, B> = Result<(T, B), BufError<B>>;

/// The result of an operation that transfers a whole buffer: the buffer, or an error that holds it.
///
/// The number of bytes is not returned, because it is the buffer's length:
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// use annulus::WholeResult;
///
/// let file = engine.create(dir.path().join("data")).await?;
/// let written: WholeResult<Vec<u8>> = file.write_all_at(b"record".to_vec(), 0).await;
/// assert_eq!(written?.len(), 6);
/// # Ok(()) }) }
/// ```
pub type WholeResult<B> = Result<B, BufError<B>>;

/// The output of an operation that can report an error without the operation, which has timed out and stays with the
/// driver.
#[doc(hidden)]
pub trait Failure {
    fn failure(error: io::Error) -> Self;
}

impl<T> Failure for io::Result<T> {
    fn failure(error: io::Error) -> io::Result<T> {
        Err(error)
    }
}

impl<T, B> Failure for Result<T, BufError<B>> {
    fn failure(error: io::Error) -> Result<T, BufError<B>> {
        Err(BufError::new(error, None))
    }
}

/// Returns the error of an exact read that reached the end of the file.
pub(crate) fn ended<B>(bytes: usize, want: usize, buf: B) -> BufError<B> {
    let what = format!("the file ended after {bytes} of {want} bytes");
    BufError::new(
        io::Error::new(io::ErrorKind::UnexpectedEof, what),
        Some(buf),
    )
}

/// Returns the error of a write that stopped early without an error of the kernel.
pub(crate) fn refused<B>(bytes: usize, want: usize, buf: B) -> BufError<B> {
    let what = format!("the file accepted only {bytes} of {want} bytes, without an error");
    BufError::new(io::Error::new(io::ErrorKind::WriteZero, what), Some(buf))
}
