//! One run, with the preparation of the page cache before it and the check of the data after it.

use annulus_baselines::{Failure, Job};
use rustix::fs::fdatasync;

use super::cache::{self, Readiness};
use super::check::{self, Afterwards};
use super::json::{Checks, Latency, Outcome, Sample};
use super::limit::Limit;
use super::order::{Order, OrderSpec, mix};
use super::plan::Plan;
use super::run::{self, AnyVariant, RunFailure, RunOutcome, RunSpec};
use super::testfile::TestFile;
use super::variant::{Side, side};
use crate::args::Cache;
use crate::bench::early;
use crate::bench::timeline::Timeline;
use crate::fault::Fault;

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
    run_by(plan, file, variant, depth, position, run::run)
}

/// Runs `variant` at `depth`, as [`run`] does, but calls `how` instead of [`run::run`] for each attempt.
pub(crate) fn run_by(
    plan: &Plan,
    file: &TestFile,
    variant: &AnyVariant,
    depth: usize,
    position: usize,
    mut how: impl FnMut(&AnyVariant, RunSpec) -> Result<RunOutcome, RunFailure>,
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
    how: &mut impl FnMut(&AnyVariant, RunSpec) -> Result<RunOutcome, RunFailure>,
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
    let resident = match cache::prepare(file, file.cache)? {
        Readiness::Ready { resident } => resident,
        Readiness::NotReady(reason) => return done(Outcome::NotPrepared { reason }),
    };
    // Zero is the stamp of a file that no run has written to.
    let stamp = position as u64 + 1;
    let seed = mix(plan.seed ^ mix(stamp));
    let order = Order::new(OrderSpec {
        blocks: file.total_bytes() / plan.block_bytes,
        seed,
        random: plan.random(),
        // The null variant reads nothing, so it warms no block.
        endless: !plan.once
            && (file.cache != Cache::Cold
                || plan.forgets(file.total_bytes())
                || side(variant.name()) == Side::Null),
        workers: depth,
    });
    let spec = RunSpec {
        job,
        order,
        contents: file.contents,
        write_percent: plan.write_percent,
        runtime: plan.runtime,
        once: plan.once,
        seed,
        stamp,
    };
    let hits = || file.limit.as_ref().and_then(Limit::hits);
    let before = hits();
    match how(variant, spec) {
        Ok(_)
            if file.cache == Cache::Full
                && side(variant.name()) != Side::Null
                && hits() == before =>
        {
            done(Outcome::NotPrepared {
                reason: cache::NOT_FULL.into(),
            })
        }
        Ok(ended) => done(judge(plan, file, ended, resident, stamp)?),
        Err(RunFailure::Variant(Failure::Unavailable(reason))) => {
            done(Outcome::Unavailable { reason })
        }
        Err(RunFailure::Variant(Failure::Failed(reason))) => done(Outcome::Failed {
            reason,
            sample: None,
        }),
        Err(RunFailure::Abandoned(reason)) => Ok(Done {
            outcome: Outcome::Interrupted { reason },
            hangs: true,
        }),
        Err(RunFailure::Hangs(reason)) => Ok(Done {
            outcome: Outcome::Failed {
                reason,
                sample: None,
            },
            hangs: true,
        }),
    }
}

/// Returns the reason for which `variant` cannot run `job`.
fn unfit(variant: &AnyVariant, job: &Job) -> Option<String> {
    if !job.paths.is_empty() && !variant.opens_files() {
        return Some("it reads files that are open, and this load opens them".into());
    }
    variant.unfit(job)
}

fn job(plan: &Plan, file: &TestFile, depth: usize) -> Job {
    Job {
        files: file.handles(),
        direct_files: file.direct_handles(),
        paths: file.paths(),
        whole: plan.whole,
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
    }
}

/// Checks the samples again, and decides whether the run counts.
fn judge(
    plan: &Plan,
    file: &TestFile,
    ended: RunOutcome,
    resident: f64,
    stamp: u64,
) -> Result<Outcome, Fault> {
    let again = check_afterwards(plan, file, &ended, stamp)?;
    let first_failure = ended
        .tally
        .first_failure
        .clone()
        .or_else(|| again.first_wrong.clone());
    let mut sample = Box::new(sample(plan, &ended, &again, resident));
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
    ended: &RunOutcome,
    stamp: u64,
) -> Result<Afterwards, Fault> {
    if plan.writes() {
        // Flush the written data, so that the check reads it from the device.
        for one in file.buffered.iter() {
            fdatasync(one).map_err(|error| {
                Fault::failed(format!("flushing the file after a run: {error}"))
            })?;
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
    .map_err(|error| Fault::failed(format!("reading the file again after a run: {error}")))
}

fn sample(plan: &Plan, ended: &RunOutcome, again: &Afterwards, resident_before: f64) -> Sample {
    let tally = &ended.tally;
    let seconds = ended.measured.as_secs_f64();
    let ops_per_second = if seconds > 0.0 {
        tally.measured as f64 / seconds
    } else {
        0.0
    };
    let at = |quantile: f64| tally.latency.value_at_quantile(quantile);
    Sample {
        seconds,
        ops: tally.measured,
        ops_per_second,
        megabytes_per_second: ops_per_second * plan.block_bytes as f64 / 1e6,
        latency_ns: Latency {
            mean: tally.latency.mean(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            max: tally.latency.max(),
        },
        cpu_us_per_op: ended.cpu_ns_per_op / 1000.0,
        calls_per_op: ended
            .finished
            .calls
            .map(|calls| calls as f64 / tally.completions.max(1) as f64),
        peak_rss_bytes: ended.peak_rss_bytes,
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
        others_busy: ended.others_busy,
        stolen: ended.stolen,
        note: ended.finished.note.clone(),
        timeline: Timeline::of(
            tally.recorder.clone(),
            ended.measured.as_nanos() as u64,
            ended.calls.clone(),
        ),
    }
}
