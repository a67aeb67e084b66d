//! The format of verified blocks.
//!
//! A block starts with a header that contains its offset, its length and a hash of the rest. With `verify=pattern`, the
//! block contains only the repeated pattern, as in fio.

use super::check;

/// Identifies a block that this tool wrote.
const MAGIC: u64 = u64::from_le_bytes(*b"annuljob");
/// The size of the header: magic, offset, length and hash.
const HEADER_BYTES: usize = 32;

/// The method of checking a written block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verify {
    /// A CRC-32C of the block in its header.
    Crc32c,
    /// An XXH3 of the block in its header.
    Xxhash,
    /// The block is `verify_pattern`, repeated.
    Pattern,
}

/// The set of blocks that a clone has written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written {
    bits: Vec<u64>,
}

impl Written {
    pub(crate) fn new(blocks: u64) -> Written {
        Written {
            bits: vec![0; blocks.div_ceil(64) as usize],
        }
    }

    #[inline]
    pub(crate) fn add(&mut self, block: u64) {
        self.bits[(block / 64) as usize] |= 1 << (block % 64);
    }

    /// Returns the first written block at or after `block`.
    pub(crate) fn next_from(&self, block: u64) -> Option<u64> {
        let mut word = (block / 64) as usize;
        let mut rest = self.bits.get(word)? & (!0 << (block % 64));
        while rest == 0 {
            word += 1;
            rest = *self.bits.get(word)?;
        }
        Some(word as u64 * 64 + u64::from(rest.trailing_zeros()))
    }
}

/// Turns `bytes`, which will be written at `offset`, into a block that can be verified.
pub(crate) fn fill(kind: &Verify, pattern: &[u8], offset: u64, bytes: &mut [u8]) {
    if *kind == Verify::Pattern {
        for part in bytes.chunks_mut(pattern.len().max(1)) {
            part.copy_from_slice(&pattern[..part.len()]);
        }
        return;
    }
    if bytes.len() < HEADER_BYTES {
        return;
    }
    let length = bytes.len() as u64;
    let hash = hash(kind, &bytes[HEADER_BYTES..]);
    for (at, word) in [MAGIC, offset, length, hash].into_iter().enumerate() {
        bytes[at * 8..at * 8 + 8].copy_from_slice(&word.to_le_bytes());
    }
}

/// Checks that `bytes`, read from `offset`, are a block from [`fill`]. Returns a description of the first mismatch.
pub(crate) fn check(
    kind: &Verify,
    pattern: &[u8],
    offset: u64,
    bytes: &[u8],
) -> Result<(), String> {
    if *kind == Verify::Pattern {
        let expected = pattern.iter().cycle();
        return match bytes
            .iter()
            .zip(expected)
            .position(|(is, should)| is != should)
        {
            None => Ok(()),
            Some(at) => Err(format!(
                "verify: byte {at} of the block is not the pattern's"
            )),
        };
    }
    let word = |index: usize| {
        let word = bytes.get(index * 8..index * 8 + 8)?;
        Some(u64::from_le_bytes(word.try_into().ok()?))
    };
    if word(0) != Some(MAGIC) {
        return Err("verify: the block was not written by a job with `verify` of this tool".into());
    }
    if word(1) != Some(offset) || word(2) != Some(bytes.len() as u64) {
        let (at, length) = (word(1).unwrap_or(0), word(2).unwrap_or(0));
        return Err(format!(
            "verify: the block is that of offset {at}, {length} bytes"
        ));
    }
    match word(3) == Some(hash(kind, &bytes[HEADER_BYTES..])) {
        true => Ok(()),
        false => Err("verify: the content does not match its checksum".into()),
    }
}

fn hash(kind: &Verify, bytes: &[u8]) -> u64 {
    match kind {
        Verify::Xxhash => check::hash(bytes),
        Verify::Crc32c | Verify::Pattern => u64::from(crc32c::crc32c(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_valid_only_at_its_offset() {
        for kind in [Verify::Crc32c, Verify::Xxhash] {
            let mut block = vec![7u8; 4096];
            fill(&kind, &[], 8192, &mut block);
            assert_eq!(check(&kind, &[], 8192, &block), Ok(()));
            assert!(check(&kind, &[], 4096, &block).is_err(), "another offset");
            block[4000] ^= 1;
            let text = check(&kind, &[], 8192, &block).unwrap_err();
            assert!(text.contains("checksum"), "{text}");
            assert!(
                check(&kind, &[], 0, &[0; 4096]).is_err(),
                "an unwritten block"
            );
        }
    }

    #[test]
    fn a_pattern_is_compared_to_the_last_byte() {
        let mut block = vec![0u8; 1001];
        fill(&Verify::Pattern, b"abc", 0, &mut block);
        assert_eq!(&block[999..], b"ab");
        assert_eq!(check(&Verify::Pattern, b"abc", 0, &block), Ok(()));
        block[1000] = b'x';
        assert!(check(&Verify::Pattern, b"abc", 0, &block).is_err());
    }

    #[test]
    fn written_blocks_are_found_in_order() {
        let mut written = Written::new(200);
        for block in [199, 0, 63, 64] {
            written.add(block);
        }
        let mut collected = Vec::new();
        let mut at = 0;
        while let Some(block) = written.next_from(at) {
            collected.push(block);
            at = block + 1;
        }
        assert_eq!(collected, [0, 63, 64, 199]);
        assert_eq!(Written::new(0).next_from(0), None);
    }
}
