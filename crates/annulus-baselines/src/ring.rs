//! A hand-written ring on the `io_uring` crate: the base of every ratio, and its variants.
//!
//! Each thread has one ring. The basic loop pushes operations, enters once to submit them and to wait for one
//! completion, takes all available completions, and replaces each by a new operation. `ring_files.rs` has the loop for
//! a load of small files. One long file, because all variants share the loop.
//!
//! # Safety
//!
//! An SQE points to a slot of a [`Memory`] that lives until nothing is in flight. The loop returns only then. If an
//! enter fails earlier, the ring and the memory are leaked on purpose. The bytes of a slot are accessed only between
//! its CQE and its next SQE. The files outlive the run.

#![allow(unsafe_code)]

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, Submitter, cqueue, opcode, squeue, types};

use crate::forbidden::rings_allowed;
use crate::ring_files::FilesDriver;
use crate::threads::{on_threads, slept_until_later};
use crate::{Bench, Failure, Finished, Job, Memory, Op, Variant, Worker};

/// The time that an SQPOLL thread spins before it sleeps.
const SQPOLL_IDLE_MS: u32 = 50;
/// The largest batch, as with fio's `iodepth_batch`. Larger batches only add latency.
const BATCH_MAX: usize = 32;
/// The kernel's limits: entries of a submission queue, and registered buffers of a ring.
const ENTRIES_MAX: usize = 32_768;
const BUFFERS_MAX: usize = 16_384;

/// The set-up mode of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setup {
    /// `SINGLE_ISSUER | DEFER_TASKRUN`: the kernel runs completion work only inside the thread's own enter.
    Deferred,
    /// No flags.
    Plain,
    /// `SQPOLL`: a kernel thread submits.
    Polled,
}

/// The policy for entering the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitPolicy {
    /// Enter once per batch of completions, and wait for one completion.
    Once,
    /// Enter as with `Once`, and also after every N new operations while reaping.
    Every(usize),
    /// Enter once per batch of completions, and wait for half the depth (at most 32).
    Batch,
    /// The batch options of a job file.
    Configured {
        /// Submit after this many new operations while reaping.
        submit_every: usize,
        /// The number of completions to wait for.
        wait_for: usize,
        /// Start new operations only when at most this many are in flight.
        refill_at: usize,
    },
}

/// The resources registered with the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registered {
    /// The files and the memory.
    FilesAndBuffers,
    /// The files.
    Files,
    /// The memory.
    Buffers,
    /// Nothing.
    Nothing,
}

/// A hand-written ring.
#[derive(Clone, Debug)]
pub struct Ring {
    name: &'static str,
    about: &'static str,
    setup: Setup,
    submit_policy: SubmitPolicy,
    registered: Registered,
    /// `IOPOLL`: the kernel polls the device for completions.
    device_polled: bool,
}

/// The fastest plain form, which the others vary.
const BASE: Ring = Ring {
    name: "base",
    about: "hand-written ring: registered file and buffers, DEFER_TASKRUN, one enter per batch of completions",
    setup: Setup::Deferred,
    submit_policy: SubmitPolicy::Once,
    registered: Registered::FilesAndBuffers,
    device_polled: false,
};

impl Ring {
    /// Returns a ring with the options of a job file.
    pub fn with_options(
        setup: Setup,
        submit_policy: SubmitPolicy,
        registered: Registered,
        device_polled: bool,
    ) -> Ring {
        Ring {
            name: "io_uring",
            about: "hand-written ring with the options of the job file",
            setup,
            submit_policy,
            registered,
            device_polled,
        }
    }

    /// Returns the base and its variants, the base first.
    pub fn variants() -> [Ring; 6] {
        [
            BASE,
            Ring {
                name: "base-chunk2",
                about: "base, submitting every 2 operations while reaping (a ceiling)",
                submit_policy: SubmitPolicy::Every(2),
                ..BASE
            },
            Ring {
                name: "base-chunk8",
                about: "base, submitting every 8 operations while reaping (a ceiling)",
                submit_policy: SubmitPolicy::Every(8),
                ..BASE
            },
            Ring {
                name: "base-batch",
                about: "base, waiting for half the depth, at most 32 (a ceiling)",
                submit_policy: SubmitPolicy::Batch,
                ..BASE
            },
            Ring {
                name: "base-unregistered",
                about: "base without registered file and buffers",
                registered: Registered::Nothing,
                ..BASE
            },
            Ring {
                name: "base-sqpoll",
                about: "base with a kernel thread that polls the submission queue",
                setup: Setup::Polled,
                ..BASE
            },
        ]
    }
}

impl<B: Bench> Variant<B> for Ring {
    fn name(&self) -> &str {
        self.name
    }

