//! One run, with the preparation of the page cache before it and the check of the data after it.

use std::sync::Arc;
use std::time::Duration;

use annulus_baselines::{Failure, Job};
use rustix::fs::fdatasync;

use super::cache::{self, Readiness};
use super::check::{self, Afterwards};
use super::json::{Checks, Latency, Outcome, Sample};
use super::limit::Limit;
use super::order::{Order, OrderSpec, Zipf, mix};
use super::plan::Plan;
use super::run::{self, AnyVariant, Ended, Part, RunFailure, RunOutcome, Window};
use super::tally::Direction;
use super::testfile::TestFile;
use super::variant::{Side, side};
use super::work::{Check, Lengths, Pick, Work};
use crate::args::Cache;
use crate::bench::early;
use crate::bench::timeline::Timeline;
use crate::fault::Fault;

/// The time before the measured time; at most a fifth of it.
const RAMP: Duration = Duration::from_millis(200);

/// The outcome of a run. `hangs` is set if the variant never returned.
pub(crate) struct Done {
    pub(crate) outcome: Outcome,
    pub(crate) hangs: bool,
}

/// Runs `variant` at `depth`. An error means that the file is unusable, and ends the whole comparison.
pub(crate) fn run(
    plan: &Plan,
    file: &TestFile,
    variant: &AnyVariant,
    depth: usize,
    position: usize,
) -> Result<Done, Fault> {
    run_by(plan, file, variant, depth, position, measured)
}

/// Makes one attempt of a run.
pub(crate) fn measured(part: Part) -> Result<RunOutcome, RunFailure> {
    run::run(vec![part], Window::Measured)
}

/// Runs `variant` at `depth`, as [`run`] does, but calls `how` instead of [`measured`] for each attempt.
pub(crate) fn run_by(
    plan: &Plan,
    file: &TestFile,
    variant: &AnyVariant,
    depth: usize,
    position: usize,
    mut how: impl FnMut(Part) -> Result<RunOutcome, RunFailure>,
) -> Result<Done, Fault> {
    let mut stretched = plan.clone();
    loop {
        let mut done = once(&stretched, file, variant, depth, position, &mut how)?;
        if done.outcome.has_no_completions()
            && let Some(longer) = early::longer(stretched.runtime)
        {
            stretched.runtime = longer;
            continue;
        }
        if let Outcome::Measured(sample) = &mut done.outcome
            && stretched.runtime > plan.runtime
        {
            sample.add_note(&format!(
                "measured for {} s, because no operation completed within {} s",
                stretched.runtime.as_secs_f64(),
                plan.runtime.as_secs_f64()
            ));
        }
        return Ok(done);
    }
}

fn once(
    plan: &Plan,
    file: &TestFile,
    variant: &AnyVariant,
    depth: usize,
    position: usize,
    how: &mut impl FnMut(Part) -> Result<RunOutcome, RunFailure>,
) -> Result<Done, Fault> {
    let done = |outcome| {
        Ok(Done {
            outcome,
            hangs: false,
        })
    };
    let job = job(plan, file, depth);
    if let Some(reason) = unfit(variant, &job) {
        return done(Outcome::NotApplicable { reason });
    }
    let has_own_cache = variant.has_own_cache();
    let prepared = match has_own_cache {
        // Pages in the page cache would only take memory from it.
        true => cache::prepare(file, Cache::Direct)?,
        false => cache::prepare(file, file.cache)?,
    };
    if plan.load.scan && !has_own_cache {
        cache::keep_first(file)?;
    }
    let resident = match prepared {
        Readiness::Ready { resident } => resident,
        Readiness::NotReady(reason) => return done(Outcome::NotPrepared { reason }),
    };
    // Zero is the stamp of a file that no run has written to.
    let stamp = position as u64 + 1;
    let part = Part {
        work: work(plan, file, side(variant.name()), depth, stamp),
        job,
        variant: Arc::clone(variant),
        fsync: false,
        read_back: None,
    };
    let hits = || file.limit.as_ref().and_then(Limit::hits);
    let before = hits();
    let mut outcome = match how(part) {
        Ok(outcome) => outcome,
        Err(RunFailure::Abandoned(reason)) => {
            return Ok(Done {
                outcome: Outcome::Interrupted { reason },
                hangs: true,
            });
        }
        Err(RunFailure::Hangs(reason)) => {
            return Ok(Done {
                outcome: failed(reason),
                hangs: true,
            });
        }
    };
    // Beside a scan, what is read fits in memory.
    let is_exempt = side(variant.name()) == Side::Null || has_own_cache || plan.load.scan;
    done(match outcome.parts.pop() {
        Some(Ok(_)) if file.cache == Cache::Full && !is_exempt && hits() == before => {
            Outcome::NotPrepared {
                reason: cache::NOT_FULL.into(),
            }
        }
        Some(Ok(ended)) => judge(plan, file, (&outcome, &ended), resident, stamp)?,
        Some(Err(Failure::Unavailable(reason))) => Outcome::Unavailable { reason },
        Some(Err(Failure::Failed(reason))) => failed(reason),
        None => failed("nothing has run".into()),
    })
}

