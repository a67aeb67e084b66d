//! The contents of one simulated file, in two states: as programs see them, and as they are on the disk.
//!
//! A crash leaves the disk's state plus a random part of the writes since the last sync. The unit of that choice is a
//! sector: a larger write may survive in part.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::dice::Dice;
use crate::narrow::to_usize;

/// The number of bytes that a disk writes atomically.
pub(crate) const SECTOR_BYTES: usize = 512;

type Sector = Arc<[u8; SECTOR_BYTES]>;

/// The bytes of a file. Sectors that were never written are holes and read as zeroes.
#[derive(Clone, Debug, Default)]
struct Image {
    sectors: BTreeMap<u64, Sector>,
    bytes: u64,
}

/// The contents of a file.
#[derive(Debug, Default)]
pub(crate) struct Body {
    /// The state that programs see: the page cache.
    now: Image,
    /// The state on the disk.
    disk: Image,
    /// The sectors that the next sync writes. A failed sync clears the set, as on Linux: from then on `now` and `disk`
    /// differ, and no later sync repairs that.
    dirty: BTreeSet<u64>,
    /// The smallest length since the last sync: the data beyond it was cut off.
    shortest: u64,
    /// True if the length has to be written.
    resized: bool,
}

impl Body {
    pub(crate) fn bytes(&self) -> u64 {
        self.now.bytes
    }

    /// Returns the number of sectors in use, without holes.
    pub(crate) fn sectors(&self) -> u64 {
        self.now.sectors.len() as u64
    }

