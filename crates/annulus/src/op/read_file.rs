//! # Safety
//!
//! `read_file`: a whole file by path, in several requests one after the other: OPENAT2, READ until the end, and CLOSE,
//! or the same system calls. Owns the path (Lent, Still; its directory: Open), the buffer (Lent, Still, Written) and
//! the descriptor (Open), which is closed when the operation is dropped between two requests.
//!
//! The open takes only a path that the kernel has cached, on the mount where the lookup starts, which is known to be
//! local. All requests are then as brief as those of an open file. Everything else is left to the caller, or to a
//! blocking thread, which makes all requests in one job.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::mem;
use std::sync::Arc;

use super::at::At;
use super::close::has_run;
use super::{
    Close, FileOp, Op, OpInfo, OpenedFd, Resume, Returns, SyncAttempt, retry_interrupted, table,
};
use crate::fd::{CloseFd, Fd};
use crate::narrow::to_u32;
use crate::sys::call::{self, O_TO_READ, OpenHow, READ_HERE};
use crate::sys::errno::{EINTR, EIO, ENOENT, ENOMEM, ERESTARTSYS, ESPIPE, check, count};
use crate::sys::mount::{self, FileSystem, Identity};
use crate::sys::sqe::{Sqe, opcode};
use crate::sys::transfer_call::{self, AT_POSITION};
use crate::sys::transfer_flags::{RWF_NOWAIT, TransferFlags};

/// The buffer of a file whose length is not known, bytes. A file that fills it is left to the caller, who queries its
/// length.
const FIRST_BYTES: usize = (64 << 10) + 1;

/// The length of a file that a blocking thread reads in one job, bytes. The rest of a larger one is left to the caller,
/// whose reads can be cancelled; a further hand-off is little beside their time.
const JOB_BYTES_MAX: usize = 1 << 20;

/// Reads a whole file.
pub struct ReadFile {
    at: At,
    /// The mount on which the lookup starts. `None` in the simulated kernel, whose paths never wait.
    mount: Option<u64>,
    /// The bytes read so far. The rest of its capacity is read into.
    buf: Vec<u8>,
    closer: Option<Arc<dyn CloseFd>>,
    step: Step,
    place: RequestPlace,
}

/// The next request of the operation.
enum Step {
    Open,
    Read(Close),
    Close(Close),
    /// None: the result is `FileRead::Refused`.
    Refused,
    /// None: the result is `FileRead::Part`.
    Part(Close),
    /// None: the result is `FileRead::Whole`.
    Whole,
}

/// The place where the requests are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestPlace {
    /// The caller's thread, as far as that does not block.
    Here,
    ByDriver,
    /// A blocking thread, which waits for the device.
    ByThread,
    /// A blocking thread, which waits for the other end of a stream.
    Stream,
}

/// The result of a [`ReadFile`].
#[derive(Debug)]
pub enum FileRead {
    /// The contents of the file.
    Whole(Vec<u8>),
    /// The file is open, these are its first bytes, and there may be more.
    Part(OpenedFd, Vec<u8>),
    /// The file was not opened, because that might block, or because of an error.
    Refused,
}

impl ReadFile {
    /// Reads a file on the mount on which the lookup starts, which is known to be local. `here`: first on the
    /// caller's thread.
    pub(crate) fn local(
        at: At,
        mount: Option<u64>,
        here: bool,
        closer: Option<Arc<dyn CloseFd>>,
    ) -> ReadFile {
        ReadFile {
            at,
            mount,
            buf: Vec::with_capacity(FIRST_BYTES),
            closer,
            step: Step::Open,
            place: if here {
                RequestPlace::Here
            } else {
                RequestPlace::ByDriver
            },
        }
    }

    /// Opens and reads a regular file on a blocking thread. Opens no other file: a pipe waits for a writer.
    pub(crate) fn by_thread(at: At) -> ReadFile {
        ReadFile {
            at,
            mount: None,
            buf: Vec::new(),
            closer: None,
            step: Step::Open,
            place: RequestPlace::ByThread,
        }
    }

    /// Reads a stream, such as a pipe, on a blocking thread until its end. `bytes` have been read before. The caller
    /// owns `fd`, and gives it up.
    pub(crate) fn stream(fd: i32, mut bytes: Vec<u8>) -> ReadFile {
        bytes.reserve(FIRST_BYTES);
        ReadFile {
            buf: bytes,
            step: Step::Read(Close::new(fd, None)),
            place: RequestPlace::Stream,
            ..ReadFile::by_thread(At::Path(CString::default()))
        }
    }

