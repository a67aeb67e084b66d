//! Linux AIO by its raw system calls (`io_setup`, `io_submit`, `io_getevents`): the interface before io_uring.
//!
//! One context per thread. Submits what is new in one call, waits for one completion, takes all there are.
//! On a buffered file the kernel does the work inside `io_submit`: depth changes nothing but the latency.
//!
//! # Safety
//!
//! Control blocks and memory live in the driver until the context is destroyed, and `io_destroy` waits
//! for what is in flight. A slot is looked at only between its event and its next submission.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;

use crate::threads::{on_threads, slept_until_later};
use crate::{Bench, Failure, Finished, Job, Memory, Op, Variant, Worker};

const IOCB_CMD_PREAD: u16 = 0;
const IOCB_CMD_PWRITE: u16 = 1;

/// From there on, submitting to a buffered file takes longer than a run.
const SYNCHRONOUS_MAX: usize = 4096;

/// Linux AIO: how its calls are batched.
#[derive(Clone, Copy, Debug)]
pub struct LinuxAio {
    /// Submit after this many new operations, or all that are new if fewer.
    pub submit_every: usize,
    /// Events to wait for, and the most to take, in one call.
    pub wait_for: usize,
    /// As above.
    pub take: usize,
    /// Ask for new operations only when no more than this many are outstanding.
    pub refill_at: usize,
}

impl Default for LinuxAio {
    /// All that is new in one call; wait for one event and take all there are.
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
                 see it with --direct",
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

/// One thread's AIO context.
struct Context {
    id: libc::c_ulong,
    memory: Memory,
    blocks: Vec<ControlBlock>,
    events: Vec<Event>,
    ops: Vec<Op>,
    /// Control blocks to submit; room for all of them, so it never grows.
    fresh: Vec<*mut ControlBlock>,
    fds: Vec<u32>,
    /// `RWF_DSYNC` for durable writes.
    write_flags: u32,
    /// Slots that no operation is in.
    idle: Vec<usize>,
    batching: LinuxAio,
    in_flight: usize,
}

impl Context {
    fn new(batching: LinuxAio, job: &Job, depth: usize) -> Result<Context, Failure> {
        let memory = Memory::new(depth, job.block_bytes)?;
        let mut id: libc::c_ulong = 0;
        // SAFETY: `id` is zero, as the call demands, and lives through it.
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

    /// The loop; returns how many calls it made.
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
            let submits = self.submit()?;
            calls += submits;
            (0..submits).for_each(|_| worker.called());
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
                // SAFETY: the event says that the kernel is done with this slot; it is requested again below.
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
                    let submits = self.submit()?;
                    calls += submits;
                    (0..submits).for_each(|_| worker.called());
                }
            }
        }
    }

    /// Prepares the next operation in `slot`, if the worker has one; if not, the slot is idle.
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

    /// Submits all that is new; returns how many calls that took.
    fn submit(&mut self) -> Result<u64, Failure> {
        let (mut done, mut calls) = (0, 0);
        while done < self.fresh.len() {
            let rest = &mut self.fresh[done..];
            // SAFETY: `rest` holds `rest.len()` pointers to control blocks in `self.blocks`, which does
            // not move or grow; each points to a slot of `memory` and to a file that the job keeps open.
            let count = unsafe {
                libc::syscall(
                    libc::SYS_io_submit,
                    self.id,
                    rest.len() as libc::c_long,
                    rest.as_mut_ptr(),
                )
            };
            calls += 1;
            if count > 0 {
                done += count as usize;
                self.in_flight += count as usize;
                continue;
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                // EAGAIN: no room; we never ask for more than `io_setup` gave, so it is the machine's limit.
                _ => return Err(Failure::failed("io_submit", &error)),
            }
        }
        self.fresh.clear();
        Ok(calls)
    }

    /// Waits for at least one event; returns how many came.
    fn wait(&mut self) -> Result<usize, Failure> {
        loop {
            let least = self.batching.wait_for.clamp(1, self.in_flight) as libc::c_long;
            let most = (self.batching.take.min(self.events.len()) as libc::c_long).max(least);
            let events = self.events.as_mut_ptr();
            let forever: *const libc::timespec = std::ptr::null();
            // SAFETY: `events` has room for `most` entries and is not touched by others during the call.
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
        // SAFETY: the context is ours and destroyed only here. The call waits for what is in flight, so the
        // memory, which is dropped after this, is no longer known to the kernel.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.id) };
    }
}
