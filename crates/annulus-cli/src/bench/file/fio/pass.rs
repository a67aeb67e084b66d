//! A pass runs the whole job file once, through the engines that it names or through Annulus.
//!
//! Stages run one after the other. Each clone of a stage has a separate thread, and all of them start together.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use annulus_baselines::{
    Bench, Failure, Finished, LinuxAio, MappedFile, Pread, Registered, Ring, Setup, SubmitPolicy,
    Variant,
};

use super::annulus::OnAnnulus;
use super::files::{self, CloneFiles, Files};
use super::options::{Engine, Kind, Options};
use super::plan::{Job, Plan};
use super::tally::Tally;
use super::verify::Written;
use super::worker::{Clock, JobWorker, Work};
use crate::bench::file::order::mix;
use crate::bench::machine::Usage;
use crate::fault::Fault;

/// The engines that run a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// The engines that the job file names.
    Job,
    Annulus,
}

/// The outcome of a clone.
pub(super) struct CloneOutcome {
    pub(super) tally: Tally,
    /// The results of reading back the written blocks.
    pub(super) read_back: Option<Tally>,
    pub(super) finished: Finished,
    pub(super) failure: Option<Failure>,
}

/// The outcome of a job.
pub(super) struct JobOutcome {
    pub(super) clones: Vec<CloneOutcome>,
    /// The job's share of the processor time of its stage, in nanoseconds.
    pub(super) cpu_ns: f64,
}

impl JobOutcome {
    /// Returns the sum of all clones, and the sum of what they read back.
    pub(super) fn sum(&self) -> (Tally, Option<Tally>) {
        let (mut sum, mut back) = (Tally::new(), None);
        for clone in &self.clones {
            sum.add(&clone.tally);
            if let Some(tally) = &clone.read_back {
                back.get_or_insert_with(Tally::new).add(tally);
            }
        }
        (sum, back)
    }

    fn thread_ns(&self) -> u64 {
        let tallies = self
            .clones
            .iter()
            .flat_map(|clone| std::iter::once(&clone.tally).chain(&clone.read_back));
        tallies.map(|tally| tally.cpu_ns).sum()
    }
}

/// Runs a pass. The outcomes are in the order of the jobs.
pub(super) fn pass(
    plan: &Plan,
    files: &Files,
    who: Who,
    seed: u64,
) -> Result<Vec<JobOutcome>, Fault> {
    files.renew()?;
    let mut outcomes: Vec<JobOutcome> = Vec::new();
    for stage in &plan.stages {
        // The jobs of a stage are adjacent, so appending keeps the order of the jobs.
        outcomes.extend(run_stage(plan, stage, files, who, seed)?);
    }
    Ok(outcomes)
}

fn run_stage(
    plan: &Plan,
    stage: &[usize],
    files: &Files,
    who: Who,
    seed: u64,
) -> Result<Vec<JobOutcome>, Fault> {
    let mut clones = Vec::new();
    for &index in stage {
        let job = &plan.jobs[index];
        for (number, clone_files) in files.clones[index].iter().enumerate() {
            clones.push(Clone::new(job, index, number, clone_files, who, seed)?);
        }
    }
    let stage_clock = Arc::new(Stage::new(clones.len()));
    let done: Vec<(usize, CloneOutcome)> = std::thread::scope(|scope| {
        let threads: Vec<_> = clones
            .into_iter()
            .map(|clone| {
                let (stage, job) = (Arc::clone(&stage_clock), clone.job);
                (job, scope.spawn(move || clone.run(&stage)))
            })
            .collect();
        let joined = threads
            .into_iter()
            .map(|(job, thread)| match thread.join() {
                Ok(outcome) => (job, outcome),
                Err(_) => (
                    job,
                    CloneOutcome::failed(Failure::Failed("the job's thread panicked".into())),
                ),
            });
        joined.collect()
    });
    let cpu_ns = stage_clock.cpu_ns();
    let mut outcomes: Vec<JobOutcome> = (stage.iter())
        .map(|_| JobOutcome {
            clones: Vec::new(),
            cpu_ns: 0.0,
        })
        .collect();
    for (job, outcome) in done {
        outcomes[job - stage[0]].clones.push(outcome);
    }
    let all_ns: u64 = outcomes.iter().map(JobOutcome::thread_ns).sum();
    for outcome in &mut outcomes {
        outcome.cpu_ns = cpu_ns * outcome.thread_ns() as f64 / all_ns.max(1) as f64;
    }
    Ok(outcomes)
}

