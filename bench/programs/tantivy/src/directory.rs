//! A directory of tantivy whose files are read through a page pool. Everything else is a directory of maps.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use annulus_pool::{PagePool, PoolFile};
use async_trait::async_trait;
use tantivy::HasLen;
use tantivy::directory::error::{
    DeleteError, LockError, OpenDirectoryError, OpenReadError, OpenWriteError,
};
use tantivy::directory::{
    Directory, DirectoryLock, FileHandle, Lock, MmapDirectory, OwnedBytes, WatchCallback,
    WatchHandle, WritePtr,
};

/// An index in a folder, read through a pool. Files of an index never change.
#[derive(Clone)]
pub(crate) struct PoolDirectory {
    folder: PathBuf,
    pool: PagePool,
    others: MmapDirectory,
}

impl PoolDirectory {
    pub(crate) fn open(
        folder: &Path,
        pool: &PagePool,
    ) -> Result<PoolDirectory, OpenDirectoryError> {
        Ok(PoolDirectory {
            folder: folder.to_owned(),
            pool: pool.clone(),
            others: MmapDirectory::open(folder)?,
        })
    }
}

impl fmt::Debug for PoolDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolDirectory({})", self.folder.display())
    }
}

impl Directory for PoolDirectory {
    fn get_file_handle(&self, path: &Path) -> Result<Arc<dyn FileHandle>, OpenReadError> {
        let file = pollster::block_on(self.pool.open(self.folder.join(path)));
        match file {
            Ok(file) => Ok(Arc::new(PoolHandle(file))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(OpenReadError::FileDoesNotExist(path.into()))
            }
            Err(error) => Err(OpenReadError::wrap_io_error(error, path.into())),
        }
    }

    fn delete(&self, path: &Path) -> Result<(), DeleteError> {
        self.others.delete(path)
    }

    fn exists(&self, path: &Path) -> Result<bool, OpenReadError> {
        self.others.exists(path)
    }

    fn open_write(&self, path: &Path) -> Result<WritePtr, OpenWriteError> {
        self.others.open_write(path)
    }

    fn atomic_read(&self, path: &Path) -> Result<Vec<u8>, OpenReadError> {
        self.others.atomic_read(path)
    }

    fn atomic_write(&self, path: &Path, data: &[u8]) -> io::Result<()> {
        self.others.atomic_write(path, data)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.others.sync_directory()
    }

    fn acquire_lock(&self, lock: &Lock) -> Result<DirectoryLock, LockError> {
        self.others.acquire_lock(lock)
    }

    fn watch(&self, callback: WatchCallback) -> tantivy::Result<WatchHandle> {
        self.others.watch(callback)
    }
}

/// A file of the pool.
#[derive(Debug)]
struct PoolHandle(PoolFile);

impl PoolHandle {
    async fn read(&self, range: Range<usize>) -> io::Result<OwnedBytes> {
        let mut bytes = vec![0; range.len()];
        self.0.read_exact_at(&mut bytes, range.start as u64).await?;
        Ok(OwnedBytes::new(bytes))
    }
}

impl HasLen for PoolHandle {
    fn len(&self) -> usize {
        self.0.len() as usize
    }
}

#[async_trait]
impl FileHandle for PoolHandle {
    fn read_bytes(&self, range: Range<usize>) -> io::Result<OwnedBytes> {
        pollster::block_on(self.read(range))
    }

    async fn read_bytes_async(&self, range: Range<usize>) -> io::Result<OwnedBytes> {
        self.read(range).await
    }
}