fn failed(reason: String) -> Outcome {
    Outcome::Failed {
        reason,
        sample: None,
    }
}

/// Returns the reason for which `variant` cannot run `job`.
fn unfit(variant: &AnyVariant, job: &Job) -> Option<String> {
    if !job.paths.is_empty() && !variant.opens_files() {
        return Some("it reads files that are open, and this load opens them".into());
    }
    match (job.resident, variant.reads_resident()) {
        (true, false) => Some("the load reads pages that are in memory; see --list".into()),
        (false, true) => Some("it reads pages that are in memory: use --load resident".into()),
        _ if variant.scans() && !job.scan => Some("it scans: use --load beside-scan".into()),
        _ => variant.unfit(job),
    }
}

fn job(plan: &Plan, file: &TestFile, depth: usize) -> Job {
    Job {
        files: file.handles(),
        direct_files: file.direct_handles(),
        paths: file.paths(),
        whole: plan.load.whole,
        offset_bytes: file.offset_bytes,
        size_bytes: file.file_bytes,
        block_bytes: plan.block_bytes as usize,
        depth,
        threads: plan.threads,
        drivers: plan.drivers,
        direct: file.cache == Cache::Direct,
        random: plan.random(),
        writes: plan.writes(),
        durable: plan.durable,
        cache_bytes: cache::own_bytes(plan, file),
        warm: matches!(file.cache, Cache::Hot | Cache::Full),
        resident: plan.load.resident,
        scan: plan.load.scan,
    }
}

fn work(plan: &Plan, file: &TestFile, side: Side, depth: usize, stamp: u64) -> Work {
    let seed = mix(plan.seed ^ mix(stamp));
    let files = if plan.load.scan { 1 } else { file.count() };
    let blocks = file.file_bytes * files as u64 / plan.block_bytes;
    let order = Order::new(OrderSpec {
        blocks,
        seed,
        random: plan.random(),
        // The null variant reads nothing, so it warms no block.
        endless: !plan.load.once
            && (file.cache != Cache::Cold
                || plan.forgets(file.total_bytes())
                || side == Side::Null),
        workers: depth,
    });
    Work {
        write_percent: plan.write_percent,
        lengths: [0, 1].map(|_| Lengths::Fixed(plan.block_bytes)),
        block_bytes: plan.block_bytes,
        block_bytes_max: plan.block_bytes,
        files,
        offset_bytes: file.offset_bytes,
        file_bytes: file.file_bytes,
        pick: match plan.zipf {
            Some(exponent) => Pick::Zipf(Zipf::new(blocks, seed, exponent)),
            None => Pick::Order(order),
        },
        bytes_max: u64::MAX,
        ops_max: u64::MAX,
        ramp: match plan.load.once {
            true => Duration::ZERO,
            false => RAMP.min(plan.runtime / 5),
        },
        runtime: Some(plan.runtime),
        once: plan.load.once,
        rate: [0; 2],
        seed,
        check: Check::Contents(file.contents, stamp),
        timeline: true,
        thread_cpu: false,
    }
}

