//! The variants of Annulus: many tasks that await one operation each, or one stream of reads that is kept full.
//!
//! The variants differ in the API that submits operations, in the thread that drives the ring (an engine thread or
//! the caller's), in the memory that receives the data, and in polling. Each caller runs on a separate thread;
//! there is one caller unless `--threads` sets more. Each run builds a new engine before the clock starts.

use std::sync::Arc;
use std::time::Duration;

use annulus::buf::{Arena, ArenaBuf, BufferLayout};
use annulus::engine::{CurrentThreadDriver, SqPoll};
use annulus::{Backend, BackendInUse, Engine, EngineBuilder, File};
use annulus_baselines::{Bench, Failure, Finished, Job, Variant, Worker, on_owning_threads};
use futures_executor::block_on;

use super::submit::{Buffer, Target, buffer, many, tasks, tasks_on};

/// The engine's default limit on operations in flight per driver. A run at a larger depth mentions it in its note.
const IN_FLIGHT: usize = 1024;
const IN_FLIGHT_BYTES: usize = 256 << 20;
/// The time that the polling thread of `annulus-sqpoll` spins before it sleeps. `base-sqpoll` uses the same time.
const SQPOLL_IDLE: Duration = Duration::from_millis(50);

/// The API that submits operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asking {
    /// A task per operation in flight: `file.read_at(buf, offset).await`.
    Tasks,
    /// One `read_many_at`, refilled as reads complete.
    Many,
}

/// The thread that drives the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Driving {
    /// Engine threads: this number, or the number from `--drivers`.
    Handed(Option<usize>),
    /// The caller's thread.
    Own,
}

/// The memory that operations use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    Plain,
    /// Registered with the ring.
    Arena,
}

/// Polling besides that of the ring's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Polling {
    Off,
    /// A kernel thread polls the submission queue.
    Submissions,
    /// The driver polls the device for completions.
    Completions,
    Both,
}

/// A variant of Annulus.
#[derive(Clone, Copy)]
pub(crate) struct Annulus {
    name: &'static str,
    about: &'static str,
    asking: Asking,
    driving: Driving,
    memory: Memory,
    polling: Polling,
    backend: Backend,
    /// With the limits of a job, and the default time before a polling thread sleeps.
    of_job: bool,
}

const PLAIN: Annulus = Annulus {
    name: "annulus",
    about: "Annulus, a task per operation in flight, one driver thread",
    asking: Asking::Tasks,
    driving: Driving::Handed(None),
    memory: Memory::Plain,
    polling: Polling::Off,
    backend: Backend::Auto,
    of_job: false,
};

const MANY: Annulus = Annulus {
    name: "annulus-many",
    about: "Annulus, one read_many_at kept full, one driver thread",
    asking: Asking::Many,
    ..PLAIN
};

const OWN: Annulus = Annulus {
    name: "annulus-own",
    about: "annulus-many on a driver of the submitting thread",
    driving: Driving::Own,
    ..MANY
};

impl Annulus {
    pub(crate) fn variants() -> [Annulus; 10] {
        [
            PLAIN,
            MANY,
            Annulus {
                name: "annulus-2",
                about: "annulus with two driver threads",
                driving: Driving::Handed(Some(2)),
                ..PLAIN
            },
            Annulus {
                name: "annulus-many-2",
                about: "annulus-many with two driver threads",
                driving: Driving::Handed(Some(2)),
                ..MANY
            },
            OWN,
            Annulus {
                name: "annulus-arena",
                about: "annulus-own into registered buffers",
                memory: Memory::Arena,
                ..OWN
            },
            Annulus {
                name: "annulus-own-tasks",
                about: "a task per operation in flight on a driver of the submitting thread, registered buffers",
                asking: Asking::Tasks,
                memory: Memory::Arena,
                ..OWN
            },
            Annulus {
                name: "annulus-sqpoll",
                about: "annulus-arena with a kernel thread that polls the submission queue",
                memory: Memory::Arena,
                polling: Polling::Submissions,
                ..OWN
            },
            Annulus {
                name: "annulus-iopoll",
                about: "annulus-many with a ring that polls the device",
                polling: Polling::Completions,
                ..MANY
            },
            Annulus {
                name: "annulus-blocking",
                about: "annulus without io_uring: its fallback on threads",
                backend: Backend::Fallback,
                ..PLAIN
            },
        ]
    }

