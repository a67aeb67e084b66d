//! The checks of data, during a run and afterwards.
//!
//! In a file that the tool creates, every unit (4 KiB, or the block if that is smaller) begins with two words. The
//! *tag* is the unit's number mixed with the file's seed, and identifies the offset. The *stamp* is the tag mixed with
//! the run that wrote the unit, and identifies the write. The rest is random. The contents of the user's file are
//! unknown: a sample of its reads is hashed and compared with a `pread` afterwards.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use annulus_baselines::{Completed, Memory};
use twox_hash::XxHash3_64;

use super::order::mix;

/// The largest unit: the size of a page, and of a sector of most disks.
const UNIT_BYTES_MAX: u64 = 4096;
/// One of this number of operations is checked again after the run.
pub(crate) const SAMPLE_EVERY: u64 = 64;
/// The most samples that a worker keeps; checking them afterwards takes about a tenth of a second.
pub(crate) const SAMPLES_MAX: usize = 1024;

/// The contents of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    /// The tool's tags, with this seed, at every multiple of `unit_bytes`.
    Tagged { seed: u64, unit_bytes: u64 },
    /// The user's data.
    Unknown,
}

impl Contents {
    /// Returns the contents with tags for blocks of `block_bytes`, which is a multiple of 512.
    pub(crate) fn tagged(seed: u64, block_bytes: u64) -> Contents {
        let unit_bytes = (1 << block_bytes.trailing_zeros()).min(UNIT_BYTES_MAX);
        Contents::Tagged { seed, unit_bytes }
    }
}

/// Returns the offset in the data set, which is all files in sequence. Tags count these offsets, so that the right
/// block of the wrong file is detected.
#[inline]
pub(crate) fn dataset_offset(file: u32, file_bytes: u64, offset: u64) -> u64 {
    u64::from(file) * file_bytes + offset
}

/// Returns the tag of a unit.
#[inline]
pub(crate) fn tag(seed: u64, unit: u64) -> u64 {
    mix(seed ^ unit)
}

/// Returns the stamp that a write of run `run` puts after the tag.
#[inline]
pub(crate) fn stamp(tag: u64, run: u64) -> u64 {
    mix(tag ^ run)
}

/// Writes tags and stamps into `bytes`, which belong at `dataset_offset`.
pub(crate) fn write_tags(
    bytes: &mut [u8],
    dataset_offset: u64,
    seed: u64,
    unit_bytes: u64,
    run: u64,
) {
    let first = dataset_offset / unit_bytes;
    for (index, unit) in bytes.chunks_exact_mut(unit_bytes as usize).enumerate() {
        let tag = tag(seed, first + index as u64);
        unit[..8].copy_from_slice(&tag.to_le_bytes());
        unit[8..16].copy_from_slice(&stamp(tag, run).to_le_bytes());
    }
}

/// Returns whether each unit of the data from `dataset_offset` begins with its tag.
#[inline]
pub(crate) fn tags_match<A: Completed + ?Sized>(
    data: &A,
    dataset_offset: u64,
    bytes: u64,
    seed: u64,
    unit_bytes: u64,
) -> bool {
    let first = dataset_offset / unit_bytes;
    (0..bytes / unit_bytes)
        .all(|index| data.word((index * unit_bytes) as usize) == tag(seed, first + index))
}

/// An operation to check again after the run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) file: u32,
    pub(crate) offset: u64,
    pub(crate) kind: SampleKind,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum SampleKind {
    /// A read, with the hash of its bytes.
    Read { hash: u64 },
    /// A write.
    Written,
}

/// Returns the hash that a read sample keeps.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// The result of the check after the run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Afterwards {
    pub(crate) compared: u64,
    pub(crate) wrong: u64,
    pub(crate) first_wrong: Option<String>,
}

/// Reads every sampled block again with `pread`, and compares it.
pub(crate) fn afterwards(
    files: &[File],
    file_bytes: u64,
    samples: &[Sample],
    block_bytes: usize,
    contents: Contents,
    run: u64,
) -> io::Result<Afterwards> {
    let mut result = Afterwards::default();
    if samples.is_empty() {
        return Ok(result);
    }
    let mut memory = Memory::new(1, block_bytes).map_err(io::Error::other)?;
    for sample in samples {
        let bytes = memory.only();
        let read = files[sample.file as usize].read_exact_at(bytes, sample.offset);
        let dataset_offset = dataset_offset(sample.file, file_bytes, sample.offset);
        result.compared += 1;
        let mismatch: Option<String> = match (read, sample.kind) {
            (Err(error), _) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Some("no longer exists: the file has become shorter".into())
            }
            (Err(error), _) => Some(format!("cannot be read again: {error}")),
            (Ok(()), SampleKind::Read { hash: then }) => (hash(bytes) != then).then(|| {
                "differs from what pread returns (unless another process writes to the file)".into()
            }),
            (Ok(()), SampleKind::Written) => (!written_by(bytes, dataset_offset, contents, run))
                .then(|| "is not what was written".into()),
        };
        if let Some(mismatch) = mismatch {
            result.wrong += 1;
            result.first_wrong.get_or_insert_with(|| {
                let file = match files.len() {
                    1 => String::new(),
                    _ => format!(" of file {}", sample.file),
                };
                format!("the block at offset {}{file} {mismatch}", sample.offset)
            });
        }
    }
    Ok(result)
}

fn written_by(bytes: &[u8], dataset_offset: u64, contents: Contents, run: u64) -> bool {
    let Contents::Tagged { seed, unit_bytes } = contents else {
        return false;
    };
    let first = dataset_offset / unit_bytes;
    bytes
        .chunks_exact(unit_bytes as usize)
        .enumerate()
        .all(|(index, unit)| {
            let tag = tag(seed, first + index as u64);
            unit.word(0) == tag && unit.word(8) == stamp(tag, run)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_divide_every_block() {
        for (block, unit) in [
            (512, 512),
            (1024, 1024),
            (1536, 512),
            (4096, 4096),
            (6144, 2048),
            (1 << 20, 4096),
        ] {
            assert_eq!(
                Contents::tagged(1, block),
                Contents::Tagged {
                    seed: 1,
                    unit_bytes: unit
                }
            );
        }
    }

    #[test]
    fn tags_match_only_at_their_offset() {
        let mut bytes = vec![0u8; 16384];
        write_tags(&mut bytes, 8192, 3, 4096, 1);
        assert!(tags_match(&bytes[..], 8192, 16384, 3, 4096));
        assert!(
            !tags_match(&bytes[..], 12288, 16384, 3, 4096),
            "another offset"
        );
        assert!(
            !tags_match(&bytes[..], 8192, 16384, 4, 4096),
            "another file"
        );
        assert!(written_by(&bytes, 8192, Contents::tagged(3, 4096), 1));
        assert!(
            !written_by(&bytes, 8192, Contents::tagged(3, 4096), 2),
            "another run"
        );
        bytes[12288] ^= 1;
        assert!(
            !tags_match(&bytes[..], 8192, 16384, 3, 4096),
            "a flipped bit"
        );
    }
}