/// Checks the samples again, and decides whether the run counts.
fn judge(
    plan: &Plan,
    file: &TestFile,
    (outcome, ended): (&RunOutcome, &Ended),
    resident: f64,
    stamp: u64,
) -> Result<Outcome, Fault> {
    let again = check_afterwards(plan, file, ended, stamp)?;
    let first_failure = ended
        .tally
        .first_failure
        .clone()
        .or_else(|| again.first_wrong.clone());
    let mut sample = Box::new(sample(plan, (outcome, ended), &again, resident));
    let checks = &sample.checks;
    let bad = checks.bad();
    if bad > 0 {
        let reason = format!(
            "{bad} of {} results are wrong or errors; first: {}",
            checks.completions,
            first_failure.unwrap_or_else(|| "unknown".into())
        );
        return Ok(Outcome::Failed {
            reason,
            sample: Some(sample),
        });
    }
    if ended.cut_short {
        let note = early::cut_short(ended.measured, plan.runtime);
        if !early::is_enough(ended.measured, plan.runtime) || sample.ops == 0 {
            return Ok(Outcome::Interrupted { reason: note });
        }
        sample.add_note(&note);
    }
    if sample.ops == 0 {
        let reason = if sample.ran_out_of_blocks {
            "every block had been used before the ramp was over; use a larger file or --size"
        } else {
            "no operation completed within the measured time; use a longer --runtime"
        };
        return Ok(Outcome::Failed {
            reason: reason.into(),
            sample: Some(sample),
        });
    }
    Ok(Outcome::Measured(sample))
}

fn check_afterwards(
    plan: &Plan,
    file: &TestFile,
    ended: &Ended,
    stamp: u64,
) -> Result<Afterwards, Fault> {
    if plan.writes() {
        // Flush the written data, so that the check reads it from the device.
        for one in file.buffered.iter() {
            fdatasync(one).map_err(|error| failed!("flushing the file after a run: {error}"))?;
        }
        if file.cache != Cache::Hot {
            cache::prepare(file, Cache::Direct)?;
        }
    }
    check::afterwards(
        &file.buffered,
        file.file_bytes,
        &ended.tally.samples,
        plan.block_bytes as usize,
        file.contents,
        stamp,
    )
    .map_err(|error| failed!("reading the file again after a run: {error}"))
}

fn sample(
    plan: &Plan,
    (outcome, ended): (&RunOutcome, &Ended),
    again: &Afterwards,
    resident_before: f64,
) -> Sample {
    let tally = &ended.tally;
    let ops = tally.measured();
    let mut both = Direction::new();
    tally.directions.iter().for_each(|one| both.add(one));
    let seconds = ended.measured.as_secs_f64();
    let ops_per_second = if seconds > 0.0 {
        ops as f64 / seconds
    } else {
        0.0
    };
    let at = |quantile: f64| both.latency.value_at_quantile(quantile);
    Sample {
        seconds,
        ops,
        ops_per_second,
        megabytes_per_second: ops_per_second * plan.block_bytes as f64 / 1e6,
        latency_ns: Latency {
            mean: both.mean_ns(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            max: both.latency.max(),
        },
        cpu_us_per_op: outcome.cpu_ns / 1000.0 / ops.max(1) as f64,
        calls_per_op: ended
            .finished
            .calls
            .map(|calls| calls as f64 / tally.completions.max(1) as f64),
        peak_rss_bytes: outcome.peak_rss_bytes,
        checks: Checks {
            completions: tally.completions,
            correct: tally.checked,
            wrong: tally.wrong,
            errors: tally.errors,
            compared_afterwards: again.compared,
            wrong_afterwards: again.wrong,
        },
        resident_before,
        ran_out_of_blocks: ended.ran_out,
        others_busy: outcome.others_busy,
        stolen: outcome.stolen,
        note: ended.finished.note.clone(),
        timeline: Timeline::of(
            tally.recorder.clone(),
            ended.measured.as_nanos() as u64,
            ended.calls.clone(),
        ),
    }
}
