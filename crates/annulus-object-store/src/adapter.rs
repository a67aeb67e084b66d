//! The traits of one version of `object_store`. Each version's module compiles this file with its own crate, which
//! `super::object_store` names.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use annulus::Engine;
use annulus::buf::Arena;
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::stream::{self, BoxStream, StreamExt};

use super::object_store::path::Path;
use super::object_store::{
    CopyMode, CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, RenameOptions, RenameTargetMode, Result, UploadPart,
};
use crate::error::Failure;
use crate::group;
use crate::list::{self, Location};
use crate::names::{Name, Root};
use crate::open_files::Opened;
use crate::read::{self, Memory, SHORT_BYTES};
use crate::stat::Stat;
use crate::store::Store;
use crate::upload::Upload;
use crate::write::Existing;

/// The number of deletions of a stream in flight, as in `LocalFileSystem`. A caller that stops at an error has asked
/// for no more deletions.
const DELETES: usize = 10;

/// An object store of local files, to use in place of `object_store::local::LocalFileSystem`.
///
/// It has the constructors of `LocalFileSystem` and returns the same results, errors and ETags. Both can use one
/// folder, one after the other or together. Differences:
///
/// - A range of at most 1 MiB is read before [`get_opts`](ObjectStore::get_opts) returns. Longer ranges are a stream
///   that reads ahead. The payload is always a stream, never a file.
/// - [`get_ranges`](ObjectStore::get_ranges) is one batch of reads. Ranges that touch share a read of up to 1 MiB. From
///   16 MiB on, up to four workers of the Tokio runtime share the batch.
/// - Files stay open between calls; see [`with_open_files`](LocalFileSystem::with_open_files).
/// - An upload whose parts were not all written cannot be completed. `LocalFileSystem` publishes it with holes.
///
/// Reads use an [`Engine`], and so do changes of few calls, such as a rename. By default all stores of the process
/// share one with the default settings; those that a forked child makes share one of the child. Listings and other
/// changes are system calls on Tokio's blocking threads. Outside a Tokio runtime they run on the calling thread.
/// Objects on FUSE, network file systems and overlayfs are read on blocking threads of the store. A store with an
/// engine on a simulated kernel makes all its calls there.
///
/// Cheap to clone. Clones share the open files; a clone with another number of them, time or engine keeps its own, and
/// changes through one are found by the others at once.
#[derive(Clone, Debug)]
pub struct LocalFileSystem {
    store: Store,
}

impl LocalFileSystem {
    /// Returns a store of the whole file system: the object `a/b` is the file `/a/b`.
    pub fn new() -> LocalFileSystem {
        let store = Store::new(Root::everything());
        LocalFileSystem { store }
    }

    /// Returns a store of the files below `prefix`, an existing folder.
    ///
    /// # Errors
    ///
    /// Fails if the folder does not exist or cannot be accessed.
    pub fn new_with_prefix(prefix: impl AsRef<std::path::Path>) -> Result<LocalFileSystem> {
        let store = Store::new(Root::folder(prefix.as_ref())?);
        Ok(LocalFileSystem { store })
    }

    /// Returns the path of an object's file.
    ///
    /// # Errors
    ///
    /// Fails for locations that cannot be objects: an empty one, and names that end in `#` and digits.
    pub fn path_to_filesystem(&self, location: &Path) -> Result<PathBuf> {
        Ok(self.store.root.object(location.as_ref())?)
    }

    /// Sets whether a deletion also removes the folders that become empty. The default is `false`.
    #[must_use]
    pub fn with_automatic_cleanup(mut self, automatic_cleanup: bool) -> Self {
        self.store.automatic_cleanup = automatic_cleanup;
        self
    }

    /// Sets whether changes are durable when they return: after a crash of the machine, the new version is there. The
    /// default is `false`. As in `LocalFileSystem`, deletions are not covered.
    ///
    /// The order is: the file, its publication, its folder. New folders are made durable up to the first that existed.
    #[must_use]
    pub fn with_fsync(mut self, fsync: bool) -> Self {
        self.store.fsync = fsync;
        self
    }

    /// Sets the engine for reads, for example with other limits, or to count the reads in its metrics.
    #[must_use]
    pub fn with_engine(mut self, engine: Engine) -> Self {
        self.store.set_engine(engine);
        self
    }

