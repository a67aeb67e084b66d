//! Options for opening a file, and paths.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::File;
use crate::driver::{Operation, Submitter};
use crate::op::OpenAt;
use crate::sys::engine_error::EngineError;

/// Options for opening a file, like those of std. All are off at first.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    options: std::fs::OpenOptions,
    appends: bool,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions::new()
    }
}

/// Implements options that std has under the same name.
macro_rules! options_of_std {
    ($($name:ident: $about:literal,)*) => {
        $(
            #[doc = $about]
            pub fn $name(&mut self, enabled: bool) -> &mut Self {
                self.options.$name(enabled);
                self
            }
        )*
    };
}

/// Implements those that are numbers, and exist on Windows only.
macro_rules! options_of_windows {
    ($($name:ident: $about:literal,)*) => {
        $(
            #[doc = $about]
            #[cfg(windows)]
            pub fn $name(&mut self, $name: u32) -> &mut Self {
                std::os::windows::fs::OpenOptionsExt::$name(&mut self.options, $name);
                self
            }
        )*
    };
}

impl OpenOptions {
    /// Returns options that are all off.
    pub fn new() -> OpenOptions {
        OpenOptions {
            options: std::fs::OpenOptions::new(),
            appends: false,
        }
    }

    options_of_std! {
        read: "Opens for reading.",
        write: "Opens for writing.",
        truncate: "Removes the contents. Needs `write`.",
        create: "Creates the file if it does not exist. Needs `write` or `append`.",
        create_new: "Creates the file, and fails if it exists. Needs `write` or `append`.",
    }

    /// Opens for writes at the end of the file, whatever their offset.
    pub fn append(&mut self, append: bool) -> &mut Self {
        self.options.append(append);
        self.appends = append;
        self
    }

    /// Sets the permissions of a created file; `0o666` by default, less the umask. Windows ignores it.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut self.options, mode);
        let _ = mode;
        self
    }

    /// Adds flags of `open(2)`.
    #[cfg(unix)]
    pub fn custom_flags(&mut self, flags: i32) -> &mut Self {
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut self.options, flags);
        self
    }

    options_of_windows! {
        access_mode: "Replaces the access that `read`, `write` and `append` ask for.",
        share_mode: "Sets which other opens are allowed.",
        custom_flags: "Sets further flags of `CreateFile`.",
        attributes: "Sets the attributes of a new file.",
        security_qos_flags: "Sets what the server of a named pipe may do in the name of this process.",
    }

    pub(crate) fn open<'a>(&self, submitter: &'a Arc<Submitter>, path: PathIn<'_>) -> Opening<'a> {
        let (options, appends, path) = (self.options.clone(), self.appends, path.to_owned());
        // A job must not end the submitter that runs it.
        let weak = Arc::downgrade(submitter);
        submitter.op(move || {
            let file = options.open(path)?;
            let submitter = weak.upgrade().ok_or(EngineError::Ended)?;
            Ok(File::new(file, &submitter, appends))
        })
    }
}

/// A file that is being opened.
pub type Opening<'a> = Operation<'a, OpenAt, io::Result<File>>;

/// A path. Linux also has paths in open directories.
pub type PathIn<'a> = &'a Path;

/// The path of an operation: anything that is `AsRef<Path>`. Implemented by this crate only.
pub trait OpPath: sealed::Sealed {
    /// Returns the path.
    fn path_in(&self) -> PathIn<'_>;
}

impl<P: AsRef<Path> + ?Sized> OpPath for P {
    fn path_in(&self) -> PathIn<'_> {
        self.as_ref()
    }
}

mod sealed {
    pub trait Sealed {}
    impl<P: AsRef<std::path::Path> + ?Sized> Sealed for P {}
}
