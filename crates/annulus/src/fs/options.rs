//! Options for opening a file: those of std, and direct I/O.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::{File, PathIn};
use crate::driver::{Operation, Submitter};
use crate::fd::CachedReads;
use crate::op::{At, OpenAt};
use crate::sys::call;

/// Options for [`Engine::open_with`](crate::Engine::open_with).
///
/// The options, defaults and conflicts are those of [`std::fs::OpenOptions`]. [`direct`](OpenOptions::direct) and
/// [`cached_reads`](OpenOptions::cached_reads) are additions.
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?; let path = dir.path().join("data");
/// use annulus::OpenOptions;
/// use annulus::buf::AlignedBuf;
///
/// let engine = annulus::Engine::new()?;
/// let mut options = OpenOptions::new();
/// options.read(true).write(true).create(true);
/// let file = engine.open_with(&options, &path).await?;
/// file.write_all_at(vec![7; 8192], 0).await?;
///
/// // Direct I/O bypasses the page cache. Aligned memory avoids a copy.
/// let file = engine.open_with(OpenOptions::new().read(true).direct(true), &path).await?;
/// let alignment = file.direct_alignment().map_or(4096, |alignment| alignment.memory_bytes);
/// let page = file.read_exact_at(AlignedBuf::with_len(4096, alignment), 4096).await?;
/// assert_eq!(page[0], 7);
/// # Ok(()) }) }
/// ```
#[derive(Clone, Debug)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    direct: bool,
    uncached: bool,
    beneath: bool,
    mode: u32,
    custom_flags: u32,
    cached_reads: CachedReads,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions::new()
    }
}

impl OpenOptions {
    /// Creates options with nothing set. Set at least one of `read`, `write` and `append`.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// // An access mode must be set; `create` is none.
    /// let error = engine.open_with(annulus::OpenOptions::new().create(true), dir.path().join("new"));
    /// assert_eq!(error.await.unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    /// # Ok(()) }) }
    /// ```
    pub fn new() -> OpenOptions {
        OpenOptions {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            direct: false,
            uncached: false,
            beneath: false,
            mode: 0o666,
            custom_flags: 0,
            cached_reads: CachedReads::Learn,
        }
    }

    /// Opens for reading.
    pub fn read(&mut self, read: bool) -> &mut Self {
        self.read = read;
        self
    }

    /// Opens for writing.
    pub fn write(&mut self, write: bool) -> &mut Self {
        self.write = write;
        self
    }

    /// Opens for appending. On Linux, writes at an offset also append to such a file, whatever the offset.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("log");
    /// let log = engine.open_with(annulus::OpenOptions::new().append(true).create(true), &path).await?;
    /// log.write_all_at("one ", 0).await?;
    /// log.write_all_at("two", 0).await?; // the offset has no effect
    /// assert_eq!(engine.read_to_string(&path).await?, "one two");
    /// # Ok(()) }) }
    /// ```
    pub fn append(&mut self, append: bool) -> &mut Self {
        self.append = append;
        self
    }

    /// Truncates the file to length 0. Needs `write`.
    ///
    /// Without it, the end of a longer old file stays:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, "0123456789")?;
    /// let file = engine.open_with(annulus::OpenOptions::new().write(true).create(true), &path).await?;
    /// file.write_all_at("new", 0).await?;
    /// assert_eq!(engine.read_to_string(&path).await?, "new3456789");
    /// # Ok(()) }) }
    /// ```
    pub fn truncate(&mut self, truncate: bool) -> &mut Self {
        self.truncate = truncate;
        self
    }

    /// Creates the file if it does not exist. Needs `write` or `append`.
    pub fn create(&mut self, create: bool) -> &mut Self {
        self.create = create;
        self
    }

    /// Creates the file, and fails if it exists. Needs `write` or `append`.
    ///
    /// Of several processes that try, exactly one succeeds:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("lock");
    /// let mut options = annulus::OpenOptions::new();
    /// options.write(true).create_new(true);
    /// let first = engine.open_with(&options, &path).await?;
    /// let error = engine.open_with(&options, &path).await.unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
    /// # drop(first);
    /// # Ok(()) }) }
    /// ```
    pub fn create_new(&mut self, create_new: bool) -> &mut Self {
        self.create_new = create_new;
        self
    }

    /// Bypasses the page cache (`O_DIRECT`). [`File::direct_alignment`] returns the alignment that transfers then need.
    /// The open fails with `EINVAL` if the file system does not support direct I/O. Linux only.
    ///
    /// A read need not be aligned, a write must be. Some file systems refuse the open:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, vec![7; 8192])?;
    /// use std::io::ErrorKind::InvalidInput;
    ///
    /// let mut options = annulus::OpenOptions::new();
    /// let file = match engine.open_with(options.read(true).write(true).direct(true), &path).await {
    ///     Err(error) if error.kind() == InvalidInput => return Ok(()), // use the page cache instead
    ///     file => file?,
    /// };
    /// let (bytes, _) = file.read_at(vec![0; 100], 50).await?; // read through memory of the engine
    /// assert_eq!(bytes, 100);
    /// let error = file.write_at(vec![8; 100], 50).await.unwrap_err();
    /// assert_eq!(error.error().kind(), InvalidInput); // it says which number is not aligned
    /// # Ok(()) }) }
    /// ```
    pub fn direct(&mut self, direct: bool) -> &mut Self {
        self.direct = direct;
        self
    }

