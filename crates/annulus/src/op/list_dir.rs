//! # Safety
//!
//! `read_dir`: `getdents64` for one piece of a listing, on a blocking thread, because io_uring has no opcode for it.
//! Owns the descriptor (Open) and the buffer (Lent, Still).
#![allow(unsafe_code)]

use std::ffi::{CStr, OsString};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStringExt;

use super::{FileOp, Op, OpInfo, Returns, table, transfer_len};
use crate::fd::Fd;
use crate::sys::call;
use crate::sys::errno::check;
use crate::sys::sqe::{Sqe, opcode};

/// Size of the buffer of a piece, bytes: about 2,000 entries.
const PIECE_BYTES: usize = 64 << 10;
/// The offset of the `d_type` of a record.
const KIND_AT: usize = 18;
/// The offset of the name of a record.
const NAME_AT: usize = 19;
/// The `d_type` of an entry whose kind the file system does not include in the listing.
const DT_UNKNOWN: u8 = 0;

/// Reads a piece of a listing.
#[derive(Debug)]
pub struct ListDir {
    fd: Fd,
    piece: Piece,
}

/// A piece of a listing: `struct linux_dirent64` records.
#[derive(Debug)]
pub struct Piece {
    records: Box<[u8]>,
    filled: usize,
    /// The start of the next record.
    at: usize,
}

/// A directory entry: its name, inode and `d_type`.
#[derive(Clone, Debug)]
pub struct Listed {
    pub(crate) name: OsString,
    pub(crate) inode: u64,
    pub(crate) kind: u8,
}

impl ListDir {
    /// Reads the next piece into the memory of `piece`.
    pub(crate) fn new(fd: Fd, piece: Piece) -> ListDir {
        ListDir { fd, piece }
    }
}

/// Returns the length of the first record; `None` at the end, and if it is invalid.
fn record_bytes(records: &[u8]) -> Option<usize> {
    let bytes = records.get(16..KIND_AT)?.first_chunk().copied()?;
    let bytes = usize::from(u16::from_ne_bytes(bytes));
    (bytes > NAME_AT).then_some(bytes)
}

// SAFETY: Lent, Still, Open: the records are on the heap and the op's own; `fd` keeps the descriptor.
unsafe impl Op for ListDir {
    const INFO: OpInfo = table::READ_DIR;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            addr: self.piece.records.as_mut_ptr() as u64,
            len: transfer_len(PIECE_BYTES),
            ..Sqe::new(opcode::GETDENTS, self.fd.raw())
        }
    }

    fn complete(mut self, res: i32) -> io::Result<Piece> {
        self.piece.filled = check(res)?;
        self.piece.at = 0;
        Ok(self.piece)
    }
}

impl Returns for ListDir {
    type Output = io::Result<Piece>;
}

impl FileOp for ListDir {
    fn syscall(&mut self) -> i32 {
        let records = &mut self.piece.records;
        // SAFETY: Lent: the records are the op's own, and are not touched during the call.
        let res = unsafe { call::getdents(self.fd.raw(), records.as_mut_ptr(), records.len()) };
        if let Ok(filled) = check(res) {
            self.piece.complete_kinds(self.fd.raw(), filled);
        }
        res
    }
}

impl Default for Piece {
    fn default() -> Piece {
        Piece {
            records: vec![0; PIECE_BYTES].into_boxed_slice(),
            filled: 0,
            at: 0,
        }
    }
}

impl Piece {
    /// Asks for the kinds that the file system did not include, as std does. Entries that are gone remain without.
    fn complete_kinds(&mut self, dir: RawFd, filled: usize) {
        let mut rest = self.records.get_mut(..filled).unwrap_or_default();
        while let Some(bytes) = record_bytes(rest)
            && let Some((record, next)) = rest.split_at_mut_checked(bytes)
        {
            rest = next;
            if let Some((head, name)) = record.split_at_mut_checked(NAME_AT)
                && let Some(kind @ &mut DT_UNKNOWN) = head.last_mut()
                && let Ok(name) = CStr::from_bytes_until_nul(name)
            {
                *kind = call::entry_kind((dir, name)).unwrap_or(DT_UNKNOWN);
            }
        }
    }

    /// Returns whether the listing has ended.
    pub(crate) fn is_end(&self) -> bool {
        self.filled == 0
    }
}

impl Iterator for Piece {
    type Item = Listed;

    /// Parses a record: inode (8 bytes), offset (8), record length (2), type (1), name up to a NUL. Omits `.` and `..`,
    /// as std does.
    fn next(&mut self) -> Option<Listed> {
        loop {
            let rest = self.records.get(self.at..self.filled)?;
            let record = rest.get(..record_bytes(rest)?)?;
            let name = record.get(NAME_AT..)?;
            self.at += record.len();
            let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
            if name != b"." && name != b".." {
                return Some(Listed {
                    name: OsString::from_vec(name.to_vec()),
                    inode: u64::from_ne_bytes(record.first_chunk().copied()?),
                    kind: record.get(KIND_AT).copied()?,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(records: &[u8]) -> Piece {
        Piece {
            records: records.into(),
            filled: records.len(),
            at: 0,
        }
    }

    #[test]
    fn records_cut_off_anywhere_are_never_read_beyond() {
        let mut records = Vec::new();
        for name in ["a", "longer-name", ".."] {
            let bytes = (19 + name.len() + 1).next_multiple_of(8);
            let end = records.len() + bytes;
            records.extend(7u64.to_ne_bytes());
            records.extend(0u64.to_ne_bytes());
            records.extend(u16::try_from(bytes).unwrap().to_ne_bytes());
            records.push(8);
            records.extend(name.bytes());
            records.resize(end, 0);
        }
        let names: Vec<_> = piece(&records).map(|entry| entry.name).collect();
        assert_eq!(names, ["a", "longer-name"]);
        for cut in 0..records.len() {
            assert!(piece(&records[..cut]).count() <= 2);
        }
    }

    #[test]
    fn a_record_of_no_length_ends_the_piece() {
        assert_eq!(piece(&[0; 64]).count(), 0);
    }
}