    /// Sets how many files may stay open between calls; 256 by default, and 0 for none. If the process has no
    /// descriptor left for a call of this store, the store closes these files and tries again.
    ///
    /// A file is used again only if it is still the file at its path. Each access compares the two, unless
    /// [`with_revalidation`](LocalFileSystem::with_revalidation) sets a time.
    ///
    /// The space of a file that another program has deleted stays in use while the file is open. An access to the
    /// object closes it, and so does [`close_files`](LocalFileSystem::close_files). Call that also before you unmount
    /// the file system, and after the process has given up rights.
    #[must_use]
    pub fn with_open_files(mut self, max: usize) -> Self {
        let trusted = self.store.files.trusted();
        self.store.set_open_files(max, trusted);
        self
    }

    /// Sets the time after which an open file is compared with its path again, to find changes of other programs. The
    /// default is zero: each access compares, which costs one `statx`.
    ///
    /// Changes through this store and its clones are always found at once.
    #[must_use]
    pub fn with_revalidation(mut self, after: Duration) -> Self {
        let max = self.store.files.max();
        self.store.set_open_files(max, after);
        self
    }

    /// Sets an arena of the engine, whose buffers receive the bytes of reads. The returned `Bytes` are these buffers,
    /// without a copy, and return them when the last slice is dropped.
    ///
    /// `reserved` buffers always stay free, so a program that keeps its slices does not starve other users of the
    /// arena. Reads use the heap while no more are free, and reads that are longer than a buffer always do; see
    /// [`heap_reads`](LocalFileSystem::heap_reads).
    #[must_use]
    pub fn with_arena(mut self, arena: Arena, reserved: usize) -> Self {
        self.store.memory = Arc::new(Memory::of_arena(arena, reserved));
        self
    }

    /// Returns the number of reads that used the heap although the store has an arena.
    pub fn heap_reads(&self) -> u64 {
        self.store.memory.heap_reads()
    }

    /// Closes the files that this store and its clones keep open between calls. Files of reads in progress close when
    /// these end.
    pub fn close_files(&self) {
        self.store.files.close();
    }

    /// Removes the staged files of uploads that a crash has left, and returns their number. Listings never show these
    /// files. Call it when a program starts. The staged files of object_store's `LocalFileSystem` stay.
    ///
    /// `age` protects the uploads of other programs: files that were written to more recently stay.
    ///
    /// # Errors
    ///
    /// Fails if a folder cannot be listed, or a file cannot be removed.
    pub async fn remove_staged(&self, age: Duration) -> Result<u64> {
        let (store, folder) = (&self.store, self.store.root.path());
        let remove = move |store: Store| async move { store.remove_staged(age).await };
        Ok(store.change(&[folder], false, remove).await?)
    }

    fn unsupported(&self, operation: &str) -> Error {
        Error::NotImplemented {
            operation: operation.to_owned(),
            implementer: self.to_string(),
        }
    }

    /// Returns the path of a prefix.
    fn folder(&self, prefix: Option<&Path>) -> Result<PathBuf> {
        let prefix = prefix.map_or("", AsRef::as_ref);
        Ok(self.store.root.prefix(prefix)?)
    }

    fn listing(
        &self,
        prefix: Option<&Path>,
        after: Option<&Path>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.folder(prefix) {
            Ok(folder) => list::objects(&self.store, folder, after.cloned(), meta),
            Err(error) => stream::iter([Err(error)]).boxed(),
        }
    }
}

impl Default for LocalFileSystem {
    fn default() -> LocalFileSystem {
        LocalFileSystem::new()
    }
}

impl fmt::Display for LocalFileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "annulus::LocalFileSystem({})", self.store.root.url())
    }
}