    /// Makes reads and writes drop the pages that they bring into the page cache (`RWF_DONTCACHE`). A scan or a backup
    /// then does not evict the data that the program reads again and again. Pages that are in the cache already are
    /// used, and stay. Transfers need no alignment, unlike those of [`direct`](OpenOptions::direct). Linux only.
    ///
    /// Since Linux 6.14, for file systems such as ext4. Where the kernel or the file system refuses, the file uses
    /// ordinary reads and writes, and [`File::uncached_support`] returns the reason.
    ///
    /// - A write starts its writeback, after which the kernel drops the pages. On ext4, pages that overwrite allocated
    ///   blocks stay (observed on 6.18) until they are read uncached, or another program needs memory.
    /// - With `direct`, transfers do not use the page cache, and this option has no effect.
    /// - [`File::copy_range_to`] copies as without the option.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, vec![7; 100_000])?;
    /// let mut options = annulus::OpenOptions::new();
    /// let file = engine.open_with(options.read(true).uncached(true), &path).await?;
    /// let all = file.read_exact_at(vec![0; 100_000], 0).await?;
    /// if let Err(reason) = file.uncached_support() {
    ///     eprintln!("{reason}"); // for example: tmpfs refuses
    /// }
    /// # assert_eq!(all[99_999], 7);
    /// # Ok(()) }) }
    /// ```
    pub fn uncached(&mut self, uncached: bool) -> &mut Self {
        self.uncached = uncached;
        self
    }

    /// Makes the open fail with `EXDEV` if the lookup leaves the directory that the path is relative to: by `..`, by an
    /// absolute path, or by a symbolic link (`RESOLVE_BENEATH`). Use it with a path of [`Dir::at`](super::Dir::at) that
    /// comes from elsewhere, for example from an archive. Since Linux 5.6; before that, `ENOSYS`. Linux only.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # std::os::unix::fs::symlink("/etc/passwd", dir.path().join("link"))?;
    /// let dir = engine.open_dir(dir.path()).await?;
    /// let mut options = annulus::OpenOptions::new();
    /// options.read(true).beneath(true);
    /// for name in ["link", "/etc/passwd", "../x"] { // as an archive may contain them
    ///     let error = engine.open_with(&options, dir.at(name)).await.unwrap_err();
    ///     assert_eq!(error.kind(), std::io::ErrorKind::CrossesDevices);
    /// }
    /// # Ok(()) }) }
    /// ```
    pub fn beneath(&mut self, beneath: bool) -> &mut Self {
        self.beneath = beneath;
        self
    }

    /// Sets how reads of the file use the page cache before they go to a driver; [`CachedReads::Learn`] by default. See
    /// [`File::set_cached_reads`]. Linux only.
    ///
    /// A scan of a file that is certainly not in memory need not try the page cache first:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, "0123")?;
    /// use annulus::fs::CachedReads;
    ///
    /// let mut options = annulus::OpenOptions::new();
    /// options.read(true).cached_reads(CachedReads::Never);
    /// let file = engine.open_with(&options, &path).await?;
    /// assert_eq!(file.read_at(vec![0; 16], 0).await?.0, 4); // only the way differs, not the result
    /// # Ok(()) }) }
    /// ```
    pub fn cached_reads(&mut self, policy: CachedReads) -> &mut Self {
        self.cached_reads = policy;
        self
    }

