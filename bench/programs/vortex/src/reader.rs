//! A file of Annulus behind Vortex's trait of readers.

use std::future::Future;
use std::io;
use std::pin::Pin;

use annulus::File;
use bytes::BytesMut;
use vortex::array::buffer::BufferHandle;
use vortex::buffer::{Alignment, ByteBuffer};
use vortex::error::VortexResult;
use vortex::io::std_file::DEFAULT_CONCURRENCY;
use vortex::io::{CoalesceConfig, VortexReadAt};

type Boxed<T> = Pin<Box<dyn Future<Output = VortexResult<T>> + Send>>;

/// The unit of direct reads: offset, length and memory.
const BLOCK: usize = 4096;

/// A file, opened with direct I/O or without.
pub(crate) struct AnnulusReadAt(pub(crate) File);

impl VortexReadAt for AnnulusReadAt {
    /// Reads along short gaps only. Vortex's own reader reads along gaps of 1 MiB, a fifth more bytes for 10 random
    /// rows.
    fn coalesce_config(&self) -> Option<CoalesceConfig> {
        Some(CoalesceConfig::new(8 << 10, 1 << 20))
    }

    fn concurrency(&self) -> usize {
        DEFAULT_CONCURRENCY
    }

    fn size(&self) -> Boxed<u64> {
        let file = self.0.clone();
        Box::pin(async move { Ok(file.metadata().await?.len()) })
    }

    fn read_at(&self, offset: u64, length: usize, alignment: Alignment) -> Boxed<BufferHandle> {
        let file = self.0.clone();
        Box::pin(async move {
            if length == 0 {
                return Ok(BufferHandle::new_host(ByteBuffer::empty_aligned(alignment)));
            }
            let block = match file.direct_alignment() {
                Some(_) => BLOCK,
                None => 1,
            };
            let skip = (offset % block as u64) as usize;
            let (start, end) = (offset - skip as u64, skip + length);
            let mut read = aligned(
                end.next_multiple_of(block),
                alignment.max(Alignment::new(block)),
            );
            (_, read) = file.read_at(read, start).await.map_err(io::Error::from)?;
            // A read may end early. One that has reached the end of the file fails here.
            if read.len() < end {
                let next = start + read.len() as u64;
                let rest = file.read_exact_at(read, next).await;
                read = rest.map_err(io::Error::from)?;
            }
            let bytes = read.freeze().slice(skip..end);
            let buffer = ByteBuffer::from(bytes).aligned(alignment);
            Ok(BufferHandle::new_host(buffer))
        })
    }
}

/// Returns memory with a capacity of exactly `length` bytes at an aligned address.
fn aligned(length: usize, alignment: Alignment) -> BytesMut {
    let mut memory = BytesMut::with_capacity(length + alignment.as_usize());
    let before = memory.spare_capacity_mut().as_ptr();
    let mut buffer = memory.split_off(before.align_offset(alignment.as_usize()));
    drop(buffer.split_off(length));
    buffer
}

#[cfg(test)]
mod tests {
    use vortex::error::VortexError;

    use super::*;

    #[tokio::test]
    async fn a_read_is_aligned_and_whole_or_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bytes");
        let contents: Vec<u8> = (0..100_000_u32).map(|byte| byte as u8).collect();
        std::fs::write(&path, &contents).unwrap();
        let engine = annulus::Engine::new().unwrap();
        for direct in [false, true] {
            let options = annulus::OpenOptions::new()
                .read(true)
                .direct(direct)
                .clone();
            let reader = AnnulusReadAt(engine.open_with(&options, &path).await.unwrap());
            assert_eq!(reader.0.direct_alignment().is_some(), direct);
            assert_eq!(reader.size().await.unwrap(), 100_000);
            for alignment in [1, 64, 4096] {
                let alignment = Alignment::new(alignment);
                for range in [
                    0..1,
                    3..70_000,
                    4096..8192,
                    99_999..100_000,
                    100_000..100_000,
                ] {
                    let read = reader.read_at(range.start as u64, range.len(), alignment);
                    let buffer = read.await.unwrap().unwrap_host();
                    assert!(alignment.is_ptr_aligned(buffer.as_ptr()));
                    assert_eq!(buffer.as_slice(), &contents[range]);
                }
                let error = reader.read_at(99_999, 2, alignment).await.unwrap_err();
                assert!(
                    matches!(&error, VortexError::Io(error, _) if error.kind() == io::ErrorKind::UnexpectedEof),
                    "{error}"
                );
            }
        }
    }
}