/// A clone of a job, ready to run.
struct Clone {
    job: usize,
    baseline_job: annulus_baselines::Job,
    work: Work,
    variant: Box<dyn Variant<JobBench>>,
    do_verify: bool,
    end_fsync: bool,
}

impl Clone {
    fn new(
        job: &Job,
        index: usize,
        number: usize,
        clone_files: &CloneFiles,
        who: Who,
        seed: u64,
    ) -> Result<Clone, Fault> {
        let options = &job.options;
        let opened = files::open(job, clone_files)?;
        let depth = match options.engine {
            Engine::Calls | Engine::Mmap => 1,
            Engine::LinuxAio | Engine::IoUring => options.iodepth,
        };
        // As in fio, the order is the same in every run and differs between clones.
        let seed = match (options.randseed, options.randrepeat) {
            (Some(seed), _) => seed,
            (None, true) => 0x5EED,
            (None, false) => seed,
        };
        let seed = mix(seed ^ mix((index as u64) << 32 | number as u64));
        Ok(Clone {
            job: index,
            baseline_job: annulus_baselines::Job {
                direct_files: None,
                paths: [].into(),
                whole: false,
                offset_bytes: clone_files.offset,
                size_bytes: clone_files.bytes,
                block_bytes: options.block_most() as usize,
                depth,
                threads: Some(1),
                drivers: Some(1),
                direct: options.direct && options.engine != Engine::Mmap,
                random: options.random,
                writes: options.writes(),
                // The open files already carry the flags for synchronous writes, if any.
                durable: false,
                files: opened,
            },
            work: work(options, clone_files, seed),
            variant: match who {
                Who::Job => own_engine(options, depth),
                Who::Annulus => Box::new(OnAnnulus::new(options)),
            },
            do_verify: options.do_verify,
            end_fsync: options.end_fsync,
        })
    }

    fn run(&self, stage: &Arc<Stage>) -> CloneOutcome {
        let bench = JobBench::new(Arc::clone(stage), self.work.clone(), true);
        let result = self.variant.run(&self.baseline_job, &bench);
        // Releases the clones that wait for this one, if it failed before its start.
        bench.arrive();
        let finished = match result {
            Ok(finished) => finished,
            Err(failure) => return CloneOutcome::failed(failure),
        };
        let (tally, written) = bench.taken();
        let mut outcome = CloneOutcome {
            tally,
            read_back: None,
            finished,
            failure: None,
        };
        if self.end_fsync {
            for file in self.baseline_job.files.iter() {
                if let Err(error) = file.sync_all() {
                    outcome.failure = Some(Failure::failed("fsync at the end of the job", &error));
                }
            }
        }
        if let Some(written) = written.filter(|_| self.do_verify) {
            let mut work = self.work.clone();
            work.read_back = Some(Arc::new(written));
            work.kind = Kind::Read;
            let bench = JobBench::new(Arc::clone(stage), work, false);
            match self.variant.run(&self.baseline_job, &bench) {
                Ok(_) => outcome.read_back = Some(bench.taken().0),
                Err(failure) => outcome.failure = Some(failure),
            }
        }
        outcome
    }
}

impl CloneOutcome {
    fn failed(failure: Failure) -> CloneOutcome {
        CloneOutcome {
            tally: Tally::new(),
            read_back: None,
            finished: Finished::default(),
            failure: Some(failure),
        }
    }
}

fn work(options: &Options, clone_files: &CloneFiles, seed: u64) -> Work {
    let files = clone_files.paths.len();
    let all = clone_files.bytes.saturating_mul(files as u64);
    let endless = options.time_based;
    let bytes = options.io_size.unwrap_or(all).saturating_mul(options.loops);
    Work {
        kind: options.kind,
        random: options.random,
        read_percent: options.read_percent,
        lengths: options.lengths.clone(),
        block_least: options.block_least().max(1),
        block_most: options.block_most(),
        uniform: options.uniform().is_some(),
        files,
        offset: clone_files.offset,
        bytes: clone_files.bytes,
        repeats_blocks: options.norandommap,
        bytes_most: if endless { u64::MAX } else { bytes },
        ios_most: options.number_ios.unwrap_or(u64::MAX),
        ramp: options.ramp_time,
        runtime: options.runtime,
        rate: [0, 1].map(|side| rate(options, side)),
        seed,
        verify: options
            .verify
            .clone()
            .map(|kind| (kind, options.pattern.clone())),
        read_back: None,
    }
}