    /// Copies bytes from `offset` on. Returns their number, which is short only at the end of the file.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> usize {
        let left = to_usize(self.now.bytes.saturating_sub(offset)).min(into.len());
        let mut done = 0;
        while done < left {
            let (sector, at) = sector_of(offset + done as u64);
            let take = (SECTOR_BYTES - at).min(left - done);
            let Some(part) = into.get_mut(done..done + take) else {
                break;
            };
            match self.now.sectors.get(&sector) {
                Some(data) => part.copy_from_slice(data.get(at..at + take).unwrap_or_default()),
                None => part.fill(0),
            }
            done += take;
        }
        done
    }

    /// Writes at `offset`, using at most `space` new sectors. Returns the number of bytes written.
    pub(crate) fn write(&mut self, offset: u64, from: &[u8], mut space: u64) -> usize {
        let mut done = 0;
        while done < from.len() {
            let (sector, at) = sector_of(offset + done as u64);
            let take = (SECTOR_BYTES - at).min(from.len() - done);
            if !self.now.sectors.contains_key(&sector) {
                if space == 0 {
                    break;
                }
                space -= 1;
            }
            let data = self.sector(sector);
            if let (Some(to), Some(part)) =
                (data.get_mut(at..at + take), from.get(done..done + take))
            {
                to.copy_from_slice(part);
            }
            done += take;
        }
        if done > 0 && offset + done as u64 > self.now.bytes {
            self.now.bytes = offset + done as u64;
            self.resized = true;
        }
        done
    }

    fn sector(&mut self, sector: u64) -> &mut [u8; SECTOR_BYTES] {
        self.dirty.insert(sector);
        Arc::make_mut(
            self.now
                .sectors
                .entry(sector)
                .or_insert_with(|| Arc::new([0; SECTOR_BYTES])),
        )
    }

    /// Truncates the file, or extends it with a hole.
    pub(crate) fn set_bytes(&mut self, bytes: u64) {
        if bytes < self.now.bytes {
            self.clear(bytes, u64::MAX);
            self.shortest = self.shortest.min(bytes);
        }
        self.resized |= bytes != self.now.bytes;
        self.now.bytes = bytes;
    }

    /// Drops the contents that programs see, because no program can read them any more. The disk's state stays until
    /// the name is removed.
    pub(crate) fn forget(&mut self) {
        self.now = Image::default();
        self.dirty.clear();
        self.resized = false;
    }

    /// Makes a range read as zeroes, and frees its whole sectors.
    pub(crate) fn clear(&mut self, from: u64, to: u64) {
        let (first, at) = sector_of(from);
        let touched: Vec<u64> = self
            .now
            .sectors
            .range(first..=sector_of(to).0)
            .map(|(&sector, _)| sector)
            .collect();
        for sector in touched {
            let start = if sector == first { at } else { 0 };
            let end = to_usize(to.saturating_sub(sector * SECTOR_BYTES as u64)).min(SECTOR_BYTES);
            if start >= end {
                continue;
            }
            if start == 0 && end == SECTOR_BYTES {
                self.now.sectors.remove(&sector);
                self.dirty.insert(sector);
            } else if let Some(part) = self.sector(sector).get_mut(start..end) {
                part.fill(0);
            }
        }
    }

    /// Reserves a range, using at most `space` new sectors. Returns `false` if more are needed.
    pub(crate) fn reserve(&mut self, from: u64, to: u64, space: u64) -> bool {
        let (first, last) = (
            sector_of(from).0,
            sector_of(to.saturating_sub(1).max(from)).0,
        );
        let missing = (last - first + 1) - self.now.sectors.range(first..=last).count() as u64;
        if missing > space {
            return false;
        }
        let zeroes: Sector = Arc::new([0; SECTOR_BYTES]);
        for sector in first..=last {
            self.now
                .sectors
                .entry(sector)
                .or_insert_with(|| Arc::clone(&zeroes));
        }
        true
    }

    /// Writes everything to the disk.
    pub(crate) fn sync(&mut self) {
        for sector in std::mem::take(&mut self.dirty) {
            self.write_out(sector);
        }
        self.commit_length();
    }

    /// Writes a range, and the length, to the disk.
    pub(crate) fn sync_range(&mut self, offset: u64, bytes: usize) {
        self.commit_length();
        let (first, last) = (
            sector_of(offset).0,
            sector_of(offset + (bytes as u64).saturating_sub(1)).0,
        );
        let range: Vec<u64> = self.dirty.range(first..=last).copied().collect();
        for sector in range {
            self.dirty.remove(&sector);
            self.write_out(sector);
        }
    }

    /// Writes the length to the disk, with the effect of every truncation since the last time: data beyond one is gone,
    /// and reads as zeroes if the file has grown again, until the new bytes are written.
    fn commit_length(&mut self) {
        let cut = sector_of(self.shortest.next_multiple_of(SECTOR_BYTES as u64)).0;
        let (dirty, now) = (&self.dirty, &self.now.sectors);
        let gone =
            |sector: &u64| *sector >= cut && (dirty.contains(sector) || !now.contains_key(sector));
        self.disk.sectors.retain(|sector, _| !gone(sector));
        if dirty.contains(&sector_of(self.shortest).0) {
            zero_beyond(&mut self.disk, self.shortest);
        }
        self.disk
            .sectors
            .split_off(&self.now.bytes.div_ceil(SECTOR_BYTES as u64));
        self.disk.bytes = self.now.bytes;
        self.shortest = self.now.bytes;
        self.resized = false;
    }

    /// Handles a failed sync: the unwritten sectors count as written.
    pub(crate) fn sync_failed(&mut self) {
        self.dirty.clear();
        self.resized = false;
    }

    fn write_out(&mut self, sector: u64) {
        match self.now.sectors.get(&sector) {
            Some(data) => self.disk.sectors.insert(sector, Arc::clone(data)),
            None => self.disk.sectors.remove(&sector),
        };
    }

    /// Writes a random part of the dirty sectors back to the disk, as a kernel does in the background. Returns the
    /// number of sectors.
    pub(crate) fn write_back(&mut self, dice: &mut Dice) -> u64 {
        if self.resized {
            self.commit_length();
        }
        let chosen: Vec<u64> = self.dirty.iter().copied().filter(|_| dice.coin()).collect();
        for &sector in &chosen {
            self.dirty.remove(&sector);
            self.write_out(sector);
        }
        chosen.len() as u64
    }

    /// Simulates a power failure: the disk's state, with a random part of the dirty data. Returns the numbers of
    /// changes that were lost and kept.
    pub(crate) fn crash(&mut self, dice: &mut Dice) -> (u64, u64) {
        let (mut lost, mut kept) = (0, 0);
        // If the old length survives, the data beyond a truncation is still there.
        let mut writable = u64::MAX;
        if self.resized && dice.coin() {
            self.commit_length();
            kept += 1;
        } else if self.resized {
            writable = self.shortest;
            lost += 1;
        }
        for sector in std::mem::take(&mut self.dirty) {
            if (sector + 1) * SECTOR_BYTES as u64 <= writable && dice.coin() {
                self.write_out(sector);
                kept += 1;
            } else {
                lost += 1;
            }
        }
        self.disk
            .sectors
            .split_off(&self.disk.bytes.div_ceil(SECTOR_BYTES as u64));
        let bytes = self.disk.bytes;
        zero_beyond(&mut self.disk, bytes);
        self.now = self.disk.clone();
        self.shortest = self.now.bytes;
        self.resized = false;
        (lost, kept)
    }

    pub(crate) fn contents(&self) -> Vec<u8> {
        let mut contents = vec![0; usize::try_from(self.now.bytes).unwrap_or(0)];
        self.read(0, &mut contents);
        contents
    }
}

