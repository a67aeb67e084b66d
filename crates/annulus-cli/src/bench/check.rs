//! What a right answer is, while it is measured and afterwards.
//!
//! In the files we made, every unit (4 KiB, or the block if that is smaller) begins with two words: a *tag*,
//! the unit's number mixed with the file's seed, which says "these are the bytes of this offset"; and a *stamp*, the
//! tag mixed with the run that wrote it, which says "this write arrived". The rest is random. In
//! a file of the user's we know nothing: some answers are hashed and compared with a `pread` afterwards.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use annulus_baselines::{Completed, Memory};
use twox_hash::XxHash3_64;

use super::order::mix;

/// A unit is never larger: a page of the cache, the usual sector of a disk.
const UNIT_BYTES_MAX: u64 = 4096;
/// Of N operations one is looked at again after the run.
pub(crate) const SAMPLE_EVERY: u64 = 64;
/// A worker keeps at most N samples: the look afterwards takes about a tenth of a second.
pub(crate) const SAMPLES_MAX: usize = 1024;

/// What is in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    /// Our tags, with this seed, at every multiple of `unit_bytes`.
    Tagged { seed: u64, unit_bytes: u64 },
    /// Somebody's data.
    Unknown,
}

impl Contents {
    /// Tags that fit blocks of `block_bytes`, which is a multiple of 512.
    pub(crate) fn tagged(seed: u64, block_bytes: u64) -> Contents {
        let unit_bytes = (1 << block_bytes.trailing_zeros()).min(UNIT_BYTES_MAX);
        Contents::Tagged { seed, unit_bytes }
    }
}

/// Where an offset of a file is in the data set as a whole: the files one after the other. Tags count these
/// offsets of one data set, so that the right block of the wrong file is detected as wrong.
#[inline]
pub(crate) fn dataset_offset(file: u32, file_bytes: u64, offset: u64) -> u64 {
    u64::from(file) * file_bytes + offset
}

/// The tag of the unit that begins at `offset`.
#[inline]
pub(crate) fn tag(seed: u64, unit: u64) -> u64 {
    mix(seed ^ unit)
}

/// What a write of run `run` puts behind the tag.
#[inline]
pub(crate) fn stamp(tag: u64, run: u64) -> u64 {
    mix(tag ^ run)
}

/// Writes tags and stamps into `bytes`, which will be at `dataset_offset` of the data set.
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

/// Whether each unit of the answer from `dataset_offset` begins with its tag.
#[inline]
pub(crate) fn tags_match<A: Completed + ?Sized>(
    answer: &A,
    dataset_offset: u64,
    bytes: u64,
    seed: u64,
    unit_bytes: u64,
) -> bool {
    let first = dataset_offset / unit_bytes;
    (0..bytes / unit_bytes)
        .all(|index| answer.word((index * unit_bytes) as usize) == tag(seed, first + index))
}

/// An operation to look at again after the run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) file: u32,
    pub(crate) offset: u64,
    pub(crate) kind: SampleKind,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum SampleKind {
    /// A read whose bytes had this hash.
    Read { hash: u64 },
    /// A write.
    Written,
}

/// The hash that a read sample keeps.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// What the look afterwards found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Afterwards {
    pub(crate) compared: u64,
    pub(crate) wrong: u64,
    pub(crate) first_wrong: Option<String>,
}

/// Reads every sampled block again, plainly, and compares.
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
                Some("is no longer there: the file has become shorter".into())
            }
            (Err(error), _) => Some(format!("cannot be read again: {error}")),
            (Ok(()), SampleKind::Read { hash: then }) => (hash(bytes) != then).then(|| {
                "differs from what pread finds there (unless somebody else writes to the file)"
                    .into()
            }),
            (Ok(()), SampleKind::Written) => (!written_by(bytes, dataset_offset, contents, run))
                .then(|| "is not what was written there".into()),
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
    fn tags_hold_only_where_they_were_put() {
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