    /// Returns the variant for jobs of job files, with the settings that the job requests: one task per operation in
    /// flight, on a ring that the calling thread drives.
    pub(crate) fn of_job(sqpoll: bool, iopoll: bool, arena: bool) -> Annulus {
        Annulus {
            name: "annulus",
            about: "a task per operation in flight, the submitting thread drives the ring",
            memory: if arena { Memory::Arena } else { Memory::Plain },
            polling: match (sqpoll, iopoll) {
                (true, true) => Polling::Both,
                (true, false) => Polling::Submissions,
                (false, true) => Polling::Completions,
                (false, false) => Polling::Off,
            },
            of_job: true,
            asking: Asking::Tasks,
            ..OWN
        }
    }

    fn builder(&self, job: &Job) -> EngineBuilder {
        let mut builder = Engine::builder().backend(self.backend);
        let mut sqpoll = SqPoll::new();
        if self.of_job {
            let depth = u32::try_from(job.depth).unwrap_or(u32::MAX);
            let bytes = (job.depth * job.block_bytes) as u64;
            builder = builder
                .max_in_flight(depth.max(IN_FLIGHT as u32))
                .max_in_flight_bytes(bytes.max(IN_FLIGHT_BYTES as u64));
        } else {
            sqpoll = sqpoll.idle(SQPOLL_IDLE);
        }
        match self.polling {
            Polling::Off => builder,
            Polling::Submissions => builder.sqpoll(sqpoll),
            Polling::Completions => builder.iopoll(true),
            Polling::Both => builder.sqpoll(sqpoll).iopoll(true),
        }
    }

    /// Runs one caller's share of the operations.
    fn drive<L: Worker, B: Buffer>(
        &self,
        opened: &Opened,
        (own, buffers): (Option<CurrentThreadDriver>, Vec<B>),
        mut worker: L,
    ) -> Result<L, Failure> {
        match (self.asking, own) {
            (Asking::Tasks, None) => worker = tasks(&opened.target, worker, buffers)?,
            (Asking::Many, None) => block_on(many(&opened.target.files[0], &mut worker, buffers)),
            (Asking::Tasks, Some(own)) => {
                worker = own.block_on(tasks_on(&opened.target, worker, buffers))?;
            }
            (Asking::Many, Some(own)) => {
                own.block_on(many(&opened.target.files[0], &mut worker, buffers));
            }
        }
        Ok(worker)
    }

    /// Runs all callers, with buffers from `make`.
    fn run_with<B: Bench, M: Buffer>(
        &self,
        job: &Job,
        bench: &B,
        opened: &Opened,
        make: impl Fn() -> Result<M, Failure> + Sync,
    ) -> Result<usize, Failure> {
        let depths = job.split_depth(job.threads.unwrap_or(1));
        let setup = |index: usize| {
            let buffers: Result<Vec<M>, Failure> = (0..depths[index]).map(|_| make()).collect();
            let own = match self.driving {
                Driving::Handed(_) => None,
                Driving::Own => Some(opened.current_thread_driver()?),
            };
            Ok((own, buffers?))
        };
        let drive = |state, worker: B::Worker| Ok((self.drive(opened, state, worker)?, 0));
        on_owning_threads(bench, depths.len(), setup, drive)?;
        Ok(depths.len())
    }
}

impl<B: Bench> Variant<B> for Annulus {
    fn name(&self) -> &str {
        self.name
    }

    fn about(&self) -> &str {
        self.about
    }

    fn opens_files(&self) -> bool {
        self.asking == Asking::Tasks
    }

    fn unfit(&self, job: &Job) -> Option<String> {
        if self.asking != Asking::Many {
            return None;
        }
        if job.writes {
            return Some("read_many_at only reads; see `annulus` or `annulus-own-tasks`".into());
        }
        // With one stream per file, each stream would get only a share of the depth, with nothing to batch.
        (job.files.len() > 1)
            .then(|| "read_many_at is of one file; with many files see `annulus`".into())
    }

    fn run(&self, job: &Job, bench: &B) -> Result<Finished, Failure> {
        let drivers = match self.driving {
            Driving::Handed(drivers) => drivers,
            Driving::Own => Some(1),
        };
        let opened = Opened::new(job, drivers, self.builder(job))?;
        if matches!(self.polling, Polling::Completions | Polling::Both) {
            let support = opened.target.files[0].poll_support();
            support.map_err(|why| Failure::Unavailable(why.to_string()))?;
        }
        opened.shows_calls(bench);
        let callers = match self.memory {
            Memory::Plain => self.run_with(job, bench, &opened, || buffer(job))?,
            Memory::Arena => {
                let arena = opened.arena(job)?;
                self.run_with(job, bench, &opened, || arena_buffer(&arena))?
            }
        };
        Ok(opened.finished(job, callers, self.driving == Driving::Own))
    }
}

