//! Paths of operations: relative to the working directory, or to an open directory.

use std::io;
use std::path::{Path, PathBuf};

use super::{File, path_to_cstring};
use crate::op::At;

/// An open directory, which operations use as the base of paths. Cheap to clone.
///
/// [`at`](Dir::at) returns a path that every operation by path accepts. Its lookup starts at the directory, whatever
/// its name is meanwhile: another process that renames it, or replaces a part of its path by a symbolic link, has no
/// effect. Absolute paths, `..` and symbolic links still leave the directory, except with
/// [`OpenOptions::beneath`](crate::OpenOptions::beneath).
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let temporary = tempfile::tempdir()?; let path = temporary.path();
/// let engine = annulus::Engine::new()?;
/// let dir = engine.open_dir(path).await?;
/// engine.create_dir(dir.at("sub")).await?;
/// engine.write(dir.at("sub/new"), "contents").await?;
/// engine.rename(dir.at("sub/new"), dir.at("file")).await?;
/// dir.file().sync_all().await?;                                   // the names are durable
///
/// let mut options = annulus::OpenOptions::new();
/// let escape = engine.open_with(options.read(true).beneath(true), dir.at("../secret"));
/// assert_eq!(escape.await.unwrap_err().kind(), std::io::ErrorKind::CrossesDevices);
/// # Ok(()) }) }
/// ```
#[derive(Clone, Debug)]
pub struct Dir(File);

impl Dir {
    pub(super) fn new(file: File) -> Dir {
        Dir(file)
    }

    /// Returns a path relative to this directory.
    pub fn at<'a, P: AsRef<Path> + ?Sized>(&'a self, path: &'a P) -> PathIn<'a> {
        PathIn {
            dir: Some(self),
            path: path.as_ref(),
        }
    }

    /// Returns the directory as a file, for its metadata and for [`File::sync_all`], which makes its names durable.
    pub fn file(&self) -> &File {
        &self.0
    }
}

/// A path relative to an open directory, returned by [`Dir::at`].
///
/// Copies of it can be kept as long as the directory:
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// let dir = engine.open_dir(dir.path()).await?;
/// let (new, old) = (dir.at("new"), dir.at("old"));
/// engine.write(new, "contents").await?;
/// engine.rename(new, old).await?;
/// assert_eq!(engine.read_to_string(old).await?, "contents");
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PathIn<'a> {
    /// `None`: the working directory.
    dir: Option<&'a Dir>,
    path: &'a Path,
}

impl<'a> PathIn<'a> {
    pub(crate) fn path(&self) -> &'a Path {
        self.path
    }

    /// Returns another path with the same base.
    pub(crate) fn with<'b>(&self, path: &'b Path) -> PathIn<'b>
    where
        'a: 'b,
    {
        let dir = self.dir;
        PathIn { dir, path }
    }

    /// Returns the path as the target of an operation.
    pub(crate) fn target(&self) -> io::Result<At> {
        let path = path_to_cstring(self.path)?;
        Ok(match self.dir {
            None => At::Path(path),
            Some(dir) => At::In(dir.0.fd.clone(), path),
        })
    }

    /// Returns the path as the target of an operation whose system call takes no directory: it follows the link of the
    /// directory in /proc.
    pub(crate) fn target_in_proc(&self) -> io::Result<At> {
        match self.target()? {
            At::In(_, path) if path.is_empty() => Ok(At::Path(path)),
            At::In(fd, _) if self.path.is_relative() && !fd.is_simulated() => {
                let dir = PathBuf::from(fd.proc_link());
                // An absolute path; the descriptor is only kept open.
                Ok(At::In(fd, path_to_cstring(&dir.join(self.path))?))
            }
            target => Ok(target),
        }
    }
}

/// The path of an operation: anything that is `AsRef<Path>`, relative to the working directory, or a [`PathIn`],
/// relative to an open directory.
///
/// Implemented by this crate only.
///
/// A function of your own that takes the same paths:
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// use annulus::{Engine, fs::OpPath};
///
/// async fn lines(engine: &Engine, path: impl OpPath) -> std::io::Result<usize> {
///     Ok(engine.read_to_string(path).await?.lines().count())
/// }
/// # std::fs::write(dir.path().join("file"), "one\ntwo\n")?;
/// let open = engine.open_dir(dir.path()).await?;
/// assert_eq!(lines(&engine, open.at("file")).await?, 2);
/// assert_eq!(lines(&engine, dir.path().join("file")).await?, 2);
/// # Ok(()) }) }
/// ```
pub trait OpPath: sealed::Sealed {
    /// Returns the path with its base.
    fn path_in(&self) -> PathIn<'_>;
}

impl<P: AsRef<Path> + ?Sized> OpPath for P {
    fn path_in(&self) -> PathIn<'_> {
        PathIn {
            dir: None,
            path: self.as_ref(),
        }
    }
}

impl OpPath for PathIn<'_> {
    fn path_in(&self) -> PathIn<'_> {
        *self
    }
}

mod sealed {
    pub trait Sealed {}
    impl<P: AsRef<std::path::Path> + ?Sized> Sealed for P {}
    impl Sealed for super::PathIn<'_> {}
}
