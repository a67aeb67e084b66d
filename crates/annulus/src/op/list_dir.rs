//! # Safety
//!
//! `read_dir`: `getdents64` until the end, on a blocking thread, because io_uring has no opcode for it. Owns the
//! descriptor (Open) and the buffer (Lent, Still).
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;

use super::{FileOp, Op, OpInfo, Resume, retry_interrupted, table, transfer_len};
use crate::fd::Fd;
use crate::sys::call;
use crate::sys::errno::{check, count};
use crate::sys::sqe::{Sqe, opcode};

/// Size of the buffer for directory entries, bytes.
const CHUNK_BYTES: usize = 32 << 10;

/// Lists a directory.
#[derive(Debug)]
pub struct ListDir {
    fd: Fd,
    chunk: Box<[u8]>,
    listed: Vec<Listed>,
}

/// A directory entry: its name, inode and `d_type`.
#[derive(Clone, Debug)]
pub struct Listed {
    pub(crate) name: OsString,
    pub(crate) inode: u64,
    pub(crate) kind: u8,
}

impl ListDir {
    pub(crate) fn new(fd: Fd) -> ListDir {
        ListDir {
            fd,
            chunk: vec![0; CHUNK_BYTES].into_boxed_slice(),
            listed: Vec::new(),
        }
    }
}

// SAFETY: Lent, Still, Open: the chunk is on the heap and the op's own; `fd` keeps the descriptor.
unsafe impl Op for ListDir {
    const INFO: OpInfo = table::READ_DIR;
    type Output = io::Result<Vec<Listed>>;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            addr: self.chunk.as_mut_ptr() as u64,
            len: transfer_len(CHUNK_BYTES),
            ..Sqe::new(opcode::GETDENTS, self.fd.raw())
        }
    }

    fn resume(&mut self, res: i32) -> Resume {
        if res <= 0 {
            return retry_interrupted(res);
        }
        parse(
            self.chunk.get(..count(res)).unwrap_or_default(),
            &mut self.listed,
        );
        Resume::Again
    }

    fn complete(self, res: i32) -> io::Result<Vec<Listed>> {
        check(res).map(|_| self.listed)
    }
}

impl FileOp for ListDir {
    fn syscall(&mut self) -> i32 {
        // SAFETY: Lent: the chunk is the op's own, and is not touched during the call.
        unsafe { call::getdents(self.fd.raw(), self.chunk.as_mut_ptr(), CHUNK_BYTES) }
    }
}

/// Parses `struct linux_dirent64` records: inode (8 bytes), offset (8), record length (2), type (1), name up to a
/// NUL. Omits `.` and `..`, as std does.
fn parse(mut records: &[u8], into: &mut Vec<Listed>) {
    const NAME_AT: usize = 19;
    while let (Some(inode), Some(&[low, high]), Some(&kind)) = (
        records.first_chunk::<8>(),
        records.get(16..18).and_then(<[u8]>::first_chunk::<2>),
        records.get(18),
    ) {
        let bytes = usize::from(u16::from_ne_bytes([low, high]));
        let Some(name) = records.get(NAME_AT..bytes) else {
            return;
        };
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        if name != b"." && name != b".." {
            let name = OsString::from_vec(name.to_vec());
            into.push(Listed {
                name,
                inode: u64::from_ne_bytes(*inode),
                kind,
            });
        }
        records = records.get(bytes..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_cut_off_anywhere_are_never_read_beyond() {
        let mut records = Vec::new();
        for name in ["a", "longer-name", ".."] {
            let bytes = (19 + name.len() + 1).next_multiple_of(8);
            let bytes = u16::try_from(bytes).unwrap();
            records.extend(7u64.to_ne_bytes());
            records.extend(0u64.to_ne_bytes());
            records.extend(bytes.to_ne_bytes());
            records.push(8);
            records.extend(name.bytes());
            records.resize(
                records
                    .len()
                    .next_multiple_of(8)
                    .max(records.len() + 1)
                    .next_multiple_of(8),
                0,
            );
        }
        let mut all = Vec::new();
        parse(&records, &mut all);
        let names: Vec<_> = all
            .iter()
            .map(|entry| entry.name.to_string_lossy().into_owned())
            .collect();
        assert_eq!(names, ["a", "longer-name"]);
        for cut in 0..records.len() {
            let mut some = Vec::new();
            parse(&records[..cut], &mut some);
            assert!(some.len() <= 2);
        }
    }
}
