//! A job run through Annulus, with one task per operation in flight on a ring that the calling thread drives.
//!
//! Many programs would be written this way. The io_uring keys of the job configure the engine: registered memory, a
//! polled submission queue, a polled device.

use std::cell::RefCell;
use std::rc::Rc;

use annulus::buf::{Arena, BufferLayout};
use annulus::engine::{CurrentThreadDriver, SqPoll};
use annulus::{Engine, File, IoBufMut};
use annulus_baselines::{Bench, Failure, Finished, Job, Op, Variant, Worker, on_owning_threads};
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::options::Options;
use crate::bench::file::variant::submit::buffer;

/// The variant that runs a job through Annulus, with the settings that the job requests.
pub(super) struct OnAnnulus {
    sqpoll: bool,
    iopoll: bool,
    arena: bool,
}

impl OnAnnulus {
    pub(super) fn new(options: &Options) -> OnAnnulus {
        let ring = options.engine == super::options::Engine::IoUring;
        OnAnnulus {
            sqpoll: ring && options.sqthread_poll,
            iopoll: ring && options.hipri,
            arena: ring && options.fixedbufs,
        }
    }

    fn engine(&self, job: &Job) -> Result<Engine, Failure> {
        let mut builder = Engine::builder().drivers(1).iopoll(self.iopoll);
        if self.sqpoll {
            builder = builder.sqpoll(SqPoll::new());
        }
        let bytes = (job.depth * job.block_bytes) as u64;
        builder
            .max_in_flight(u32::try_from(job.depth).unwrap_or(u32::MAX).max(1024))
            .max_in_flight_bytes(bytes.max(256 << 20))
            .build()
            .map_err(|error| Failure::Failed(format!("building the engine: {error}")))
    }

    fn drive_with<B: Bench, M: IoBufMut + std::ops::DerefMut<Target = [u8]>>(
        &self,
        job: &Job,
        bench: &B,
        (engine, files): (&Engine, &[File]),
        make: impl Fn() -> Result<M, Failure> + Sync,
    ) -> Result<(), Failure> {
        let setup = |_| {
            let buffers: Result<Vec<M>, Failure> = (0..job.depth).map(|_| make()).collect();
            let own: CurrentThreadDriver = engine
                .current_thread_driver()
                .map_err(|error| Failure::Unavailable(error.to_string()))?;
            Ok((own, buffers?))
        };
        let drive = |(own, buffers): (CurrentThreadDriver, Vec<M>), worker: B::Worker| {
            Ok((own.block_on(tasks(files, worker, buffers))?, 0))
        };
        on_owning_threads(bench, 1, setup, drive).map(|_| ())
    }
}

impl<B: Bench> Variant<B> for OnAnnulus {
    fn name(&self) -> &str {
        "annulus"
    }

    fn about(&self) -> &str {
        "Annulus: a task per operation in flight, the submitting thread drives the ring"
    }

    fn run(&self, job: &Job, bench: &B) -> Result<Finished, Failure> {
        let engine = self.engine(job)?;
        let files = (job.files.iter())
            .map(|file| File::from_std(file.try_clone()?, &engine))
            .collect::<std::io::Result<Vec<File>>>()
            .map_err(|error| Failure::failed("giving the files to the engine", &error))?;
        if self.iopoll {
            let support = files[0].poll_support();
            support.map_err(|why| Failure::Unavailable(why.to_string()))?;
        }
        if self.arena {
            let layout = BufferLayout::new(job.depth, job.block_bytes);
            let arena = engine.register_buffers(layout);
            let arena: Arena = arena.map_err(|error| Failure::Unavailable(error.to_string()))?;
            let take = || {
                let mut buffer = arena
                    .try_take()
                    .ok_or_else(|| Failure::Failed(format!("{arena}: it has no buffer left")))?;
                fastrand::fill(&mut buffer);
                Ok(buffer)
            };
            self.drive_with(job, bench, (&engine, &files), take)?;
        } else {
            self.drive_with(job, bench, (&engine, &files), || buffer(job))?;
        }
        drop(files);
        Ok(Finished {
            calls: Some(engine.metrics().enters),
            note: Some(engine.backend().to_string()),
        })
    }
}

/// Runs one task per buffer until the worker has no more operations. If the rate of the job requires a pause, all tasks
/// end, the thread sleeps, and they start again.
async fn tasks<L: Worker, M: IoBufMut + std::ops::DerefMut<Target = [u8]>>(
    files: &[File],
    worker: L,
    mut buffers: Vec<M>,
) -> Result<L, Failure> {
    let worker = Rc::new(RefCell::new(worker));
    let depth = buffers.len();
    loop {
        let all: FuturesUnordered<_> = buffers
            .drain(..)
            .map(|buffer| task(files, Rc::clone(&worker), buffer))
            .collect();
        buffers = all.filter_map(std::future::ready).collect().await;
        if buffers.len() < depth {
            return Err(Failure::Failed("an operation lost its buffer".into()));
        }
        let later = worker.borrow().later();
        match later {
            // Nothing is in flight, so sleeping delays no completion.
            Some(pause) => std::thread::sleep(pause),
            None => break,
        }
    }
    let worker = Rc::into_inner(worker)
        .ok_or_else(|| Failure::Failed("a task is still there after the end".into()))?;
    Ok(worker.into_inner())
}

async fn task<L: Worker, M: IoBufMut + std::ops::DerefMut<Target = [u8]>>(
    files: &[File],
    worker: Rc<RefCell<L>>,
    mut buffer: M,
) -> Option<M> {
    loop {
        // A separate statement, because the borrow must end before the task waits.
        let next = worker.borrow_mut().next();
        let Some(op) = next else { return Some(buffer) };
        let bytes = op.bytes as usize;
        if op.write {
            worker.borrow().fill(&op, &mut buffer[..bytes]);
        }
        buffer = submit(files, &worker, op, buffer, bytes).await?;
    }
}

/// Submits one operation on the part of the buffer that it needs. Returns the buffer, unless the operation lost it.
async fn submit<L: Worker, M: IoBufMut + std::ops::DerefMut<Target = [u8]>>(
    files: &[File],
    worker: &RefCell<L>,
    op: Op,
    buffer: M,
    bytes: usize,
) -> Option<M> {
    let file = &files[op.file as usize];
    let part = buffer.subslice(..bytes);
    let result = match op.write {
        true => file.write_at(part, op.offset).await,
        false => file.read_at(part, op.offset).await,
    };
    match result {
        Ok((count, part)) => {
            worker.borrow_mut().finish(op, Ok(count), &part[..]);
            Some(part.into_inner())
        }
        Err(error) => {
            let (error, part) = error.into_parts();
            worker.borrow_mut().finish(op, Err(error), &[][..]);
            part.map(annulus::buf::Slice::into_inner)
        }
    }
}
