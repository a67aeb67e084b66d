//! `annulus bench file --job`: runs an unmodified fio job file, and the same jobs through Annulus.
//!
//! The implementation follows fio's manual. docs/reference/job-files.md lists the keys and the differences from fio.
//! A pass runs the whole file once with one variant. Passes are interleaved and shuffled like the runs of
//! `bench file`.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use annulus_baselines::Failure;

use crate::args::FileArgs;
use crate::bench::disturbance::{self, RunShares};
use crate::bench::machine::{Machine, Usage, allow_many_open_files};
use crate::bench::output::{Destination, Header, print_text};
use crate::bench::progress::Progress;
use crate::fault::Fault;
use crate::report::Pictures;

mod external;
mod files;
mod keys;
mod options;
mod parse;
mod pass;
mod plan;
pub(crate) mod report;
pub(crate) mod table;
#[cfg(test)]
mod tests;
mod unused_keys;
mod value;

use external::External;
use files::Files;
use parse::Complaint;
use pass::{JobOutcome, Who};
use plan::Plan;
use report::{FIO, JobFacts, OWN, Report, Run, Sample};

/// The largest job file. Real ones are about a page long.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Runs the command.
pub(super) fn job(args: &FileArgs, path: &Path) -> Result<ExitCode, Fault> {
    let bytes = read(path)?;
    let plan = plan::plan(&bytes, &|name| std::env::var(name).ok())
        .map_err(|list| refused(path, &list))?;
    print_text(&heading(args, path, &plan))?;
    if args.job.parse_only {
        return Ok(ExitCode::SUCCESS);
    }
    let pictures = Pictures::of(&args.output)?;
    let destination = Destination::json(&args.output)?;
    let external = (args.job.with_fio)
        .then(|| External::new(path, &bytes, &plan))
        .transpose()?;
    let started = SystemTime::now();
    allow_many_open_files();
    let files = Files::prepare(&plan, args.job.keep_files, args.overwrite)?;
    let machine = machine(&files);
    print_text(&format!("{}\n", machine.line()))?;
    for note in files
        .notes
        .iter()
        .chain(external.iter().flat_map(|fio| &fio.notes))
    {
        print_text(&format!("note: {note}\n"))?;
    }
    let runs = measure(args, &plan, &files, external.as_ref())?;
    let variants = variants(external.as_ref());
    let warned = plan.warnings.iter().map(Complaint::to_string);
    let disturbed = disturbed(&runs, args.repeat);
    let report = Report {
        header: Header::new(report::VERSION, started),
        machine,
        job_file: String::from_utf8_lossy(&bytes).into_owned(),
        repeats: args.repeat,
        jobs: facts(&plan, &files),
        fio_version: external.as_ref().map(|fio| fio.version.clone()),
        rows: report::rows(&plan.jobs, &runs, &variants),
        runs,
        warnings: warned.chain(disturbed.clone()).collect(),
        notes: files.notes.clone(),
    };
    let checks = checks(&report.runs);
    let table = table::table(&report.rows);
    let warning = disturbed.map_or_else(String::new, |text| format!("warning: {text}\n"));
    print_text(&format!(
        "\n(latency and CPU in µs)\n{table}{warning}{checks}"
    ))?;
    if let Some(destination) = &destination {
        destination.write_figures(&report)?;
    }
    pictures.of_job(&report, &checks)?;
    Ok(match report.runs.iter().any(|run| run.failed) {
        true => ExitCode::from(1),
        false => ExitCode::SUCCESS,
    })
}

fn read(path: &Path) -> Result<Vec<u8>, Fault> {
    let shown = path.display();
    let wrong = |error: std::io::Error| usage!("cannot read the job file {shown}: {error}");
    let meta = std::fs::metadata(path).map_err(wrong)?;
    if meta.is_dir() {
        return Err(usage!("--job {shown} is a directory; name a job file"));
    }
    if meta.len() > FILE_BYTES_MAX {
        return Err(usage!(
            "--job {shown} has {} bytes; a job file has at most {FILE_BYTES_MAX}",
            meta.len()
        ));
    }
    std::fs::read(path).map_err(wrong)
}

