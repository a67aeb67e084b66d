//! Our store with the payload of `LocalFileSystem`: a file. It shows which payload its consumers are faster with.

use std::fmt;
use std::fs::File;

use annulus_object_store::v0_13::LocalFileSystem;
use async_trait::async_trait;
use datafusion::object_store::path::Path;
use datafusion::object_store::{
    CopyOptions, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions,
    Result,
};
use futures_util::stream::BoxStream;

/// A store whose `get` returns an open file. Everything else is as in the store that it contains.
#[derive(Debug)]
pub(crate) struct AsFile {
    store: LocalFileSystem,
}

impl AsFile {
    pub(crate) fn new(store: LocalFileSystem) -> AsFile {
        AsFile { store }
    }
}

impl fmt::Display for AsFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with files", self.store)
    }
}

fn failed(
    error: impl std::error::Error + Send + Sync + 'static,
) -> datafusion::object_store::Error {
    datafusion::object_store::Error::Generic {
        store: "AsFile",
        source: Box::new(error),
    }
}

#[async_trait]
impl ObjectStore for AsFile {
    async fn get_opts(&self, location: &Path, mut options: GetOptions) -> Result<GetResult> {
        if options.head {
            return self.store.get_opts(location, options).await;
        }
        let range = options.range.take();
        options.head = true;
        let mut result = self.store.get_opts(location, options).await?;
        let size = result.meta.size;
        result.range = match range {
            None => 0..size,
            Some(GetRange::Bounded(range)) => range.start.min(size)..range.end.min(size),
            Some(GetRange::Offset(start)) => start.min(size)..size,
            Some(GetRange::Suffix(bytes)) => size.saturating_sub(bytes)..size,
        };
        let path = self.store.path_to_filesystem(location)?;
        let file = File::open(&path).map_err(failed)?;
        result.payload = GetResultPayload::File(file, path);
        Ok(result)
    }

    async fn get_ranges(
        &self,
        location: &Path,
        ranges: &[std::ops::Range<u64>],
    ) -> Result<Vec<bytes::Bytes>> {
        self.store.get_ranges(location, ranges).await
    }

    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.store.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.store.put_multipart_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.store.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.store.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.store.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.store.rename_opts(from, to, options).await
    }
}
