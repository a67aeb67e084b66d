//! A pass runs the whole job file once, through the engines that it names or through Annulus.
//!
//! Stages run one after the other. Each clone of a stage has a separate thread, and all of them start together.

use std::sync::Arc;
use std::time::Duration;

use annulus_baselines::{
    Failure, LinuxAio, MappedFile, Pread, Registered, Ring, Setup, SubmitPolicy,
};

use super::files::{self, CloneFiles, Files};
use super::options::{Engine, Kind, Options};
use super::plan::{Job, Plan};
use crate::bench::file::order::{Order, OrderSpec, mix};
use crate::bench::file::run::{self, AnyVariant, Ended, Part, RunFailure, Window};
use crate::bench::file::tally::Tally;
use crate::bench::file::variant::annulus::Annulus;
use crate::bench::file::work::{Check, Lengths, Pick, Work};
use crate::fault::Fault;

/// The engines that run a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// The engines that the job file names.
    Job,
    Annulus,
}

/// The outcome of a job: the sums over its clones.
pub(super) struct JobOutcome {
    pub(super) tally: Tally,
    /// The measured time: the longest of the clones.
    pub(super) seconds: f64,
    /// The results of reading back the written blocks, and the time that it took.
    pub(super) read_back: Option<(Tally, f64)>,
    pub(super) calls: u64,
    pub(super) note: Option<String>,
    pub(super) failure: Option<Failure>,
    /// The job's share of the processor time of its stage, in nanoseconds.
    pub(super) cpu_ns: f64,
}

impl JobOutcome {
    fn new() -> JobOutcome {
        JobOutcome {
            tally: Tally::new(),
            seconds: 0.0,
            read_back: None,
            calls: 0,
            note: None,
            failure: None,
            cpu_ns: 0.0,
        }
    }

    fn add(&mut self, clone: Result<Ended, Failure>) {
        let ended = match clone {
            Ok(ended) => ended,
            Err(failure) => {
                self.failure.get_or_insert(failure);
                return;
            }
        };
        self.tally.add(ended.tally);
        self.seconds = self.seconds.max(ended.measured.as_secs_f64());
        self.calls += ended.finished.calls.unwrap_or(0);
        self.note = self.note.take().or(ended.finished.note);
        if let Some(back) = ended.read_back {
            let (tally, seconds) = (self.read_back).get_or_insert_with(|| (Tally::new(), 0.0));
            *seconds = seconds.max(back.measured.as_secs_f64());
            tally.add(back.tally);
        }
    }

