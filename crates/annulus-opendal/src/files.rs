//! The files below the root: paths, metadata and user metadata.

use std::io::{self, ErrorKind as IoKind};
use std::path::{Component, Path, PathBuf};

use annulus::Engine;
use annulus::fs::Metadata as FileMetadata;
use opendal_core::raw::{Timestamp, new_std_io_error};
use opendal_core::{EntryMode, Error, ErrorKind, Metadata, MetadataBuilder, Result};

/// The namespace of extended attributes that every user may write.
const USER: &str = "user.";

/// Keys and values that a caller has given to a file.
pub(crate) type UserMetadata = Vec<(String, String)>;

#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) engine: Engine,
    pub(crate) root: PathBuf,
    /// The folder in which files are written before they get their names.
    pub(crate) atomic_write_dir: Option<PathBuf>,
}

impl Files {
    /// Returns the path of `path` below the root.
    pub(crate) fn path(&self, path: &str) -> Result<PathBuf> {
        below(&self.root, path)
    }

    pub(crate) async fn create_dir(&self, path: &str) -> Result<()> {
        let path = self.path(path)?;
        self.engine
            .create_dir_all(&path)
            .await
            .map_err(new_std_io_error)
    }

    pub(crate) async fn stat(&self, path: &str) -> Result<Metadata> {
        let path = self.path(path)?;
        let metadata = self
            .engine
            .metadata(&path)
            .await
            .map_err(new_std_io_error)?;
        let mut builder = builder(&metadata)?;
        let user = self.user_metadata(&path).await.map_err(new_std_io_error)?;
        if !user.is_empty() {
            builder.user_metadata(user);
        }
        Ok(builder.build())
    }

    /// Removes a file or a folder. One that does not exist counts as removed.
    pub(crate) async fn delete(&self, path: &str, recursive: bool) -> Result<()> {
        let (engine, path) = (&self.engine, self.path(path)?);
        let removed = match engine.metadata(&path).await {
            Err(error) if error.kind() == IoKind::NotFound => return Ok(()),
            Err(error) => Err(error),
            Ok(metadata) if !metadata.is_dir() => engine.remove_file(&path).await,
            Ok(_) if recursive => engine.remove_dir_all(&path).await,
            Ok(_) => engine.remove_dir(&path).await,
        };
        removed.map_err(new_std_io_error)
    }

    /// Copies a file with its user metadata.
    pub(crate) async fn copy(&self, from: &str, to: &str) -> Result<Metadata> {
        let (from, to) = self.source_and_target(from, to).await?;
        let copy = async {
            let bytes = self.engine.copy(&from, &to).await?;
            let user = self.user_metadata(&from).await.unwrap_or_default();
            self.set_user_metadata(&to, user).await?;
            Ok(bytes)
        };
        let bytes = copy.await.map_err(new_std_io_error)?;
        Ok(MetadataBuilder::file(bytes).build())
    }

    pub(crate) async fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = self.source_and_target(from, to).await?;
        self.engine
            .rename(&from, &to)
            .await
            .map_err(new_std_io_error)
    }

    /// Returns the paths of a copy or a rename. Creates the folder of the target only if the source exists.
    async fn source_and_target(&self, from: &str, to: &str) -> Result<(PathBuf, PathBuf)> {
        let from = self.path(from)?;
        self.engine
            .metadata(&from)
            .await
            .map_err(new_std_io_error)?;
        Ok((from, self.with_folder(&self.root, to).await?))
    }

    /// Returns the path of `path` below `base`, and creates its folder.
    pub(crate) async fn with_folder(&self, base: &Path, path: &str) -> Result<PathBuf> {
        let path = below(base, path)?;
        if let Some(folder) = path.parent() {
            self.engine
                .create_dir_all(folder)
                .await
                .map_err(new_std_io_error)?;
        }
        Ok(path)
    }

    /// Returns the attributes of a file, none if its file system has no attributes.
    async fn user_metadata(&self, path: &Path) -> io::Result<UserMetadata> {
        let names = match self.engine.list_xattrs(path).await {
            Err(error) if error.kind() == IoKind::Unsupported => Vec::new(),
            names => names?,
        };
        let mut user = Vec::new();
        for name in names {
            let Some(key) = name.to_str().and_then(|name| name.strip_prefix(USER)) else {
                continue;
            };
            // The attribute may have been removed, and another program may have stored other bytes.
            let value = self.engine.get_xattr(path, &name).await.ok();
            if let Some(value) = value.and_then(|value| String::from_utf8(value).ok()) {
                user.push((key.to_owned(), value));
            }
        }
        Ok(user)
    }

    pub(crate) async fn set_user_metadata(
        &self,
        path: &Path,
        user: UserMetadata,
    ) -> io::Result<()> {
        for (key, value) in user {
            self.engine
                .set_xattr(path, format!("{USER}{key}"), value)
                .await?;
        }
        Ok(())
    }
}

/// Joins a path of OpenDAL to a folder. Fails if the result might lie outside of it.
fn below(base: &Path, path: &str) -> Result<PathBuf> {
    let relative = Path::new(path.trim_end_matches('/'));
    let is_inside = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    if relative.components().all(is_inside) {
        return Ok(base.join(relative));
    }
    let error = Error::new(ErrorKind::NotFound, "the path leads out of the root");
    Err(error.with_context("path", path))
}

/// Returns the kind, length and time of a file.
pub(crate) fn builder(metadata: &FileMetadata) -> Result<MetadataBuilder> {
    let mut builder = match mode(metadata) {
        EntryMode::FILE => MetadataBuilder::file(metadata.len()),
        EntryMode::DIR => MetadataBuilder::dir(),
        EntryMode::Unknown => MetadataBuilder::unknown(),
    };
    builder.last_modified(Timestamp::try_from(metadata.modified())?);
    Ok(builder)
}

fn mode(metadata: &FileMetadata) -> EntryMode {
    match (metadata.is_file(), metadata.is_dir()) {
        (true, _) => EntryMode::FILE,
        (_, true) => EntryMode::DIR,
        _ => EntryMode::Unknown,
    }
}