/// Takes a buffer from the arena and fills it with random data, which does not compress.
pub(crate) fn arena_buffer(arena: &Arena) -> Result<ArenaBuf, Failure> {
    let mut buffer = arena
        .try_take()
        .ok_or_else(|| Failure::Failed(format!("{arena}: it has no buffer left")))?;
    fastrand::fill(&mut buffer);
    Ok(buffer)
}

/// An engine and the job's files on it.
pub(crate) struct Opened {
    pub(crate) target: Arc<Target>,
    engine: Engine,
    drivers: usize,
}

impl Opened {
    /// Builds the engine and opens the job's files on it.
    ///
    /// The number of driver threads is `drivers`, else the job's, else one per caller up to the number of processors.
    pub(crate) fn new(
        job: &Job,
        drivers: Option<usize>,
        builder: EngineBuilder,
    ) -> Result<Opened, Failure> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        // More drivers than processors would only compete for them.
        let by_itself = job.threads.unwrap_or(1).min(processors);
        let drivers = drivers.or(job.drivers).unwrap_or(by_itself);
        let engine = builder
            .drivers(drivers)
            .build()
            .map_err(|error| Failure::Failed(format!("building the engine: {error}")))?;
        let files = (job.files.iter())
            .map(|file| File::from_std(file.try_clone()?, &engine))
            .collect::<std::io::Result<Vec<File>>>()
            .map_err(|error| Failure::failed("giving the files to the engine", &error))?;
        Ok(Opened {
            target: Arc::new(Target {
                files,
                engine: engine.clone(),
                paths: Arc::clone(&job.paths),
                whole: job.whole,
                durable: job.durable,
            }),
            engine,
            drivers,
        })
    }

    /// Lets the harness read the number of `io_uring_enter` calls during the run.
    pub(crate) fn shows_calls<B: Bench>(&self, bench: &B) {
        if let BackendInUse::Uring { .. } = self.engine.backend() {
            let engine = self.engine.clone();
            bench.counts_calls(Box::new(move || engine.metrics().enters));
        }
    }

    /// Creates a ring that the calling thread drives.
    pub(super) fn current_thread_driver(&self) -> Result<CurrentThreadDriver, Failure> {
        self.engine
            .current_thread_driver()
            .map_err(|error| Failure::Unavailable(error.to_string()))
    }

    /// Registers one buffer for each operation that the job keeps in flight.
    pub(crate) fn arena(&self, job: &Job) -> Result<Arena, Failure> {
        let layout = BufferLayout::new(job.depth, job.block_bytes);
        let arena = self.engine.register_buffers(layout);
        arena.map_err(|error| Failure::Unavailable(error.to_string()))
    }

    /// Returns the number of `io_uring_enter` calls, and a note with the backend and anything unexpected.
    pub(crate) fn finished(&self, job: &Job, callers: usize, own: bool) -> Finished {
        let backend = self.engine.backend();
        let mut note = backend.to_string();
        if callers > 1 {
            note += &format!("; {callers} submitting threads");
        }
        let uring = matches!(backend, BackendInUse::Uring { .. });
        let in_flight = self.drivers * IN_FLIGHT.min((IN_FLIGHT_BYTES / job.block_bytes).max(1));
        if uring && own {
            note += "; each submitting thread drives a ring";
        } else if uring && job.depth > in_flight {
            note += &format!(
                "; the kernel holds {in_flight} of {} requested operations",
                job.depth
            );
        }
        let metrics = self.engine.metrics();
        let percent = metrics.fast_path * 100 / (metrics.fast_path + metrics.completed).max(1);
        if metrics.fixed > 0 {
            let fixed = metrics.fixed * 100 / metrics.completed.max(1);
            note += &format!("; {fixed} % of the ring's operations used registered memory");
        }
        if uring && percent > 0 {
            note += &format!(
                "; {percent} % of the reads came from the page cache on the submitting thread, whose calls are not \
                 among the enters"
            );
        }
        Finished {
            calls: uring.then_some(metrics.enters),
            note: Some(note),
        }
    }
}
