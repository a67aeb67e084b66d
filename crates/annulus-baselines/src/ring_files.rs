//! A hand-written ring for a load of small files: OPENAT, READ and CLOSE, one enter per batch of completions.
//!
//! The query of the metadata is a system call, because a ring gives STATX to a kernel worker. A load of whole files has
//! a second read instead, which finds the end of the file.
//!
//! # Safety
//!
//! An SQE points to a path, or to a slot of a [`Memory`]. Both live until nothing is in flight, and are leaked if an
//! enter fails earlier. The bytes of a slot are accessed only between the CQE of its read and its next read.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;

use io_uring::{IoUring, opcode, squeue, types};

use crate::call::whole;
use crate::ring::{Setup, build, kernel_result, push_entry, submit_and_wait};
use crate::threads::slept_until_later;
use crate::{Failure, Job, Memory, Op, Worker};

/// The ring of one thread. Fields are dropped in this order: the ring before the memory that it points to.
pub(crate) struct FilesDriver {
    ring: ManuallyDrop<IoUring>,
    memory: ManuallyDrop<Memory>,
    paths: ManuallyDrop<Vec<CString>>,
    whole: bool,
    slots: Vec<(Op, Step)>,
    in_flight: usize,
}

/// The request of a slot that is in flight.
enum Step {
    Open,
    Read(File),
    /// A read at the end of the file, which has this many bytes.
    End(File, usize),
    /// Has the result of the read.
    Close(io::Result<usize>),
}

impl FilesDriver {
    pub(crate) fn new(setup: Setup, job: &Job, depth: usize) -> Result<FilesDriver, Failure> {
        let paths = (job.paths.iter())
            .map(|path| CString::new(path.as_os_str().as_bytes()))
            .collect::<Result<_, _>>()
            .map_err(|error| Failure::Failed(format!("the path of a small file: {error}")))?;
        Ok(FilesDriver {
            ring: ManuallyDrop::new(build(setup, false, depth)?),
            // One more byte, so that a read of a whole file does not fill its slot.
            memory: ManuallyDrop::new(Memory::new(depth, job.block_bytes + 1)?),
            paths: ManuallyDrop::new(paths),
            whole: job.whole,
            slots: (0..depth).map(|_| (Op::default(), Step::Open)).collect(),
            in_flight: 0,
        })
    }

    /// Runs the loop. Returns the number of system calls.
    pub(crate) fn drive<L: Worker>(&mut self, worker: &mut L) -> Result<u64, Failure> {
        let FilesDriver {
            ring,
            memory,
            paths,
            whole,
            slots,
            in_flight,
        } = self;
        let (submitter, mut sq, mut cq) = ring.split();
        let mut idle: Vec<usize> = (0..slots.len()).rev().collect();
        let mut calls = 0;
        loop {
            while let Some(index) = idle.pop() {
                let Some(op) = worker.next() else {
                    idle.push(index);
                    break;
                };
                slots[index] = (op, Step::Open);
                push(&mut sq, open(&paths[op.file as usize]), index)?;
                *in_flight += 1;
            }
            if *in_flight == 0 {
                if !slept_until_later(worker) {
                    return Ok(calls);
                }
                continue;
            }
            calls += 1;
            worker.called();
            submit_and_wait(&submitter, &mut sq, &mut cq, 1)?;
            for cqe in &mut cq {
                let index = cqe.user_data() as usize;
                let (op, step) = &mut slots[index];
                let result = kernel_result(cqe.result());
                // SAFETY: no read of this slot is in flight: its CQE has been taken, or it is pushed below.
                let memory = unsafe { &mut memory.slot(index)[..=op.bytes as usize] };
                calls += u64::from(matches!(step, Step::Open) && !*whole);
                match step.then(result, memory, *whole) {
                    Next::Request(entry) => push(&mut sq, entry, index)?,
                    Next::Result(result) => {
                        *in_flight -= 1;
                        worker.finish(*op, result, &memory[..op.bytes as usize]);
                        idle.push(index);
                    }
                }
            }
        }
    }
}

/// The continuation after a CQE.
enum Next {
    Request(squeue::Entry),
    /// The result of the whole operation.
    Result(io::Result<usize>),
}

impl Step {
    /// Takes the next step after `result`. `memory` has one byte more than the file.
    fn then(&mut self, result: io::Result<usize>, memory: &mut [u8], is_whole: bool) -> Next {
        let bytes = memory.len() - 1;
        match std::mem::replace(self, Step::Open) {
            Step::Open => match result.and_then(|fd| opened(fd, (!is_whole).then_some(bytes))) {
                Ok(file) => {
                    let length = bytes + usize::from(is_whole);
                    let entry = read(&file, &mut memory[..length], 0);
                    *self = Step::Read(file);
                    Next::Request(entry)
                }
                Err(error) => Next::Result(Err(error)),
            },
            Step::Read(file) => match result {
                Ok(read_bytes) if is_whole && read_bytes <= bytes => {
                    let entry = read(&file, &mut memory[read_bytes..], read_bytes);
                    *self = Step::End(file, read_bytes);
                    Next::Request(entry)
                }
                result => self.close(file, result),
            },
            Step::End(file, read_bytes) => {
                let result = result.and_then(|more| whole((read_bytes + more) as u64, bytes));
                self.close(file, result)
            }
            Step::Close(read) => Next::Result(result.and(read)),
        }
    }

    fn close(&mut self, file: File, read: io::Result<usize>) -> Next {
        *self = Step::Close(read);
        Next::Request(opcode::Close::new(types::Fd(file.into_raw_fd())).build())
    }
}

fn read(file: &File, into: &mut [u8], offset: usize) -> squeue::Entry {
    opcode::Read::new(
        types::Fd(file.as_raw_fd()),
        into.as_mut_ptr(),
        into.len() as u32,
    )
    .offset(offset as u64)
    .build()
}

/// Takes over the descriptor of a file. If `bytes` is given, queries the length, which must be that.
fn opened(fd: usize, bytes: Option<usize>) -> io::Result<File> {
    // SAFETY: the kernel has just opened this descriptor for the ring, and nothing else owns it.
    let file = unsafe { File::from_raw_fd(fd as i32) };
    if let Some(bytes) = bytes {
        whole(file.metadata()?.len(), bytes)?;
    }
    Ok(file)
}

fn open(path: &CString) -> squeue::Entry {
    opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), path.as_ptr())
        .flags(libc::O_RDONLY | libc::O_CLOEXEC)
        .build()
}

fn push(
    sq: &mut squeue::SubmissionQueue<'_>,
    entry: squeue::Entry,
    index: usize,
) -> Result<(), Failure> {
    // SAFETY: the entry points to a path or a slot that stays until its CQE (see the head of this file), or to a
    // descriptor that its step owns.
    unsafe { push_entry(sq, entry, index) }
}

impl Drop for FilesDriver {
    fn drop(&mut self) {
        // An enter failed with requests in flight, so the kernel may still use the memory and the paths.
        if self.in_flight > 0 {
            return;
        }
        // SAFETY: dropped only here, the ring first, with nothing in flight.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
        // SAFETY: dropped only here, after the ring.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
        // SAFETY: dropped only here, after the ring.
        unsafe { ManuallyDrop::drop(&mut self.paths) };
    }
}
