//! # Safety
//!
//! The call that an SQE requests, with the memory that it lends. Invariant: Lent, as in `memory.rs`.
#![allow(unsafe_code)]

use super::super::call::{RESOLVE_BENEATH, Statx, Timespec};
use super::super::sqe::{RWF_DSYNC, Sqe, opcode};
use super::config::OpKind;
use super::memory::{self, Lent};
use crate::narrow::low_half;

/// The descriptor of the driver's wake-up.
pub(super) const WAKE_FD: i32 = -2;

/// A call that a simulated kernel supports.
#[derive(Debug)]
pub(super) enum Request {
    Nop,
    /// A read that another thread's wake-up completes.
    Wake,
    Read {
        into: Vec<Lent>,
    },
    Write {
        from: Vec<Lent>,
        durable: bool,
    },
    Sync,
    SyncRange {
        bytes: u32,
        flags: u32,
    },
    /// A way of copying that no file system here supports.
    CopyFile,
    CopyRange {
        into: i32,
        into_offset: u64,
        bytes: u64,
    },
    Open {
        path: Vec<u8>,
        flags: u32,
        mode: u32,
        /// The lookup stays below the directory.
        beneath: bool,
    },
    Close,
    Allocate {
        mode: u32,
        bytes: u64,
    },
    Truncate,
    Advise {
        advice: u32,
    },
    Stat {
        path: Vec<u8>,
        flags: u32,
        out: Lent,
    },
    Rename {
        from: Vec<u8>,
        to_dir: i32,
        to: Vec<u8>,
        flags: u32,
    },
    Unlink {
        path: Vec<u8>,
        flags: u32,
    },
    MakeDir {
        path: Vec<u8>,
        mode: u32,
    },
    Link {
        file: Vec<u8>,
        name_dir: i32,
        name: Vec<u8>,
        flags: u32,
    },
    Symlink {
        target: Vec<u8>,
        name: Vec<u8>,
    },
    ReadLink {
        path: Vec<u8>,
        into: Lent,
    },
    RealPath {
        path: Vec<u8>,
        into: Lent,
    },
    SetMode {
        path: Vec<u8>,
        mode: u32,
    },
    SetTimes {
        path: Vec<u8>,
        times: Lent,
    },
    GetXattr {
        path: Vec<u8>,
        name: Vec<u8>,
        into: Lent,
    },
    SetXattr {
        path: Vec<u8>,
        name: Vec<u8>,
        value: Lent,
    },
    ListXattrs {
        path: Vec<u8>,
        into: Lent,
    },
    RemoveXattr {
        path: Vec<u8>,
        name: Vec<u8>,
    },
    List {
        into: Lent,
    },
    Unknown,
}

/// Returns whether the simulated kernel supports this opcode.
#[cfg(test)]
pub(crate) fn knows(opcode: u8) -> bool {
    let lent = [0_u64; size_of::<Statx>() / 8 + 1];
    let addr = lent.as_ptr().expose_provenance() as u64;
    let sqe = Sqe {
        addr,
        off: addr,
        addr3: addr,
        ..Sqe::new(opcode, -1)
    };
    // SAFETY: Lent: all addresses point to zeroes that outlive the request, whatever the opcode uses them for.
    !matches!(unsafe { Request::of(&sqe) }, Request::Unknown)
}

