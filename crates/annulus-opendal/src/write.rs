//! Writes of a file: to its end in order, or at offsets, several at a time.

use std::io::{self, ErrorKind as IoKind};
use std::path::PathBuf;
use std::sync::Arc;

use annulus::{File, OpenOptions};
use bytes::Bytes;
use opendal_core::raw::{OpWrite, build_tmp_path_of, new_std_io_error, oio};
use opendal_core::{Buffer, Error, ErrorKind, Executor, Metadata, Result};

use crate::files::{Files, UserMetadata, builder};

/// A writer, which opens its file with the first call.
pub(crate) struct Writer {
    files: Arc<Files>,
    executor: Executor,
    path: String,
    args: OpWrite,
    opened: Option<Way>,
}

enum Way {
    /// Each write waits for the one before.
    Append { target: Target, end: u64 },
    /// Writes at offsets, as many at a time as the caller has set.
    Positions(oio::PositionWriter<Target>),
}

/// An open file, and what is left to do when it is closed.
pub(crate) struct Target {
    files: Arc<Files>,
    file: File,
    path: PathBuf,
    /// The name that the file has until it is complete.
    temporary: Option<PathBuf>,
    /// The file must not replace another one.
    is_new: bool,
    user: UserMetadata,
}

impl Writer {
    pub(crate) fn new(files: Arc<Files>, executor: Executor, path: &str, args: OpWrite) -> Writer {
        Writer {
            files,
            executor,
            path: path.to_owned(),
            args,
            opened: None,
        }
    }

    async fn opened(&mut self) -> Result<&mut Way> {
        let way = match self.opened.take() {
            Some(way) => way,
            None => {
                let target = Target::open(&self.files, &self.path, &self.args).await?;
                if self.args.append() {
                    Way::Append { target, end: 0 }
                } else {
                    let (executor, concurrent) = (self.executor.clone(), self.args.concurrent());
                    Way::Positions(oio::PositionWriter::new(executor, target, concurrent))
                }
            }
        };
        Ok(self.opened.insert(way))
    }
}

impl oio::Write for Writer {
    async fn write(&mut self, buffer: Buffer) -> Result<()> {
        match self.opened().await? {
            Way::Append { target, end } => {
                let bytes = buffer.len() as u64;
                oio::PositionWrite::write_all_at(target, *end, buffer).await?;
                *end += bytes;
                Ok(())
            }
            Way::Positions(writer) => writer.write(buffer).await,
        }
    }

    async fn close(&mut self) -> Result<Metadata> {
        match self.opened().await? {
            Way::Append { target, end } => oio::PositionWrite::close(target, *end).await,
            Way::Positions(writer) => writer.close().await,
        }
    }

    async fn abort(&mut self) -> Result<()> {
        match &mut self.opened {
            // Nothing was written, and a file of this name stays as it is.
            None => Ok(()),
            Some(Way::Append { target, .. }) => oio::PositionWrite::abort(target).await,
            Some(Way::Positions(writer)) => writer.abort().await,
        }
    }
}

impl Target {
    async fn open(files: &Arc<Files>, path: &str, args: &OpWrite) -> Result<Target> {
        let target = files.with_folder(&files.root, path).await?;
        let exists = match files.atomic_write_dir {
            None => false,
            Some(_) => files
                .engine
                .try_exists(&target)
                .await
                .map_err(new_std_io_error)?,
        };
        if exists && args.if_not_exists() {
            return Err(not_new(IoKind::AlreadyExists.into()));
        }
        let mut options = OpenOptions::new();
        options.write(true);
        let mut temporary = None;
        match &files.atomic_write_dir {
            // Appends to a file that exists are made in place.
            Some(folder) if !(exists && args.append()) => {
                let name = build_tmp_path_of(path);
                temporary = Some(files.with_folder(folder, &name).await?);
                options.create_new(true);
            }
            _ => {
                let (is_new, append) = (args.if_not_exists(), args.append());
                options.create(!is_new).create_new(is_new);
                options.append(append).truncate(!append);
            }
        }
        let opened = temporary.as_ref().unwrap_or(&target);
        let file = files
            .engine
            .open_with(&options, opened)
            .await
            .map_err(not_new)?;
        let pairs = args.user_metadata().into_iter().flatten();
        Ok(Target {
            files: Arc::clone(files),
            file,
            path: target,
            temporary,
            is_new: args.if_not_exists(),
            user: pairs
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
        })
    }

    /// Gives the file its user metadata, makes it durable, and gives it its name.
    async fn finish(&self) -> io::Result<annulus::fs::Metadata> {
        let engine = &self.files.engine;
        let written = self.temporary.as_ref().unwrap_or(&self.path);
        self.files
            .set_user_metadata(written, self.user.clone())
            .await?;
        self.file.sync_all().await?;
        match &self.temporary {
            // A plain rename would replace a file that another writer has made since the open. NFS has only links, and
            // FAT has none.
            Some(temporary) if self.is_new => {
                let named = match engine.rename_new(temporary, &self.path).await {
                    Ok(()) => return self.file.metadata().await,
                    Err(error) if error.kind() == IoKind::InvalidInput => {
                        engine.hard_link(temporary, &self.path).await
                    }
                    failed => failed,
                };
                engine.remove_file(temporary).await?;
                named?;
            }
            Some(temporary) => engine.rename(temporary, &self.path).await?,
            None => {}
        }
        self.file.metadata().await
    }
}

/// Converts the error of an open or of a close: a file that must not exist is a condition of OpenDAL.
fn not_new(error: io::Error) -> Error {
    match error.kind() {
        IoKind::AlreadyExists => {
            Error::new(ErrorKind::ConditionNotMatch, "the file exists").set_source(error)
        }
        _ => new_std_io_error(error),
    }
}

impl oio::PositionWrite for Target {
    async fn write_all_at(&self, offset: u64, buffer: Buffer) -> Result<()> {
        let parts: Vec<Bytes> = buffer.filter(|part| !part.is_empty()).collect();
        if parts.is_empty() {
            return Ok(());
        }
        let written = self.file.write_vectored_all_at(parts, offset).await;
        written.map_err(|error| new_std_io_error(error.into()))?;
        Ok(())
    }

    async fn close(&self, _bytes: u64) -> Result<Metadata> {
        let metadata = self.finish().await.map_err(not_new)?;
        Ok(builder(&metadata)?.build())
    }

    async fn abort(&self) -> Result<()> {
        let Some(temporary) = &self.temporary else {
            let what = "a file that is written in place cannot be aborted; set atomic_write_dir";
            return Err(Error::new(ErrorKind::Unsupported, what));
        };
        self.files
            .engine
            .remove_file(temporary)
            .await
            .map_err(new_std_io_error)
    }
}
