//! Options for opening a file.

use std::io;
use std::path::Path;

use super::file::File;
use super::process::{of_process, run_blocking};
use crate::fs::OpenOptions as Options;

/// Options for opening a [`File`], with the meaning of those of std.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// # let dir = tempfile::tempdir()?; let path = dir.path().join("log");
/// use annulus::tokio::fs::OpenOptions;
/// use tokio::io::AsyncWriteExt;
///
/// for line in ["one\n", "two\n"] {
///     let mut log = OpenOptions::new().append(true).create(true).open(&path).await?;
///     log.write_all(line.as_bytes()).await?;
///     log.flush().await?; // reports errors of the write
/// }
/// assert_eq!(annulus::tokio::fs::read(&path).await?, b"one\ntwo\n");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct OpenOptions(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Own(Options),
    /// Only std can read them.
    Std(std::fs::OpenOptions),
}

/// Methods that set an option of either kind.
macro_rules! setters {
    ($($(#[$meta:meta])* $name:ident: $type:ty,)*) => {
        $($(#[$meta])*
        pub fn $name(&mut self, $name: $type) -> &mut OpenOptions {
            match &mut self.0 {
                Kind::Own(options) => _ = options.$name($name),
                Kind::Std(options) => _ = options.$name($name),
            }
            self
        })*
    };
}

impl OpenOptions {
    /// Creates options with nothing set. Set at least one of `read`, `write` and `append`.
    #[allow(clippy::new_without_default, reason = "implemented below, as in Tokio")]
    pub fn new() -> OpenOptions {
        OpenOptions(Kind::Own(Options::new()))
    }

    setters! {
        /// Opens for reading.
        read: bool,
        /// Opens for writing. Without `truncate`, a write replaces only the bytes at its position.
        write: bool,
        /// Opens for appending: each write goes to the end of the file, whatever the position.
        append: bool,
        /// Truncates the file to length 0. Needs `write`.
        truncate: bool,
        /// Creates the file if it does not exist. Needs `write` or `append`.
        create: bool,
        /// Creates the file, and fails if it exists. Needs `write` or `append`.
        create_new: bool,
    }

    /// Opens the file.
    ///
    /// The calling thread opens an existing file without a driver if the kernel has the path of a local file system in
    /// its cache.
    ///
    /// # Errors
    ///
    /// Fails with any error of `open(2)`, unchanged (`ENOENT`), and with `InvalidInput` if options conflict.
    pub async fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        match &self.0 {
            Kind::Own(options) => {
                let file = of_process().open_with(options, path.as_ref()).await?;
                Ok(File::at_start(file))
            }
            Kind::Std(options) => {
                let (options, path) = (options.clone(), path.as_ref().to_owned());
                let file = run_blocking(move || options.open(path)).await?;
                Ok(File::from_std(file))
            }
        }
    }
}

#[cfg(unix)]
mod unix {
    use std::os::unix::fs::OpenOptionsExt;

    use super::{Kind, OpenOptions};

    impl OpenOptions {
        setters! {
            /// Sets the permission bits of a new file, less the umask of the process; 0o666 by default.
            mode: u32,
            /// Sets further `O_*` flags. Access-mode bits are ignored.
            custom_flags: i32,
        }
    }
}

#[cfg(windows)]
mod windows {
    use std::os::windows::fs::OpenOptionsExt;

    use super::{Kind, OpenOptions};

    impl OpenOptions {
        setters! {
            /// Replaces the access that `read`, `write` and `append` ask for: `dwDesiredAccess` of `CreateFile`.
            access_mode: u32,
            /// Sets which other opens are allowed: `dwShareMode`.
            share_mode: u32,
            /// Sets further flags: `dwFlags`.
            custom_flags: u32,
            /// Sets the attributes of a new file: `dwFileAttributes`.
            attributes: u32,
            /// Sets what the server of a named pipe may do in the name of this process: `dwSecurityQosFlags`.
            security_qos_flags: u32,
        }
    }
}

/// Takes options of std. A blocking thread then opens the file.
impl From<std::fs::OpenOptions> for OpenOptions {
    fn from(options: std::fs::OpenOptions) -> OpenOptions {
        OpenOptions(Kind::Std(options))
    }
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions::new()
    }
}