impl Request {
    /// Parses an SQE.
    ///
    /// # Safety
    ///
    /// Lent and Still: the memory that the SQE points to stays valid until the value is dropped.
    #[expect(clippy::too_many_lines, reason = "one row for each opcode")]
    pub(super) unsafe fn of(sqe: &Sqe) -> Request {
        let Sqe {
            addr,
            len,
            off,
            op_flags,
            ..
        } = *sqe;
        let count = len as usize;
        // SAFETY: Lent: the caller upholds the contract in `# Safety` for each pointer that the opcode uses.
        unsafe {
            match sqe.opcode {
                opcode::NOP => Request::Nop,
                opcode::READ if sqe.fd == WAKE_FD => Request::Wake,
                opcode::READ => Request::Read {
                    into: vec![Lent::new(addr, count)],
                },
                opcode::READV => Request::Read {
                    into: memory::vector(addr, count),
                },
                opcode::WRITE => Request::Write {
                    from: vec![Lent::new(addr, count)],
                    durable: op_flags & RWF_DSYNC != 0,
                },
                opcode::WRITEV => Request::Write {
                    from: memory::vector(addr, count),
                    durable: op_flags & RWF_DSYNC != 0,
                },
                opcode::FSYNC => Request::Sync,
                opcode::SYNC_FILE_RANGE => Request::SyncRange {
                    bytes: len,
                    flags: op_flags,
                },
                opcode::COPY_FILE => Request::CopyFile,
                opcode::COPY_FILE_RANGE => Request::CopyRange {
                    into: sqe.file_index,
                    into_offset: addr,
                    bytes: u64::from(len),
                },
                opcode::OPENAT => Request::Open {
                    path: memory::path(addr),
                    flags: op_flags,
                    mode: len,
                    beneath: false,
                },
                opcode::OPENAT2 => {
                    let how = memory::open_how(off);
                    let [flags, mode] = [how.flags, how.mode].map(low_half);
                    Request::Open {
                        path: memory::path(addr),
                        flags,
                        mode,
                        beneath: how.resolve & RESOLVE_BENEATH != 0,
                    }
                }
                opcode::CLOSE => Request::Close,
                opcode::FALLOCATE => Request::Allocate {
                    mode: len,
                    bytes: addr,
                },
                opcode::FTRUNCATE => Request::Truncate,
                opcode::FADVISE => Request::Advise { advice: op_flags },
                opcode::STATX => {
                    let out = Lent::new(off, size_of::<Statx>());
                    Request::Stat {
                        path: memory::path(addr),
                        flags: op_flags,
                        out,
                    }
                }
                opcode::GETDENTS => Request::List {
                    into: Lent::new(addr, count),
                },
                opcode::RENAMEAT => Request::Rename {
                    from: memory::path(addr),
                    to_dir: len.cast_signed(),
                    to: memory::path(off),
                    flags: op_flags,
                },
                opcode::UNLINKAT => Request::Unlink {
                    path: memory::path(addr),
                    flags: op_flags,
                },
                opcode::MKDIRAT => Request::MakeDir {
                    path: memory::path(addr),
                    mode: len,
                },
                opcode::LINKAT => Request::Link {
                    file: memory::path(addr),
                    name_dir: len.cast_signed(),
                    name: memory::path(off),
                    flags: op_flags,
                },
                opcode::SYMLINKAT => Request::Symlink {
                    target: memory::path(addr),
                    name: memory::path(off),
                },
                opcode::READLINKAT => Request::ReadLink {
                    path: memory::path(addr),
                    into: Lent::new(off, len as usize),
                },
                opcode::REALPATH => Request::RealPath {
                    path: memory::path(addr),
                    into: Lent::new(off, len as usize),
                },
                opcode::FCHMODAT => Request::SetMode {
                    path: memory::path(addr),
                    mode: len,
                },
                opcode::UTIMENSAT => Request::SetTimes {
                    path: memory::path(addr),
                    times: Lent::new(off, size_of::<[Timespec; 2]>()),
                },
                opcode::GETXATTR | opcode::FGETXATTR => Request::GetXattr {
                    path: memory::path(sqe.addr3),
                    name: memory::path(addr),
                    into: Lent::new(off, len as usize),
                },
                opcode::SETXATTR | opcode::FSETXATTR => Request::SetXattr {
                    path: memory::path(sqe.addr3),
                    name: memory::path(addr),
                    value: Lent::new(off, len as usize),
                },
                opcode::LISTXATTR => Request::ListXattrs {
                    path: memory::path(addr),
                    into: Lent::new(off, len as usize),
                },
                opcode::REMOVEXATTR => Request::RemoveXattr {
                    path: memory::path(addr),
                    name: memory::path(off),
                },
                _ => Request::Unknown,
            }
        }
    }

    pub(super) fn kind(&self) -> OpKind {
        match self {
            Request::Nop | Request::Wake | Request::Unknown => OpKind::Nop,
            Request::Read { .. } => OpKind::Read,
            Request::Write { .. } | Request::CopyFile | Request::CopyRange { .. } => OpKind::Write,
            Request::Sync | Request::SyncRange { .. } => OpKind::Sync,
            Request::Open { .. } => OpKind::Open,
            Request::Close => OpKind::Close,
            Request::Allocate { .. } | Request::Truncate => OpKind::Allocate,
            Request::Advise { .. } => OpKind::Advise,
            Request::Stat { .. }
            | Request::ReadLink { .. }
            | Request::RealPath { .. }
            | Request::GetXattr { .. }
            | Request::ListXattrs { .. } => OpKind::Stat,
            Request::Rename { .. }
            | Request::Unlink { .. }
            | Request::MakeDir { .. }
            | Request::Link { .. }
            | Request::Symlink { .. }
            | Request::SetMode { .. }
            | Request::SetTimes { .. }
            | Request::SetXattr { .. }
            | Request::RemoveXattr { .. } => OpKind::Name,
            Request::List { .. } => OpKind::List,
        }
    }

    /// Returns the total length of a transfer, bytes.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Request::Read { into: parts } | Request::Write { from: parts, .. } => {
                parts.iter().map(|part| part.bytes() as u64).sum()
            }
            Request::CopyRange { bytes, .. } => *bytes,
            _ => 0,
        }
    }

    /// Returns the memory that the call will write to.
    pub(super) fn targets(&mut self) -> &mut [Lent] {
        match self {
            Request::Read { into } => into,
            Request::Stat { out: into, .. }
            | Request::List { into }
            | Request::ReadLink { into, .. }
            | Request::RealPath { into, .. }
            | Request::GetXattr { into, .. }
            | Request::ListXattrs { into, .. } => std::slice::from_mut(into),
            _ => &mut [],
        }
    }
}