    /// Opens a regular file, with a buffer of its length, and learns its mount. Returns the descriptor or a negative
    /// errno.
    fn open_regular(&mut self) -> i32 {
        let path = self.at.dir_path();
        let identity = match Identity::of_path(path) {
            Ok(identity) => identity,
            Err(error) => return -error.raw_os_error().unwrap_or(EIO),
        };
        let Some(bytes) = identity.regular_bytes() else {
            self.step = Step::Refused;
            return 0;
        };
        let bytes = match usize::try_from(bytes) {
            // Files of /proc have no length.
            Ok(0) => FIRST_BYTES,
            // One more, so that a read finds the end.
            Ok(bytes) if bytes <= JOB_BYTES_MAX => bytes + 1,
            _ => 0,
        };
        if self.buf.try_reserve_exact(bytes).is_err() {
            return -ENOMEM;
        }
        let is_learned = mount::learn_by_id(&identity);
        let raw = call::openat(path, O_TO_READ, 0);
        if raw >= 0
            && !is_learned
            && let Ok(opened) = Identity::of(raw)
        {
            mount::learn(raw, &opened);
        }
        raw
    }

    /// Adds `count` bytes that were read behind the others.
    fn advance(&mut self, count: usize) {
        let bytes = self.buf.len() + count.min(self.spare());
        // SAFETY: Written: the kernel has written `count` bytes there.
        unsafe { self.buf.set_len(bytes) };
    }

    /// Returns the size of the buffer that is left, bytes.
    fn spare(&self) -> usize {
        self.buf.capacity() - self.buf.len()
    }

    /// Reads into the rest of the buffer.
    fn pread(&mut self, raw: i32, flags: u32) -> i32 {
        let at = match self.place {
            RequestPlace::Stream => {
                // A pipe that was opened without a writer has ended only after it has had one.
                call::wait_until_readable(raw);
                AT_POSITION
            }
            _ => self.buf.len() as u64,
        };
        let spare = self.buf.spare_capacity_mut();
        let flags = TransferFlags::new(flags);
        // SAFETY: Lent: `spare` is borrowed for the call, which does not outlast it.
        unsafe { transfer_call::pread(raw, spare.as_mut_ptr().cast(), spare.len(), at, flags) }
    }

    /// Makes the requests on the caller's thread, up to the first one that would block.
    fn run_here(&mut self) -> SyncAttempt {
        let raw = match call::open_here(self.at.dir_path(), O_TO_READ, false) {
            raw if raw >= 0 => raw,
            res if res == -ENOENT => return SyncAttempt::Done(res),
            _ => {
                self.step = Step::Refused;
                return SyncAttempt::Done(0);
            }
        };
        let mut close = Close::new(raw, None);
        loop {
            match self.pread(raw, RWF_NOWAIT) {
                0 => {
                    let res = close.syscall();
                    drop(close.complete(res));
                    self.step = Step::Whole;
                    break;
                }
                res if res > 0 => self.advance(count(res)),
                _ => {
                    self.step = Step::Part(close);
                    break;
                }
            }
            if self.spare() == 0 {
                self.step = Step::Part(close);
                break;
            }
        }
        SyncAttempt::Done(0)
    }

    /// Takes the next step after a read with the result `res`.
    fn after_read(&mut self, close: Close, res: i32) -> Resume {
        if res > 0 {
            self.advance(count(res));
        }
        let is_full = self.spare() == 0;
        // The bytes from which on the caller reads the rest.
        let (bytes_max, may_be_pipe) = match self.place {
            RequestPlace::Here | RequestPlace::ByDriver => (0, true),
            RequestPlace::ByThread => (JOB_BYTES_MAX, false),
            RequestPlace::Stream => (usize::MAX, false),
        };
        let (step, resume) = match res {
            0 if !may_be_pipe || !self.buf.is_empty() => (Step::Close(close), Resume::Next),
            // An empty file, or a pipe that has no writer yet.
            0 => (Step::Part(close), Resume::Done(0)),
            ..0 if res == -ESPIPE => (Step::Part(close), Resume::Done(0)),
            ..0 => (Step::Read(close), retry_interrupted(res)),
            _ if is_full && self.buf.len() > bytes_max => (Step::Part(close), Resume::Done(0)),
            _ if is_full && self.buf.try_reserve(self.buf.len()).is_err() => {
                (Step::Read(close), Resume::Done(-ENOMEM))
            }
            _ => (Step::Read(close), Resume::Next),
        };
        self.step = step;
        resume
    }
}