    fn thread_ns(&self) -> u64 {
        let back = self.read_back.as_ref();
        self.tally.cpu_ns + back.map_or(0, |(tally, _)| tally.cpu_ns)
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
    let (mut parts, mut jobs) = (Vec::new(), Vec::new());
    for &index in stage {
        let job = &plan.jobs[index];
        for (number, clone_files) in files.clones[index].iter().enumerate() {
            // As in fio, the order is the same in every run and differs between clones.
            let seed = match (job.options.randseed, job.options.randrepeat) {
                (Some(seed), _) => seed,
                (None, true) => 0x5EED,
                (None, false) => seed,
            };
            let seed = mix(seed ^ mix((index as u64) << 32 | number as u64));
            parts.push(part(job, clone_files, who, seed)?);
            jobs.push(index - stage[0]);
        }
    }
    let outcome = run::run(parts, Window::Whole).map_err(|failure| match failure {
        RunFailure::Hangs(text) | RunFailure::Abandoned(text) => Fault::failed(text),
    })?;
    let mut outcomes: Vec<JobOutcome> = stage.iter().map(|_| JobOutcome::new()).collect();
    for (job, clone) in jobs.into_iter().zip(outcome.parts) {
        outcomes[job].add(clone);
    }
    let cpu_ns = outcome.cpu_ns;
    let all_ns: u64 = outcomes.iter().map(JobOutcome::thread_ns).sum();
    for outcome in &mut outcomes {
        outcome.cpu_ns = cpu_ns * outcome.thread_ns() as f64 / all_ns.max(1) as f64;
    }
    Ok(outcomes)
}

/// Returns a clone of a job, ready to run.
fn part(job: &Job, clone_files: &CloneFiles, who: Who, seed: u64) -> Result<Part, Fault> {
    let options = &job.options;
    let depth = match options.engine {
        Engine::Calls | Engine::Mmap => 1,
        Engine::LinuxAio | Engine::IoUring => options.iodepth,
    };
    let again = (options.clone(), clone_files.clone());
    Ok(Part {
        job: annulus_baselines::Job {
            files: files::open(job, clone_files)?,
            offset_bytes: clone_files.offset,
            size_bytes: clone_files.bytes,
            block_bytes: options.block_most() as usize,
            depth,
            threads: Some(1),
            drivers: Some(1),
            direct: options.direct && options.engine != Engine::Mmap,
            random: options.random,
            writes: options.writes(),
            // The open files already carry the flags for synchronous writes, so `durable` is not set.
            ..annulus_baselines::Job::default()
        },
        work: work(options, clone_files, seed),
        variant: match who {
            Who::Job => own_engine(options, depth),
            Who::Annulus => on_annulus(options),
        },
        fsync: options.end_fsync,
        read_back: options.do_verify.then(|| {
            let back: run::ReadBack = Box::new(move |written| {
                let work = work(&again.0, &again.1, seed);
                Work {
                    write_percent: 0,
                    lengths: [0, 1].map(|_| Lengths::Fixed(work.block_bytes)),
                    pick: Pick::Written(written),
                    bytes_max: u64::MAX,
                    ops_max: u64::MAX,
                    // Reading back is a separate phase, without the job's time and rate.
                    ramp: Duration::ZERO,
                    runtime: None,
                    rate: [0; 2],
                    ..work
                }
            });
            back
        }),
    })
}

fn work(options: &Options, clone_files: &CloneFiles, seed: u64) -> Work {
    let files = clone_files.paths.len();
    let all = clone_files.bytes.saturating_mul(files as u64);
    let bytes = options.io_size.unwrap_or(all).saturating_mul(options.loops);
    let block_bytes = options.block_least().max(1);
    let order = || {
        Order::new(OrderSpec {
            blocks: (clone_files.bytes / block_bytes * files as u64).max(1),
            seed,
            random: true,
            endless: true,
            workers: 1,
        })
    };
    Work {
        write_percent: match options.kind {
            Kind::Read => 0,
            Kind::Write => 100,
            Kind::Mixed => 100 - options.read_percent,
        },
        lengths: options.lengths.clone(),
        block_bytes,
        block_bytes_max: options.block_most(),
        files,
        offset_bytes: clone_files.offset,
        file_bytes: clone_files.bytes,
        pick: match (options.random, options.uniform()) {
            (false, _) => Pick::InTurn,
            (true, Some(_)) if !options.norandommap => Pick::Order(order()),
            (true, _) => Pick::Anywhere,
        },
        bytes_max: if options.time_based { u64::MAX } else { bytes },
        ops_max: options.number_ios.unwrap_or(u64::MAX),
        ramp: options.ramp_time,
        runtime: options.runtime,
        once: true,
        rate: [0, 1].map(|side| rate(options, side)),
        seed,
        check: match &options.verify {
            Some(kind) => Check::Verify(kind.clone(), options.pattern.clone()),
            None => Check::Length,
        },
        timeline: false,
        thread_cpu: true,
    }
}

/// Returns the rate in bytes per second. As in fio's manual, a rate of operations counts the shortest length.
fn rate(options: &Options, side: usize) -> u64 {
    match options.rate_iops[side] {
        0 => options.rate[side],
        ios => ios.saturating_mul(options.lengths[side].least()),
    }
}

/// Returns Annulus with the io_uring keys of the job: registered memory, a polled submission queue, a polled device.
fn on_annulus(options: &Options) -> AnyVariant {
    let ring = options.engine == Engine::IoUring;
    Arc::new(Annulus::of_job(
        ring && options.sqthread_poll,
        ring && options.hipri,
        ring && options.fixedbufs,
    ))
}

/// Returns the engine that the job names, with fio's batching.
fn own_engine(options: &Options, depth: usize) -> AnyVariant {
    let submit_every = match options.batch_submit {
        0 => depth,
        count => count.min(depth),
    };
    let wait_for = options.batch_min.clamp(1, depth);
    let refill_at = options.iodepth_low.unwrap_or(depth);
    match options.engine {
        Engine::Calls => Arc::new(Pread),
        Engine::Mmap => Arc::new(MappedFile::copying()),
        Engine::LinuxAio => Arc::new(LinuxAio {
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
            Arc::new(Ring::with_options(
                setup,
                submit_policy,
                registered,
                options.hipri,
            ))
        }
    }
}