/// Zeroes the data beyond the end of a file, so that it reads as zeroes if the file grows again.
fn zero_beyond(image: &mut Image, bytes: u64) {
    let (sector, at) = sector_of(bytes);
    let data = image.sectors.get_mut(&sector);
    if let Some(rest) = data.and_then(|data| Arc::make_mut(data).get_mut(at..)) {
        rest.fill(0);
    }
}

/// Returns the sector of an offset, and the byte position in it.
fn sector_of(offset: u64) -> (u64, usize) {
    (
        offset / SECTOR_BYTES as u64,
        to_usize(offset % SECTOR_BYTES as u64),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_reads_as_zeroes_and_takes_no_space() {
        let mut body = Body::default();
        assert_eq!(body.write(5000, b"end", u64::MAX), 3);
        assert_eq!((body.bytes(), body.sectors()), (5003, 1));
        let mut all = [1; 6000];
        assert_eq!(body.read(0, &mut all), 5003);
        assert!(all[..5000].iter().all(|&byte| byte == 0));
        assert_eq!(&all[5000..5003], b"end");
    }

    #[test]
    fn data_that_was_cut_off_stays_gone_when_the_file_grows() {
        let mut body = Body::default();
        body.write(0, &[7; 2000], u64::MAX);
        body.set_bytes(700);
        body.set_bytes(2000);
        let contents = body.contents();
        assert!(contents[..700].iter().all(|&byte| byte == 7));
        assert!(contents[700..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn synced_data_survives_every_crash_and_other_data_survives_by_sectors() {
        let mut patterns = BTreeSet::new();
        for seed in 0..64 {
            let mut body = Body::default();
            body.write(0, &[1; 1024], u64::MAX);
            body.sync();
            body.write(0, &[2; 1024], u64::MAX);
            body.crash(&mut Dice::new(seed));
            let contents = body.contents();
            assert_eq!(contents.len(), 1024);
            let halves = contents.chunks(SECTOR_BYTES).map(|sector| {
                assert!(
                    sector.iter().all(|&byte| byte == sector[0]),
                    "a sector is written completely or not at all"
                );
                sector[0]
            });
            patterns.insert(halves.collect::<Vec<_>>());
        }
        assert_eq!(
            patterns.len(),
            4,
            "each sector of two survives or not: {patterns:?}"
        );
    }

    #[test]
    fn a_failed_sync_loses_its_data_even_if_the_next_sync_succeeds() {
        for seed in 0..16 {
            let mut body = Body::default();
            body.write(0, &[1; 512], u64::MAX);
            body.sync();
            body.write(0, &[2; 512], u64::MAX);
            body.sync_failed();
            body.sync();
            assert_eq!(
                body.contents()[0],
                2,
                "programs see the new bytes until the crash"
            );
            body.crash(&mut Dice::new(seed));
            assert_eq!(body.contents()[0], 1);
        }
    }

    #[test]
    fn a_file_cut_and_grown_again_never_mixes_old_bytes_with_the_new_length() {
        for seed in 0..64 {
            let mut body = Body::default();
            body.write(0, &[1; 2048], u64::MAX);
            body.sync();
            body.set_bytes(0);
            body.write(0, &[2; 1024], u64::MAX);
            body.crash(&mut Dice::new(seed));
            let contents = body.contents();
            match contents.len() {
                2048 => assert!(contents.iter().all(|&byte| byte == 1)),
                1024 => assert!(contents.iter().all(|&byte| byte != 1)),
                other => panic!("the file never had this length: {other}"),
            }
        }
    }
}