// SAFETY: Lent, Still, Open: the op owns path and buffer, on the heap, and the descriptor; `READ_HERE` is static.
unsafe impl Op for ReadFile {
    const INFO: OpInfo = table::READ_FILE;

    fn sqe(&mut self) -> Sqe {
        match &mut self.step {
            Step::Open => Sqe {
                addr: self.at.addr(),
                len: to_u32(size_of::<OpenHow>()),
                off: (&raw const READ_HERE) as u64,
                ..Sqe::new(opcode::OPENAT2, self.at.raw())
            },
            Step::Read(close) => {
                let raw = close.raw();
                let spare = self.buf.spare_capacity_mut();
                Sqe {
                    addr: spare.as_mut_ptr() as u64,
                    len: super::transfer_len(spare.len()),
                    off: self.buf.len() as u64,
                    ..Sqe::new(opcode::READ, raw)
                }
            }
            Step::Close(close) => close.sqe(),
            Step::Refused | Step::Part(_) | Step::Whole => Sqe::new(opcode::NOP, -1),
        }
    }

    fn resume(&mut self, res: i32) -> Resume {
        // A request that was cancelled had no effect, and may be made again.
        if !has_run(res) {
            return Resume::Done(res);
        }
        match mem::replace(&mut self.step, Step::Open) {
            Step::Open if res >= 0 => {
                let close = Close::new(res, self.closer.clone());
                if self.spare() == 0 {
                    // A large file, which is left to the caller.
                    self.step = Step::Part(close);
                    return Resume::Done(0);
                }
                self.step = Step::Read(close);
                Resume::Next
            }
            Step::Open if matches!(-res, EINTR | ERESTARTSYS) => Resume::Again,
            Step::Open if res == -ENOENT || self.place == RequestPlace::ByThread => {
                Resume::Done(res)
            }
            Step::Open => {
                self.step = Step::Refused;
                Resume::Done(0)
            }
            Step::Read(close) => self.after_read(close, res),
            over => {
                self.step = over;
                Resume::Done(res)
            }
        }
    }

    fn complete(self, res: i32) -> io::Result<FileRead> {
        let mut buf = self.buf;
        match self.step {
            Step::Open => {
                // An operation that is dropped gets the descriptor here.
                let opened = check(res).map(|_| Close::new(res, self.closer));
                return opened.map(|_| FileRead::Refused);
            }
            Step::Read(_) => return check(res).map(|_| FileRead::Refused),
            Step::Close(close) => drop(close.complete(res)),
            Step::Refused => return Ok(FileRead::Refused),
            Step::Part(close) => {
                // SAFETY: Open: the operation owns the descriptor, and gives it up.
                let fd = unsafe { Fd::own(close.give_up(), self.closer) };
                fd.set_open_flags(O_TO_READ);
                if self.mount.is_some() {
                    fd.set_file_system(FileSystem::Local);
                    fd.note_nonblocking();
                }
                let (flags, mount) = (O_TO_READ, self.mount);
                return Ok(FileRead::Part(OpenedFd { fd, flags, mount }, buf));
            }
            Step::Whole => {}
        }
        buf.shrink_to_fit();
        Ok(FileRead::Whole(buf))
    }
}

impl Returns for ReadFile {
    type Output = io::Result<FileRead>;
}

impl FileOp for ReadFile {
    fn opcode(&self) -> u8 {
        match self.place {
            RequestPlace::ByThread | RequestPlace::Stream => opcode::BY_THREAD,
            RequestPlace::Here | RequestPlace::ByDriver => Self::INFO.opcode,
        }
    }

    fn syscall(&mut self) -> i32 {
        match &mut self.step {
            Step::Open if self.place == RequestPlace::ByThread => self.open_regular(),
            Step::Open => call::open_here(self.at.dir_path(), O_TO_READ, false),
            Step::Read(close) => {
                let raw = close.raw();
                self.pread(raw, 0)
            }
            Step::Close(close) => close.syscall(),
            Step::Refused | Step::Part(_) | Step::Whole => 0,
        }
    }

    fn try_sync(&mut self) -> SyncAttempt {
        if self.place != RequestPlace::Here {
            return SyncAttempt::NotTried;
        }
        self.place = RequestPlace::ByDriver;
        self.run_here()
    }

    fn has_sync_path(&self) -> bool {
        self.place == RequestPlace::Here
    }

    fn bytes(&self) -> u32 {
        u32::try_from(self.buf.capacity()).unwrap_or(u32::MAX)
    }
}
