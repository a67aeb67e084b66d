//! Lance's object store for a scheme of our own.

use std::sync::Arc;

use annulus_object_store::v0_14::LocalFileSystem;
use async_trait::async_trait;
use lance_io::object_store::{ObjectStore, ObjectStoreParams, ObjectStoreProvider};
use url::Url;

/// The block size of `file://`, bytes: Lance merges the reads of a request that are not further apart. On a local drive
/// a read of 64 KiB, as for clouds, takes longer than several small ones.
const BLOCK_BYTES: usize = 4096;
/// The reads in flight of each scan or take. `file://` has 8, each with a blocking thread. A ring needs none, and a
/// drive is fast with many: with 256, a cold take needs nine tenths of the time that it needs with 64. Lance also sizes
/// its buffers with it, which takes 90 MB more here.
const READS: usize = 256;

/// Opens `annulus:///folder/name.lance` through our store.
#[derive(Debug)]
pub(crate) struct Provider(pub(crate) LocalFileSystem);

#[async_trait]
impl ObjectStoreProvider for Provider {
    async fn new_store(
        &self,
        base_path: Url,
        params: &ObjectStoreParams,
    ) -> lance::Result<ObjectStore> {
        Ok(ObjectStore::new(
            Arc::new(self.0.clone()),
            base_path,
            Some(params.block_size.unwrap_or(BLOCK_BYTES)),
            None,  // `ObjectStoreRegistry` adds the wrapper of `params`
            false, // parts of uploads may have different sizes
            false, // a folder is not listed in the order of its names
            READS,
            0, // a drive that failed to read fails again
            params.storage_options(),
        ))
    }
}