/// Returns a fault with one line per complaint about the job file.
fn refused(path: &Path, list: &[Complaint]) -> Fault {
    let lines: Vec<String> = list
        .iter()
        .map(|one| format!("{}: {one}", path.display()))
        .collect();
    Fault::usage(lines.join("\nannulus: "))
}

fn heading(args: &FileArgs, path: &Path, plan: &Plan) -> String {
    let mut text = format!(
        "{}: jobs: {}, stages: {}, repeats: {}\n",
        path.display(),
        plan.jobs.len(),
        plan.stages.len(),
        args.repeat
    );
    for job in &plan.jobs {
        let options = &job.options;
        text += &format!(
            "  [{}] {} {}, blocks of {}, {}, depth {} × {} clones\n",
            job.name,
            options.engine_name,
            rw(options),
            lengths(options),
            if options.direct { "direct" } else { "buffered" },
            options.iodepth,
            options.numjobs,
        );
    }
    for warning in &plan.warnings {
        text += &format!("warning: {}: {warning}\n", path.display());
    }
    text
}

fn lengths(options: &options::Options) -> String {
    match options.uniform() {
        Some(bytes) => format!("{bytes} bytes"),
        None => format!(
            "{} to {} bytes",
            options.block_least(),
            options.block_most()
        ),
    }
}

fn rw(options: &options::Options) -> String {
    let random = if options.random { "rand" } else { "" };
    match options.kind {
        options::Kind::Read => format!("{random}read"),
        options::Kind::Write => format!("{random}write"),
        options::Kind::Mixed => format!("{random}rw ({} % reads)", options.read_percent),
    }
}

fn machine(files: &Files) -> Machine {
    let first = files
        .clones
        .iter()
        .flatten()
        .flat_map(|clone_files| &clone_files.paths)
        .next();
    Machine::of(
        first
            .and_then(|path| std::fs::File::open(path).ok())
            .as_ref(),
    )
}

fn facts(plan: &Plan, files: &Files) -> Vec<JobFacts> {
    let stage_of = |index: usize| plan.stages.iter().position(|stage| stage.contains(&index));
    let jobs = plan.jobs.iter().enumerate();
    jobs.map(|(index, job)| {
        let clones = &files.clones[index];
        let mut paths: Vec<String> = (clones.iter())
            .flat_map(|clone_files| &clone_files.paths)
            .map(|path| path.display().to_string())
            .collect();
        paths.dedup();
        JobFacts {
            name: job.name.clone(),
            line: job.line,
            stage: stage_of(index).unwrap_or(0),
            engine: job.options.engine_name.clone(),
            rw: rw(&job.options),
            iodepth: job.options.iodepth,
            numjobs: job.options.numjobs,
            file_bytes: clones.first().map_or(0, |clone_files| clone_files.bytes),
            files: paths,
        }
    })
    .collect()
}

fn variants(external: Option<&External>) -> Vec<&'static str> {
    let mut list = vec![OWN, "annulus"];
    list.extend(external.map(|_| FIO));
    list
}

/// Runs all passes, in a shuffled order per repeat.
fn measure(
    args: &FileArgs,
    plan: &Plan,
    files: &Files,
    external: Option<&External>,
) -> Result<Vec<Run>, Fault> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut order = variants(external);
    let progress = Progress::new(args.repeat * order.len());
    let mut runs = Vec::new();
    let mut position = 0;
    for repeat in 1..=args.repeat {
        rng.shuffle(&mut order);
        for &variant in &order {
            progress.begin(format!("{repeat}/{}: {variant}", args.repeat));
            let at = At {
                repeat,
                position,
                variant,
            };
            position += 1;
            let (usage, began) = (Usage::now(), Instant::now());
            let first = runs.len();
            if let (FIO, Some(fio)) = (variant, external) {
                files.renew()?;
                runs.extend(at.runs_of_fio(plan, fio.pass(plan)?));
            } else {
                let who = if variant == OWN {
                    Who::Job
                } else {
                    Who::Annulus
                };
                let outcomes = pass::pass(plan, files, who, seed)?;
                runs.extend(at.runs(plan, files, &outcomes));
            }
            let (others_busy, stolen) = Usage::now()
                .since(&usage)
                .shares(began.elapsed().as_nanos().max(1) as f64);
            for run in &mut runs[first..] {
                (run.others_busy, run.stolen) = (others_busy, stolen);
            }
            progress.step();
        }
    }
    progress.clear();
    Ok(runs)
}