#[async_trait]
impl ObjectStore for LocalFileSystem {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let existing = match opts.mode {
            PutMode::Overwrite => Existing::Replace,
            PutMode::Create => Existing::Keep,
            PutMode::Update(_) => {
                return Err(self.unsupported("`put_opts` with mode `PutMode::Update`"));
            }
        };
        if !opts.attributes.is_empty() {
            return Err(self.unsupported("`put_opts` with `opts.attributes`"));
        }
        let path = self.path_to_filesystem(location)?;
        let contents: Vec<Bytes> = payload.into_iter().collect();
        let stat = group::put(&self.store, path, contents, existing).await?;
        Ok(super::put_result(e_tag(&stat)))
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        if !opts.attributes.is_empty() {
            return Err(self.unsupported("`put_multipart_opts` with `opts.attributes`"));
        }
        let path = self.path_to_filesystem(location)?;
        let upload = Upload::start(self.store.clone(), path).await?;
        Ok(Box::new(LocalUpload { upload }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let path = self.path_to_filesystem(location)?;
        let opened = self.store.open_object(&path).await?;
        let meta = meta((location.clone(), opened.stat));
        options.check_preconditions(&meta)?;
        let range = match &options.range {
            None => 0..meta.size,
            Some(range) => range
                .as_range(meta.size)
                .map_err(|error| Failure::invalid("read", &path, error.to_string()))?,
        };
        let bytes = range.end - range.start;
        let content = if options.head || bytes > SHORT_BYTES {
            let memory = Arc::clone(&self.store.memory);
            let chunks = read::stream(opened.file, path.into(), memory, range.clone());
            chunks.map(|chunk| Ok(chunk?)).boxed()
        } else {
            let memory = &self.store.memory;
            let content = read::range(&opened.file, &path, memory, range.clone()).await?;
            stream::iter((bytes > 0).then_some(Ok(content))).boxed()
        };
        // A stream also where `LocalFileSystem` returns a file. DataFusion, which reads a file with its own calls,
        // scans JSON in 1.12 (1.01–1.15) of the time of a stream, and no scan of CSV or JSON is faster with a file
        // (runs/2026-11-26-datafusion).
        Ok(super::get_result(
            GetResultPayload::Stream(content),
            meta,
            range,
        ))
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let path = self.path_to_filesystem(location)?;
        let Opened { file, stat } = self.store.open(&path).await?;
        Ok(read::ranges(&file, &path, &self.store.memory, stat.bytes, ranges).await?)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let store = self.store.clone();
        locations
            .map(move |location| {
                let store = store.clone();
                async move {
                    let location = location?;
                    let path = store.root.object(location.as_ref())?;
                    let at = path.clone();
                    let delete = |store: Store| async move { store.delete(&at, false).await };
                    store.change(&[&path], true, delete).await?;
                    Ok(location)
                }
            })
            .buffered(DELETES)
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listing(prefix, None)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listing(prefix, Some(offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let level = list::level(&self.store, self.folder(prefix)?);
        let (prefixes, objects) = level.await?;
        let objects = objects.into_iter().map(meta).collect();
        Ok(super::list_result(prefixes.into_iter().collect(), objects))
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let existing = match options.mode {
            CopyMode::Overwrite => Existing::Replace,
            CopyMode::Create => Existing::Keep,
        };
        let from = self.path_to_filesystem(from)?;
        let to = self.path_to_filesystem(to)?;
        let paths = (from.clone(), to.clone());
        let copy =
            move |store: Store| async move { store.copy(&paths.0, &paths.1, existing).await };
        Ok(self.store.change(&[&from, &to], true, copy).await?)
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let from = self.path_to_filesystem(from)?;
        let to = self.path_to_filesystem(to)?;
        let paths = (from.clone(), to.clone());
        let rename = move |store: Store| async move {
            let (from, to) = paths;
            match options.target_mode {
                RenameTargetMode::Overwrite => store.replace(&from, &to).await,
                RenameTargetMode::Create => {
                    store.copy(&from, &to, Existing::Keep).await?;
                    store.delete(&from, true).await
                }
            }
        };
        Ok(self.store.change(&[&from, &to], true, rename).await?)
    }
}

/// A multipart upload of a [`LocalFileSystem`].
#[derive(Debug)]
struct LocalUpload {
    upload: Upload,
}

#[async_trait]
impl MultipartUpload for LocalUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let part = self.upload.part(data.into_iter().collect());
        part.map(|result| Ok(result?)).boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        Ok(super::put_result(e_tag(&self.upload.complete().await?)))
    }

    async fn abort(&mut self) -> Result<()> {
        Ok(self.upload.abort().await?)
    }
}

impl Location for Path {
    type Error = Error;

    fn parse(name: Name) -> Result<Path> {
        Ok(match name {
            Name::Plain(name) => Path::parse(name)?,
            Name::Encoded(name) => Path::from_url_path(name)?,
        })
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        match failure {
            Failure::NotFound { path, source } => Error::NotFound {
                path: path.to_string_lossy().into_owned(),
                source: source.into(),
            },
            Failure::AlreadyExists { path, source } => Error::AlreadyExists {
                path: path.to_string_lossy().into_owned(),
                source: source.into(),
            },
            Failure::Other(failed) => Error::Generic {
                store: "annulus::LocalFileSystem",
                source: failed.into(),
            },
        }
    }
}

fn e_tag(stat: &Stat) -> Option<String> {
    Some(super::quoted(stat.e_tag()))
}

fn meta((location, stat): (Path, Stat)) -> ObjectMeta {
    ObjectMeta {
        location,
        last_modified: stat.modified.into(),
        size: stat.bytes,
        e_tag: e_tag(&stat),
        version: None,
    }
}
