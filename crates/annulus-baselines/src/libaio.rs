//! Linux AIO by its raw system calls (`io_setup`, `io_submit`, `io_getevents`), the predecessor of io_uring.
//!
//! Each thread has one context. It submits all new operations in one call, waits for one completion, and takes all that
//! are available. On a buffered file the kernel does the I/O inside `io_submit`, so a greater depth only increases the
//! latency.
//!
//! # Safety
//!
//! Control blocks and memory live in the context until it is destroyed, and `io_destroy` waits for the operations in
//! flight. The bytes of a slot are accessed only between its event and its next submission.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;

use crate::threads::{on_threads, slept_until_later};
use crate::{Bench, Failure, Finished, Job, Memory, Op, Variant, Worker};

const IOCB_CMD_PREAD: u16 = 0;
const IOCB_CMD_PWRITE: u16 = 1;

/// The largest depth for buffered files. With more, one submission takes longer than a run.
const SYNCHRONOUS_MAX: usize = 4096;

/// Linux AIO, with its batching options.
#[derive(Clone, Copy, Debug)]
pub struct LinuxAio {
    /// The number of new operations per submission, or all new ones if there are fewer.
    pub submit_every: usize,
    /// The number of events to wait for in one call.
    pub wait_for: usize,
    /// The largest number of events to take in one call.
    pub take: usize,
    /// Refill only when no more than this many operations are in flight.
    pub refill_at: usize,
}

impl Default for LinuxAio {
    /// Submits all new operations in one call, waits for one event and takes all that are available.
    fn default() -> LinuxAio {
        LinuxAio {
            submit_every: usize::MAX,
            wait_for: 1,
            take: usize::MAX,
            refill_at: usize::MAX,
        }
    }
}

impl<B: Bench> Variant<B> for LinuxAio {
    fn name(&self) -> &str {
        "libaio"
    }

    fn about(&self) -> &str {
        "Linux AIO by raw system calls, one thread; synchronous on a buffered file"
    }

    fn unfit(&self, job: &Job) -> Option<String> {
        (!job.direct && job.depth > SYNCHRONOUS_MAX).then(|| {
            format!(
                "on a buffered file it does the work while it submits: {} would come one after the other; \
                 use --direct",
                job.depth
            )
        })
    }

    fn run(&self, job: &Job, bench: &B) -> Result<Finished, Failure> {
        let depths = job.split_depth(job.threads.unwrap_or(1));
        let calls = on_threads(
            bench,
            depths.len(),
            |index| Context::new(*self, job, depths[index]),
            |mut context: Context, worker: &mut B::Worker| context.drive(worker),
        )?;
        Ok(Finished {
            calls: Some(calls),
            note: None,
        })
    }
}

/// `struct iocb` of linux/aio_abi.h, little endian.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ControlBlock {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_fd: u32,
}

/// `struct io_event` of linux/aio_abi.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    object: u64,
    result: i64,
    result2: i64,
}

/// The AIO context of one thread.
struct Context {
    id: libc::c_ulong,
    memory: Memory,
    blocks: Vec<ControlBlock>,
    events: Vec<Event>,
    ops: Vec<Op>,
    /// The control blocks to submit. Its capacity is the depth, so it never grows.
    fresh: Vec<*mut ControlBlock>,
    fds: Vec<u32>,
    /// `RWF_DSYNC` for durable writes.
    write_flags: u32,
    /// The slots without an operation.
    idle: Vec<usize>,
    batching: LinuxAio,
    in_flight: usize,
}

impl Context {
    fn new(batching: LinuxAio, job: &Job, depth: usize) -> Result<Context, Failure> {
        let memory = Memory::new(depth, job.block_bytes)?;
        let mut id: libc::c_ulong = 0;
        // SAFETY: `id` is zero, as the call requires, and outlives the call.
        let code = unsafe { libc::syscall(libc::SYS_io_setup, depth as libc::c_long, &raw mut id) };
        if code != 0 {
            let error = io::Error::last_os_error();
            return Err(match error.raw_os_error() {
                Some(libc::EAGAIN) => Failure::Unavailable(format!(
                    "io_setup({depth}): more than fs.aio-max-nr allows; raise it with `sysctl -w fs.aio-max-nr=1048576`"
                )),
                _ => Failure::of_setup(&format!("io_setup({depth})"), &error),
            });
        }
        Ok(Context {
            id,
            memory,
            blocks: vec![ControlBlock::default(); depth],
            events: vec![Event::default(); depth],
            ops: vec![Op::default(); depth],
            fresh: Vec::with_capacity(depth),
            fds: job
                .files
                .iter()
                .map(|file| file.as_raw_fd() as u32)
                .collect(),
            write_flags: if job.durable {
                libc::RWF_DSYNC as u32
            } else {
                0
            },
            idle: (0..depth).rev().collect(),
            batching,
            in_flight: 0,
        })
    }