/// The position of a pass.
struct At<'a> {
    repeat: usize,
    position: usize,
    variant: &'a str,
}

impl At<'_> {
    fn run(&self, plan: &Plan, index: usize) -> Run {
        Run {
            repeat: self.repeat,
            position: self.position,
            variant: self.variant.into(),
            job: plan.jobs[index].name.clone(),
            job_index: index,
            others_busy: 0.0,
            stolen: 0.0,
            sample: None,
            reason: None,
            failed: false,
        }
    }

    fn runs(&self, plan: &Plan, files: &Files, outcomes: &[JobOutcome]) -> Vec<Run> {
        let jobs = outcomes.iter().enumerate();
        jobs.map(|(index, outcome)| {
            let mut run = self.run(plan, index);
            let used = files.clones[index].iter();
            let used = used
                .map(|clone_files| clone_files.bytes * clone_files.paths.len() as u64)
                .sum();
            let sample = Sample::of(&plan.jobs[index], outcome, used);
            if let Some(failure) = &outcome.failure {
                run.failed = matches!(failure, Failure::Failed(_));
                run.reason = Some(match run.failed {
                    true => format!("FAILED: {failure}"),
                    false => format!("not available here: {failure}"),
                });
                return run;
            }
            if sample.wrong + sample.errors > 0 {
                let own = outcome.tally.first_failure.as_ref();
                let back = || outcome.read_back.as_ref()?.0.first_failure.as_ref();
                let text = own.or_else(back).cloned().unwrap_or_default();
                let count = sample.wrong + sample.errors;
                run.failed = true;
                run.reason = Some(format!(
                    "FAILED: {count} wrong results or errors; the first: {text}"
                ));
            } else if sample.read.is_none() && sample.write.is_none() {
                run.failed = true;
                run.reason = Some("FAILED: no operation completed within the measured time".into());
            }
            run.sample = Some(sample);
            run
        })
        .collect()
    }

    fn runs_of_fio(&self, plan: &Plan, reports: Vec<external::FioReport>) -> Vec<Run> {
        let reports = reports.into_iter().enumerate();
        reports
            .map(|(index, report)| {
                let mut run = self.run(plan, index);
                match report {
                    Ok(sample) => run.sample = Some(sample),
                    Err(reason) => run.reason = Some(reason),
                }
                run
            })
            .collect()
    }
}

/// Returns the warning about disturbed passes.
fn disturbed(runs: &[Run], repeats: usize) -> Option<String> {
    let passes = runs.iter().filter(|run| run.job_index == 0);
    let shares: Vec<RunShares> = passes
        .map(|run| RunShares {
            cell: "all jobs".into(),
            repeat: run.repeat,
            variant: run.variant.clone(),
            others_busy: run.others_busy,
            stolen: run.stolen,
        })
        .collect();
    let remedy = format!("--repeat {}", repeats * 3);
    disturbance::warning(&shares, &remedy)
}

/// Returns a summary of the checks in all runs except fio's.
fn checks(runs: &[Run]) -> String {
    let samples = || {
        runs.iter()
            .filter(|run| run.variant != FIO)
            .filter_map(|run| run.sample.as_ref())
    };
    let sides = samples()
        .flat_map(|sample| [&sample.read, &sample.write])
        .flatten();
    let completions: u64 = sides.map(|side| side.ops).sum();
    let verified: u64 = samples().map(|sample| sample.verified).sum();
    let wrong: u64 = samples().map(|sample| sample.wrong + sample.errors).sum();
    let mut text = format!("{completions} results of the right length, {wrong} wrong or refused");
    if verified > 0 {
        text += &format!("; the content of {verified} blocks was checked");
    }
    text + "\n"
}