    fn about(&self) -> &str {
        self.about
    }

    fn opens_files(&self) -> bool {
        let Ring {
            setup, registered, ..
        } = self;
        // The others would be the same, because nothing is registered.
        *registered == Registered::FilesAndBuffers
            && self.submit_policy == SubmitPolicy::Once
            && *setup != Setup::Polled
    }

    fn unfit(&self, job: &Job) -> Option<String> {
        let most = job.split_depth(job.threads.unwrap_or(1)).into_iter().max();
        let entries = ring_entries(self.setup, most.unwrap_or(1));
        (entries > ENTRIES_MAX).then(|| {
            format!("its ring would need {entries} entries, more than the limit of {ENTRIES_MAX}; use --threads 2")
        })
    }

    fn run(&self, job: &Job, bench: &B) -> Result<Finished, Failure> {
        let (kind, note) = self.as_this_kernel_can();
        let depths = job.split_depth(job.threads.unwrap_or(1));
        let calls = if job.paths.is_empty() {
            on_threads(
                bench,
                depths.len(),
                |index| Driver::new(&kind, job, depths[index]),
                |mut driver: Driver, worker: &mut B::Worker| driver.drive(worker),
            )?
        } else {
            on_threads(
                bench,
                depths.len(),
                |index| FilesDriver::new(kind.setup, job, depths[index]),
                |mut driver: FilesDriver, worker: &mut B::Worker| driver.drive(worker),
            )?
        };
        Ok(Finished {
            calls: Some(calls),
            note,
        })
    }
}

impl Ring {
    /// Returns this ring. If the kernel refuses `DEFER_TASKRUN` (before Linux 6.1), returns a ring without flags, and a
    /// note.
    fn as_this_kernel_can(&self) -> (Ring, Option<String>) {
        if self.setup != Setup::Deferred
            || !matches!(
                build(self.setup, self.device_polled, 1),
                Err(Failure::Unavailable(_))
            )
        {
            return (self.clone(), None);
        }
        let plain = Ring {
            setup: Setup::Plain,
            ..self.clone()
        };
        (
            plain,
            Some("this kernel refuses DEFER_TASKRUN: a ring without flags".into()),
        )
    }
}

/// The ring of one thread. Fields are dropped in this order: the ring before the memory that it points to.
struct Driver {
    ring: ManuallyDrop<IoUring>,
    memory: ManuallyDrop<Memory>,
    ops: Vec<Op>,
    /// The slots without an operation.
    idle: Vec<usize>,
    target: Target,
    /// The number of new operations per submission while reaping.
    chunk: usize,
    /// The number of completions to wait for.
    wait_for: usize,
    /// Refill only when no more than this many operations are in flight.
    refill_at: usize,
    in_flight: usize,
}

impl Driver {
    fn new(kind: &Ring, job: &Job, depth: usize) -> Result<Driver, Failure> {
        u32::try_from(job.block_bytes).map_err(|_| {
            Failure::Unavailable(format!(
                "a block of {} bytes exceeds the length field of an SQE",
                job.block_bytes
            ))
        })?;
        let memory = Memory::new(depth, job.block_bytes)?;
        let ring = build(kind.setup, kind.device_polled, depth)?;
        use Registered::{Buffers, Files, FilesAndBuffers};
        if matches!(kind.registered, Files | FilesAndBuffers) {
            register_files(&ring, job)?;
        }
        if matches!(kind.registered, Buffers | FilesAndBuffers) {
            register_buffers(&ring, job, &memory, depth)?;
        }
        Ok(Driver {
            ring: ManuallyDrop::new(ring),
            memory: ManuallyDrop::new(memory),
            ops: vec![Op::default(); depth],
            idle: (0..depth).rev().collect(),
            target: Target {
                fds: job.files.iter().map(AsRawFd::as_raw_fd).collect(),
                registered: kind.registered,
                slots_per_buffer: depth.div_ceil(BUFFERS_MAX),
                write_flags: if job.durable { libc::RWF_DSYNC } else { 0 },
            },
            chunk: match kind.submit_policy {
                SubmitPolicy::Every(count) => count,
                SubmitPolicy::Configured { submit_every, .. } => submit_every,
                SubmitPolicy::Once | SubmitPolicy::Batch => usize::MAX,
            },
            wait_for: match kind.submit_policy {
                SubmitPolicy::Batch => (depth / 2).clamp(1, BATCH_MAX),
                SubmitPolicy::Configured { wait_for, .. } => wait_for.max(1),
                SubmitPolicy::Once | SubmitPolicy::Every(_) => 1,
            },
            refill_at: match kind.submit_policy {
                SubmitPolicy::Configured { refill_at, .. } => refill_at,
                SubmitPolicy::Once | SubmitPolicy::Every(_) | SubmitPolicy::Batch => depth,
            },
            in_flight: 0,
        })
    }