    /// Sets the permission bits of a new file, less the umask of the process; 0o666 by default.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("key");
    /// let mut options = annulus::OpenOptions::new();
    /// options.write(true).create(true).mode(0o600);
    /// engine.open_with(&options, &path).await?;
    /// // For a file that exists, the mode has no effect.
    /// engine.open_with(options.mode(0o644), &path).await?;
    /// assert_eq!(engine.metadata(&path).await?.mode(), 0o600);
    /// # Ok(()) }) }
    /// ```
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = mode;
        self
    }

    /// Sets further `O_*` flags, like std's `OpenOptionsExt::custom_flags`. Access-mode bits are ignored.
    ///
    /// An open that does not change the time of the last read:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, "0123")?;
    /// const O_NOATIME: i32 = 0o1000000; // of the crate `libc`
    /// let mut options = annulus::OpenOptions::new();
    /// options.read(true).custom_flags(O_NOATIME);
    /// let file = engine.open_with(&options, &path).await?; // `EPERM` for the file of another user
    /// # assert_eq!(file.metadata().await?.len(), 4);
    /// # Ok(()) }) }
    /// ```
    pub fn custom_flags(&mut self, flags: i32) -> &mut Self {
        self.custom_flags = flags.cast_unsigned() & !call::O_ACCMODE;
        self
    }

    /// Returns the flags for `open(2)`, or an error if options conflict.
    pub(crate) fn flags(&self) -> io::Result<u32> {
        let access = match (self.read, self.write, self.append) {
            (true, false, false) => call::O_RDONLY,
            (false, true, false) => call::O_WRONLY,
            (true, true, false) => call::O_RDWR,
            (false, _, true) => call::O_WRONLY | call::O_APPEND,
            (true, _, true) => call::O_RDWR | call::O_APPEND,
            (false, false, false) => {
                return Err(invalid("no access mode: set read, write or append"));
            }
        };
        let writable = self.write || self.append;
        if !writable && (self.truncate || self.create || self.create_new) {
            return Err(invalid(
                "truncate, create and create_new need write or append",
            ));
        }
        if self.append && self.truncate && !self.create_new {
            return Err(invalid("append and truncate conflict; set only one"));
        }
        let creation = match (self.create, self.truncate, self.create_new) {
            (_, _, true) => call::O_CREAT | call::O_EXCL,
            (true, true, false) => call::O_CREAT | call::O_TRUNC,
            (true, false, false) => call::O_CREAT,
            (false, true, false) => call::O_TRUNC,
            (false, false, false) => 0,
        };
        let direct = if self.direct { call::O_DIRECT } else { 0 };
        Ok(call::O_CLOEXEC | access | creation | direct | self.custom_flags)
    }

    pub(crate) fn open<'a>(&self, submitter: &'a Arc<Submitter>, path: PathIn<'_>) -> Opening<'a> {
        self.open_at(submitter, path.target())
    }

    pub(crate) fn open_at<'a>(
        &self,
        submitter: &'a Arc<Submitter>,
        at: io::Result<At>,
    ) -> Opening<'a> {
        self.open_or_attempt(submitter, at, submitter.serves())
    }

    /// Opens a file that the caller's thread has failed to open without blocking.
    pub(crate) fn open_by_driver<'a>(
        &self,
        submitter: &'a Arc<Submitter>,
        path: PathIn<'_>,
    ) -> Opening<'a> {
        self.open_or_attempt(submitter, path.target(), false)
    }

    /// `attempted`: the caller's thread first tries to open the file without blocking.
    fn open_or_attempt<'a>(
        &self,
        submitter: &'a Arc<Submitter>,
        at: io::Result<At>,
        attempted: bool,
    ) -> Opening<'a> {
        let op = self.flags().and_then(|flags| {
            // The kernel uses the mode only when it creates a file: O_CREAT, O_TMPFILE.
            let mut open = OpenAt::new(at?, flags, self.mode, submitter.closer.clone());
            if self.beneath {
                open = open.beneath();
            }
            Ok(match attempted {
                true => open.attempted(),
                false => open,
            })
        });
        Opening {
            submitter,
            cached_reads: self.cached_reads,
            uncached: self.uncached,
            operation: match op {
                Ok(op) => Operation::new(submitter, op),
                Err(error) => Operation::ready(submitter, Err(error)),
            },
        }
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

/// Converts a path, or the name of an attribute, for the kernel.
pub(crate) fn path_to_cstring(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| invalid("the path or name contains a NUL byte"))
}

/// The future of an open. Returns the [`File`]. If it is dropped, a descriptor that arrives later is closed. A file
/// that the open has created remains.
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// # let path = dir.path().join("data"); std::fs::write(&path, "0123")?;
/// use std::time::Duration;
///
/// // A network file system may not respond. The descriptor of an open that succeeds too late is closed.
/// let file = engine.open(&path).timeout(Duration::from_secs(30)).await?;
/// # assert_eq!(file.metadata().await?.len(), 4);
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
#[must_use = "an operation does nothing until it is awaited"]
pub struct Opening<'a> {
    submitter: &'a Arc<Submitter>,
    cached_reads: CachedReads,
    uncached: bool,
    operation: Operation<'a, OpenAt>,
}

impl Opening<'_> {
    /// Limits the open to `timeout` from its first poll on; see [`Operation::timeout`](crate::Operation::timeout).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.operation = self.operation.timeout(timeout);
        self
    }
}

impl Future for Opening<'_> {
    type Output = io::Result<File>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<File>> {
        let opened = ready!(Pin::new(&mut self.operation).poll(context))?;
        let file = File::new(opened, Arc::clone(self.submitter))?;
        file.set_cached_reads(self.cached_reads);
        if self.uncached {
            file.fd.request_uncached(file.direct.is_some());
        }
        Poll::Ready(Ok(file))
    }
}