    /// Runs the loop. Returns the number of system calls.
    fn drive<L: Worker>(&mut self, worker: &mut L) -> Result<u64, Failure> {
        let mut calls = 0;
        let drains = self.batching.refill_at < self.ops.len();
        loop {
            if !drains || self.in_flight <= self.batching.refill_at {
                while let Some(slot) = self.idle.pop() {
                    if !self.prepare_next(worker, slot) {
                        break;
                    }
                }
            }
            calls += self.submit(worker)?;
            if self.in_flight == 0 {
                if !slept_until_later(worker) {
                    return Ok(calls);
                }
                continue;
            }
            let count = self.wait()?;
            calls += 1;
            worker.called();
            for index in 0..count {
                let event = self.events[index];
                let slot = event.data as usize;
                self.in_flight -= 1;
                // SAFETY: the event shows that the kernel has finished with this slot, which is submitted again only
                // below.
                let bytes = unsafe { self.memory.slot(slot) };
                let result = usize::try_from(event.result)
                    .map_err(|_| io::Error::from_raw_os_error(-event.result as i32));
                let op = self.ops[slot];
                worker.finish(op, result, &bytes[..op.bytes as usize]);
                if drains {
                    self.idle.push(slot);
                } else if self.prepare_next(worker, slot)
                    && self.fresh.len() >= self.batching.submit_every
                {
                    calls += self.submit(worker)?;
                }
            }
        }
    }

    /// Prepares the next operation in `slot`. Returns `false`, with the slot idle, if the worker has none.
    fn prepare_next<L: Worker>(&mut self, worker: &mut L, slot: usize) -> bool {
        let Some(op) = worker.next() else {
            self.idle.push(slot);
            return false;
        };
        self.ops[slot] = op;
        if op.write {
            // SAFETY: the slot is not in flight: it is new, or its event has been taken.
            let bytes = unsafe { self.memory.slot(slot) };
            worker.fill(&op, &mut bytes[..op.bytes as usize]);
        }
        self.blocks[slot] = ControlBlock {
            data: slot as u64,
            opcode: if op.write {
                IOCB_CMD_PWRITE
            } else {
                IOCB_CMD_PREAD
            },
            rw_flags: if op.write { self.write_flags } else { 0 },
            fd: self.fds[op.file as usize],
            buffer: self.memory.slot_ptr(slot) as u64,
            bytes: u64::from(op.bytes),
            offset: op.offset as i64,
            ..ControlBlock::default()
        };
        self.fresh.push(&raw mut self.blocks[slot]);
        true
    }

    /// Submits all new operations. Returns the number of calls.
    fn submit<L: Worker>(&mut self, worker: &mut L) -> Result<u64, Failure> {
        let (mut done, mut calls) = (0, 0);
        while done < self.fresh.len() {
            let rest = &mut self.fresh[done..];
            // SAFETY: `rest` holds `rest.len()` pointers to control blocks in `self.blocks`, which does not move or
            // grow. Each refers to a slot of `memory` and to a file that the job keeps open.
            let count = unsafe {
                libc::syscall(
                    libc::SYS_io_submit,
                    self.id,
                    rest.len() as libc::c_long,
                    rest.as_mut_ptr(),
                )
            };
            calls += 1;
            worker.called();
            if count > 0 {
                done += count as usize;
                self.in_flight += count as usize;
                continue;
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                // EAGAIN: the machine's limit, as the number in flight never exceeds the argument of `io_setup`.
                _ => return Err(Failure::failed("io_submit", &error)),
            }
        }
        self.fresh.clear();
        Ok(calls)
    }

    /// Waits for at least one event. Returns the number of events.
    fn wait(&mut self) -> Result<usize, Failure> {
        loop {
            let least = self.batching.wait_for.clamp(1, self.in_flight) as libc::c_long;
            let most = (self.batching.take.min(self.events.len()) as libc::c_long).max(least);
            let events = self.events.as_mut_ptr();
            let forever: *const libc::timespec = std::ptr::null();
            // SAFETY: `events` has room for `most` entries, and only the kernel accesses it during the call.
            let count = unsafe {
                libc::syscall(
                    libc::SYS_io_getevents,
                    self.id,
                    least,
                    most,
                    events,
                    forever,
                )
            };
            if count > 0 {
                return Ok(count as usize);
            }
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EINTR) {
                return Err(Failure::failed("io_getevents", &error));
            }
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context is destroyed only here. The call waits for the operations in flight, so the kernel no
        // longer uses the memory, which is dropped later.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.id) };
    }
}
