//! Reads of a file. It is opened at the first read, and stays open as long as its reader.

use std::sync::Arc;

use annulus::File;
use opendal_core::raw::{new_std_io_error, oio};
use opendal_core::{Buffer, Result};

use crate::files::Files;

/// The memory for a read that may end before the end of its range, bytes at least.
const TAIL_BYTES: u64 = 4096;

pub(crate) struct Reader {
    files: Arc<Files>,
    path: String,
}

impl Reader {
    pub(crate) fn new(files: Arc<Files>, path: &str) -> Reader {
        let path = path.to_owned();
        Reader { files, path }
    }
}

/// An open file.
pub(crate) struct Opened {
    file: File,
    /// The length when it was opened. A read of "the rest" takes no more memory than that.
    bytes: u64,
}

impl oio::PositionRead for Reader {
    type Handle = Opened;

    async fn open(&self) -> Result<Opened> {
        let path = self.files.path(&self.path)?;
        let open = async {
            let file = self.files.engine.open(&path).await?;
            let bytes = file.metadata().await?.len();
            Ok(Opened { file, bytes })
        };
        open.await.map_err(new_std_io_error)
    }

    async fn read_at(opened: &Opened, offset: u64, size: usize) -> Result<Buffer> {
        let left = opened.bytes.saturating_sub(offset).max(TAIL_BYTES);
        let size = size.min(usize::try_from(left).unwrap_or(usize::MAX));
        if size == 0 {
            return Ok(Buffer::new());
        }
        let read = opened.file.read_at(Vec::with_capacity(size), offset).await;
        let (_, bytes) = read.map_err(|error| new_std_io_error(error.into()))?;
        Ok(bytes.into())
    }
}