/// Returns the rate in bytes per second. As in fio's manual, a rate of operations counts the shortest length.
fn rate(options: &Options, side: usize) -> u64 {
    match options.rate_iops[side] {
        0 => options.rate[side],
        ios => ios.saturating_mul(options.lengths[side].least()),
    }
}

/// Returns the engine that the job names, with fio's batching.
fn own_engine(options: &Options, depth: usize) -> Box<dyn Variant<JobBench>> {
    let submit_every = match options.batch_submit {
        0 => depth,
        count => count.min(depth),
    };
    let wait_for = options.batch_min.clamp(1, depth);
    let refill_at = options.iodepth_low.unwrap_or(depth);
    match options.engine {
        Engine::Calls => Box::new(Pread),
        Engine::Mmap => Box::new(MappedFile::copying()),
        Engine::LinuxAio => Box::new(LinuxAio {
            submit_every,
            wait_for,
            take: options.batch_max.unwrap_or(0).max(wait_for),
            refill_at,
        }),
        Engine::IoUring => {
            let setup = if options.sqthread_poll {
                Setup::Polled
            } else {
                Setup::Deferred
            };
            // As in fio, a polled submission queue uses registered files.
            let registered = match (
                options.fixedbufs,
                options.registerfiles || options.sqthread_poll,
            ) {
                (true, true) => Registered::FilesAndBuffers,
                (true, false) => Registered::Buffers,
                (false, true) => Registered::Files,
                (false, false) => Registered::Nothing,
            };
            let submit_policy = SubmitPolicy::Configured {
                submit_every,
                wait_for,
                refill_at,
            };
            Box::new(Ring::with_options(
                setup,
                submit_policy,
                registered,
                options.hipri,
            ))
        }
    }
}

/// The start of a stage. It waits until each clone is ready or has failed.
struct Stage {
    clock: Arc<Clock>,
    clones: usize,
    arrived: Mutex<(usize, Option<Usage>)>,
    changed: Condvar,
}

impl Stage {
    fn new(clones: usize) -> Stage {
        Stage {
            clock: Arc::new(Clock::new()),
            clones,
            arrived: Mutex::new((0, None)),
            changed: Condvar::new(),
        }
    }

    /// Counts a clone as arrived. With `wait`, blocks until all clones have arrived.
    fn arrive(&self, wait: bool) {
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        arrived.0 += 1;
        if arrived.0 == self.clones {
            arrived.1 = Some(Usage::now());
            self.clock.go();
            self.changed.notify_all();
        }
        while wait && arrived.0 < self.clones {
            arrived = self
                .changed
                .wait(arrived)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns the processor time of the whole process since the start, in nanoseconds.
    fn cpu_ns(&self) -> f64 {
        let arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        arrived
            .1
            .as_ref()
            .map_or(0.0, |start| Usage::now().since(start).own_cpu_ns)
    }
}

/// A variant's view of a clone.
pub(super) struct JobBench {
    stage: Arc<Stage>,
    work: Arc<Work>,
    /// True until this clone has arrived at the start of the stage.
    due: Mutex<bool>,
    taken: Mutex<Option<(Tally, Option<Written>)>>,
}

impl JobBench {
    fn new(stage: Arc<Stage>, work: Work, due: bool) -> JobBench {
        JobBench {
            stage,
            work: Arc::new(work),
            due: Mutex::new(due),
            taken: Mutex::new(None),
        }
    }

    fn is_due(&self) -> bool {
        std::mem::take(&mut *self.due.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts this clone as arrived if it has not started, without waiting for the others.
    fn arrive(&self) {
        if self.is_due() {
            self.stage.arrive(false);
        }
    }

    fn taken(&self) -> (Tally, Option<Written>) {
        let taken = self
            .taken
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        taken.unwrap_or_else(|| (Tally::new(), None))
    }
}

impl Bench for JobBench {
    type Worker = JobWorker;

    fn worker(&self) -> JobWorker {
        JobWorker::new(Arc::clone(&self.stage.clock), Arc::clone(&self.work))
    }

    fn go(&self) {
        if self.is_due() {
            self.stage.arrive(true);
        }
    }

    fn done(&self, worker: JobWorker) {
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner) = Some(worker.into_parts());
    }
}