    /// Runs the loop. Returns the number of enters.
    fn drive<L: Worker>(&mut self, worker: &mut L) -> Result<u64, Failure> {
        let (chunk, wait_for, refill_at) = (self.chunk, self.wait_for, self.refill_at);
        let Driver {
            ring,
            memory,
            ops,
            idle,
            target,
            in_flight,
            ..
        } = self;
        let (submitter, mut sq, mut cq) = ring.split();
        let (drains, mut calls) = (refill_at < ops.len(), 0);
        loop {
            if !drains || *in_flight <= refill_at {
                while let Some(slot) = idle.pop() {
                    let Some(op) = worker.next() else {
                        idle.push(slot);
                        break;
                    };
                    ops[slot] = op;
                    push(&mut sq, target, worker, memory, slot, &op)?;
                    *in_flight += 1;
                }
            }
            if *in_flight == 0 {
                if !slept_until_later(worker) {
                    return Ok(calls);
                }
                continue;
            }
            calls += 1;
            worker.called();
            submit_and_wait(&submitter, &mut sq, &mut cq, wait_for.min(*in_flight))?;
            let mut fresh = 0;
            for cqe in &mut cq {
                *in_flight -= 1;
                let slot = cqe.user_data() as usize;
                // SAFETY: this slot's CQE has just been taken, and its next SQE is not yet pushed.
                let bytes = unsafe { memory.slot(slot) };
                let op = ops[slot];
                worker.finish(op, kernel_result(cqe.result()), &bytes[..op.bytes as usize]);
                let next = if drains { None } else { worker.next() };
                let Some(op) = next else {
                    idle.push(slot);
                    continue;
                };
                ops[slot] = op;
                push(&mut sq, target, worker, memory, slot, &op)?;
                *in_flight += 1;
                fresh += 1;
                if fresh == chunk {
                    fresh = 0;
                    sq.sync();
                    calls += 1;
                    worker.called();
                    enter(submitter.submit())?;
                    sq.sync();
                }
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // An enter failed with operations in flight, so the kernel may still write to the memory.
        if self.in_flight > 0 {
            return;
        }
        // SAFETY: dropped only here, the ring first, with nothing in flight.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
        // SAFETY: dropped only here, after the ring that had registered the memory.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}

/// The properties that all SQEs of a run share.
struct Target {
    fds: Vec<i32>,
    registered: Registered,
    /// The number of slots per registered buffer: 1, unless the depth exceeds the kernel's limit of buffers.
    slots_per_buffer: usize,
    /// `RWF_DSYNC` for durable writes.
    write_flags: i32,
}

/// Returns the number of entries for `depth` operations. An SQPOLL thread can complete a batch before it publishes that
/// it has taken the entries, so its queue has room for a second batch.
fn ring_entries(setup: Setup, depth: usize) -> usize {
    let entries = if setup == Setup::Polled {
        2 * depth
    } else {
        depth
    };
    entries.next_power_of_two()
}

pub(crate) fn build(setup: Setup, device_polled: bool, depth: usize) -> Result<IoUring, Failure> {
    let entries = u32::try_from(ring_entries(setup, depth))
        .map_err(|_| Failure::Failed(format!("depth {depth}")))?;
    rings_allowed()?;
    let mut builder = IoUring::builder();
    let (builder, flags) = match setup {
        Setup::Deferred => (
            builder.setup_single_issuer().setup_defer_taskrun(),
            "SINGLE_ISSUER | DEFER_TASKRUN",
        ),
        Setup::Plain => (&mut builder, "no flags"),
        Setup::Polled => (builder.setup_sqpoll(SQPOLL_IDLE_MS), "SQPOLL"),
    };
    if device_polled {
        builder.setup_iopoll();
    }
    builder.build(entries).map_err(|error| {
        Failure::of_setup(
            &format!("io_uring_setup({entries} entries, {flags})"),
            &error,
        )
    })
}

fn register_files(ring: &IoUring, job: &Job) -> Result<(), Failure> {
    ring.submitter()
        .register_files(&job.files.iter().map(AsRawFd::as_raw_fd).collect::<Vec<_>>())
        .map_err(|error| Failure::of_setup("registering the files", &error))
}

fn register_buffers(
    ring: &IoUring,
    job: &Job,
    memory: &Memory,
    depth: usize,
) -> Result<(), Failure> {
    let shared = depth.div_ceil(BUFFERS_MAX);
    let slots: Vec<libc::iovec> = (0..depth)
        .step_by(shared)
        .map(|slot| libc::iovec {
            iov_base: memory.slot_ptr(slot).cast(),
            // From the first slot to the end of the last one. Slots are adjacent in the map.
            iov_len: memory.slot_ptr((slot + shared).min(depth) - 1).addr()
                - memory.slot_ptr(slot).addr()
                + job.block_bytes,
        })
        .collect();
    // SAFETY: the slots lie in `memory`, which the driver drops only after the ring.
    unsafe { ring.submitter().register_buffers(&slots) }.map_err(|error| match error.raw_os_error() {
        Some(libc::ENOMEM) => Failure::Unavailable(format!(
            "registering {depth} blocks of {} bytes: more than RLIMIT_MEMLOCK allows; raise it with `ulimit -l`",
            job.block_bytes
        )),
        _ => Failure::of_setup("registering the buffers", &error),
    })
}

/// Returns the SQE of an operation on a slot.
#[inline]
fn entry(target: &Target, at: *mut u8, slot: usize, op: &Op) -> squeue::Entry {
    use Registered::{Buffers, Files, FilesAndBuffers, Nothing};
    let (len, index) = (op.bytes, (slot / target.slots_per_buffer) as u16);
    let (offset, flags) = (op.offset, target.write_flags);
    let fixed = types::Fixed(op.file);
    let plain = types::Fd(target.fds[op.file as usize]);
    // A macro, as the `io_uring` crate has no type for both kinds of descriptor.
    macro_rules! with_buffer {
        ($file:expr) => {
            if op.write {
                let write = opcode::WriteFixed::new($file, at, len, index);
                write.offset(offset).rw_flags(flags).build()
            } else {
                let read = opcode::ReadFixed::new($file, at, len, index);
                read.offset(offset).build()
            }
        };
    }
    macro_rules! without_buffer {
        ($file:expr) => {
            if op.write {
                let write = opcode::Write::new($file, at, len);
                write.offset(offset).rw_flags(flags).build()
            } else {
                opcode::Read::new($file, at, len).offset(offset).build()
            }
        };
    }
    match target.registered {
        FilesAndBuffers => with_buffer!(fixed),
        Buffers => with_buffer!(plain),
        Files => without_buffer!(fixed),
        Nothing => without_buffer!(plain),
    }
}

#[inline]
fn push<L: Worker>(
    sq: &mut squeue::SubmissionQueue<'_>,
    target: &Target,
    worker: &L,
    memory: &Memory,
    slot: usize,
    op: &Op,
) -> Result<(), Failure> {
    let at = memory.slot_ptr(slot);
    if op.write {
        // SAFETY: the slot is not in flight: it is new, or its CQE was taken before this call.
        let bytes = unsafe { memory.slot(slot) };
        worker.fill(op, &mut bytes[..op.bytes as usize]);
    }
    // SAFETY: the entry points to a slot of `block_bytes` bytes that stays mapped until its CQE (see the head of this
    // file), and to files that the job keeps open.
    unsafe { push_entry(sq, entry(target, at, slot, op), slot) }
}

/// Pushes the entry of a slot.
///
/// # Safety
///
/// All that the entry points to stays valid until its CQE.
#[inline]
pub(crate) unsafe fn push_entry(
    sq: &mut squeue::SubmissionQueue<'_>,
    entry: squeue::Entry,
    slot: usize,
) -> Result<(), Failure> {
    if sq.is_full() {
        sq.sync();
    }
    // SAFETY: the caller guarantees it.
    let pushed = unsafe { sq.push(&entry.user_data(slot as u64)) };
    pushed.map_err(|_| {
        let says = "the submission queue is full although it has an entry per operation";
        Failure::Failed(says.into())
    })
}

/// Submits the pushed entries, waits for `wait_for` completions, and loads the kernel's side of both queues.
#[inline]
pub(crate) fn submit_and_wait(
    submitter: &Submitter<'_>,
    sq: &mut squeue::SubmissionQueue<'_>,
    cq: &mut cqueue::CompletionQueue<'_>,
    wait_for: usize,
) -> Result<(), Failure> {
    // Publish the head of the completion queue first. Otherwise the enter counts completions that are already reaped,
    // and does not wait.
    cq.sync();
    sq.sync();
    enter(submitter.submit_and_wait(wait_for))?;
    // Load the kernel's heads and tails: the entries that it has taken, and its new completions.
    sq.sync();
    cq.sync();
    Ok(())
}

/// Treats `EINTR`, `EAGAIN` and `EBUSY` as success. The enter was interrupted, or the kernel requires reaping first;
/// the loop does both.
fn enter(result: io::Result<usize>) -> Result<(), Failure> {
    match result {
        Ok(_) => Ok(()),
        Err(error) => match error.raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
            _ => Err(Failure::failed("io_uring_enter", &error)),
        },
    }
}

#[inline]
pub(crate) fn kernel_result(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}
