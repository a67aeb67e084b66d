//! `annulus bench file`: the order of runs, and the report of their results.
//!
//! At each depth, each repeat runs all variants in a shuffled order, so that a drift of the machine affects all of them
//! alike. All runs use the same file in the same process, and prepare the page cache first.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use crate::args::{Cache, FileArgs};
use crate::bench::early::interruption;
use crate::bench::machine::{Machine, allow_many_open_files};
use crate::bench::output::{Destination, Header, print_text};
use crate::bench::progress::Progress;
use crate::fault::Fault;
use crate::report::Pictures;
use crate::signals;
use crate::trace;
use crate::watching::Judge;

mod cache;
mod check;
pub(crate) mod fio;
pub(crate) mod json;
mod limit;
mod order;
mod plan;
mod run;
mod shared;
mod single;
pub(crate) mod stats;
pub(crate) mod table;
mod tally;
mod testfile;
#[cfg(test)]
mod tests;
mod traced;
pub(crate) mod variant;
mod verdict;
mod verify;
mod watching;
mod work;
mod worker;

use json::{Load, Outcome, Report, Run, VariantFacts};
use limit::Limit;
use plan::Plan;
use run::AnyVariant;
use testfile::TestFile;
use variant::{BASE, Side, side};

/// The size of buffers from which a note reports it.
const MANY_BUFFER_BYTES: u64 = 256 << 20;
/// The length of the warm-up before the runs of a depth.
const WARM_UP: Duration = Duration::from_millis(300);
/// The position of a warm-up in the order of runs; no measured run has it.
const WARM_UP_POSITION: usize = usize::MAX - 1;

/// Runs the command.
pub(crate) fn file(args: &FileArgs) -> Result<ExitCode, Fault> {
    if args.list {
        return print_text(&variant::list()).map(|()| ExitCode::SUCCESS);
    }
    signals::listen()?;
    let _watching = crate::watching::begin(args.watch.metrics)?;
    match &args.job.job_file {
        Some(job) => fio::job(args, job),
        None => compare(args),
    }
}

fn compare(args: &FileArgs) -> Result<ExitCode, Fault> {
    let plans = Plan::all(args)?;
    let variants = variant::choose(&requested(args))?;
    let cells: Vec<Cell> = (plans.iter())
        .map(|plan| {
            Cell::new(
                &args.for_one_of(plans.len(), plan.cache.word()),
                plan,
                &variants,
            )
        })
        .collect::<Result<_, Fault>>()?;
    let first = &plans[0];
    allow_many_open_files();
    let limit = first.memory_bytes.map(Limit::make).transpose()?;
    let mut file = TestFile::open(first)?;
    file.limit = limit;
    for plan in &plans {
        cache::check_fits(plan, &file)?;
    }
    let mut worst = ExitCode::SUCCESS;
    for (nth, cell) in cells.iter().enumerate() {
        if nth > 0 {
            file.cache = cell.plan.cache;
            print_text("\n")?;
        }
        let code = cell.compare(&file, &variants)?;
        if worst == ExitCode::SUCCESS {
            worst = code;
        }
        if signals::received().is_some() {
            break;
        }
    }
    Ok(worst)
}

/// A comparison with one state of the page cache.
struct Cell<'c> {
    plan: &'c Plan,
    judge: Judge,
    destination: Option<Destination>,
    pictures: Pictures,
    timeline: bool,
    trace: traced::TraceRequest,
}

impl Cell<'_> {
    fn new<'c>(
        args: &FileArgs,
        plan: &'c Plan,
        variants: &[AnyVariant],
    ) -> Result<Cell<'c>, Fault> {
        Ok(Cell {
            plan,
            judge: watching::judge(&args.watch.alert, plan)?,
            destination: Destination::json(&args.output)?,
            pictures: Pictures::of(&args.output)?,
            timeline: args.output.timeline,
            trace: traced::TraceRequest::new(args, plan, variants)?,
        })
    }

    fn compare(&self, file: &TestFile, variants: &[AnyVariant]) -> Result<ExitCode, Fault> {
        let (plan, limit) = (self.plan, file.limit.as_ref());
        let started = SystemTime::now();
        let mut notes = file.notes.clone();
        add_notes(plan, limit, file, &mut notes);
        let machine = Machine::of(Some(&file.buffered[0]));
        print_text(&heading(plan, file, &notes, &machine))?;
        if let Some(limit) = limit {
            limit.enter()?;
        }
        let (runs, hung) = measure(plan, file, variants)?;
        let interrupted = signals::received();
        let traced = match hung || interrupted.is_some() {
            true => Vec::new(),
            false => self.trace.runs(plan, file, variants)?,
        };
        let mut report = report(plan, file, machine, variants, runs, started);
        report.traced = traced;
        let peak = limit.and_then(Limit::peak_note);
        // Writing and printing the report must not count towards the limit.
        limit.inspect(|limit| limit.leave());
        let planned = plan.depths.len() * plan.repeat * variants.len();
        let ended = interrupted.map(|signal| interruption(signal, report.runs.len(), planned));
        report.interrupted = interrupted.is_some();
        let later: Vec<String> = peak.into_iter().chain(ended).collect();
        report.notes = notes.into_iter().chain(later.iter().cloned()).collect();
        let mut text = summary(plan, &report);
        for note in later {
            text += &format!("note: {note}\n");
        }
        text += &traced::text(&report.traced);
        // Keep the error of printing, and write the files first.
        let printed = print_text(&text);
        if let Some(destination) = &self.destination {
            destination.write(&report, self.timeline)?;
        }
        self.pictures.of_files(&report)?;
        printed?;
        let alerts = watching::verdict(&self.judge, &report.runs);
        match interrupted {
            Some(signal) => Ok(ExitCode::from(signal.exit_code())),
            None => {
                trace::verdict_on(&report.traced)?;
                verdict_on(&report, hung).map(|code| alerts.exit_code(code))
            }
        }
    }
}

/// Returns the names of the requested variants, or those of the load.
fn requested(args: &FileArgs) -> Vec<String> {
    if !args.variants.is_empty() {
        return args.variants.clone();
    }
    let names = args.load_or_plain().variants.iter();
    names.map(|name| name.to_string()).collect()
}

/// Returns the exit code of a completed comparison.
fn verdict_on(report: &Report, hung: bool) -> Result<ExitCode, Fault> {
    if hung {
        return Err(Fault::failed(
            "a variant hangs, so the variants after it were not measured",
        ));
    }
    if report
        .runs
        .iter()
        .any(|run| matches!(run.outcome, Outcome::Failed { .. }))
    {
        return Ok(ExitCode::from(1));
    }
    let measured =
        |run: &Run| matches!(run.outcome, Outcome::Measured(_)) && side(&run.variant) != Side::Null;
    if !report.runs.iter().any(measured) {
        return Err(Fault::failed(
            "nothing was measured; the table gives the reasons",
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Adds notes on a memory limit and on large buffers to the heading.
fn add_notes(plan: &Plan, limit: Option<&Limit>, file: &TestFile, notes: &mut Vec<String>) {
    let buffers = plan.depth_max() as u64 * plan.block_bytes;
    if buffers >= MANY_BUFFER_BYTES {
        notes.push(format!(
            "{} operations of {} bytes: {buffers} bytes of buffers",
            plan.depth_max(),
            plan.block_bytes
        ));
    }
    let Some(limit) = limit else { return };
    notes.push(limit.note());
    if file.cache == Cache::Cold && plan.forgets(file.total_bytes()) {
        notes.push(
            "the data does not fit into that memory: a run that has used every block starts another pass".into(),
        );
    } else if file.cache == Cache::Cold {
        notes.push(format!(
            "the data ({} bytes) is less than twice the memory limit: a run ends once every block has been used",
            file.total_bytes()
        ));
    }
}

/// Makes all runs in order. Returns `true` if a variant hung and the remaining runs were skipped.
fn measure(
    plan: &Plan,
    file: &TestFile,
    variants: &[AnyVariant],
) -> Result<(Vec<Run>, bool), Fault> {
    signals::end_in_order();
    let progress = Progress::new(plan.depths.len() * plan.repeat * variants.len());
    let mut rng = fastrand::Rng::with_seed(plan.seed);
    let mut runs: Vec<Run> = Vec::new();
    'runs: for &depth in &plan.depths {
        warm_up(plan, file, variants, depth)?;
        for repeat in 1..=plan.repeat {
            let mut order: Vec<&AnyVariant> = variants.iter().collect();
            rng.shuffle(&mut order);
            for variant in order {
                if signals::received().is_some() {
                    break 'runs;
                }
                let name = variant.name();
                progress.begin(format!("depth {depth}, {repeat}/{}: {name}", plan.repeat));
                let position = runs.len();
                let done = match single::run(plan, file, variant, depth, position) {
                    // Interrupted before it started.
                    Err(Fault::Interrupted { .. }) => break 'runs,
                    done => done?,
                };
                runs.push(Run {
                    position,
                    depth,
                    repeat,
                    variant: name.to_string(),
                    outcome: done.outcome,
                });
                progress.step();
                if done.hangs {
                    progress.clear();
                    return Ok((runs, true));
                }
            }
        }
    }
    progress.clear();
    Ok((runs, false))
}

/// Makes an unmeasured run of the base. After idling, disks and virtual machines are slow for a while, which would
/// slow the first variant.
fn warm_up(
    plan: &Plan,
    file: &TestFile,
    variants: &[AnyVariant],
    depth: usize,
) -> Result<(), Fault> {
    let short = Plan {
        runtime: plan.runtime.min(WARM_UP),
        ..plan.clone()
    };
    match variants.iter().find(|variant| variant.name() == BASE) {
        // A lasting failure occurs again in a measured run.
        Some(base) => match single::run(&short, file, base, depth, WARM_UP_POSITION) {
            Ok(_) | Err(Fault::Interrupted { .. }) => Ok(()),
            Err(fault) => Err(fault),
        },
        None => Ok(()),
    }
}

fn heading(plan: &Plan, file: &TestFile, notes: &[String], machine: &Machine) -> String {
    let mut text = format!(
        "{} {}, blocks of {} bytes, {}; {} s × {} repeats; seed {}\n{}\n",
        plan.description(),
        file.cache.label(),
        plan.block_bytes,
        file.description,
        plan.runtime.as_secs_f64(),
        plan.repeat,
        plan.seed,
        machine.line(),
    );
    for note in notes {
        text += &format!("note: {note}\n");
    }
    text
}

fn summary(plan: &Plan, report: &Report) -> String {
    let mut text = String::new();
    for &depth in &plan.depths {
        let rows: Vec<_> = (report.rows.iter())
            .filter(|row| row.place.depth == depth)
            .collect();
        if !rows.is_empty() {
            let base = rows.iter().find_map(|row| row.base.as_deref());
            let base = base.map_or(String::new(), |name| format!("; base: {name}"));
            text += &format!(
                "\ndepth {depth} (latency in µs{base})\n{}",
                table::table(&table::OF_DEPTH, &rows, |row| row.variant.clone())
            );
        }
    }
    text.push('\n');
    text += &report.checks_line();
    for warning in &report.warnings {
        text += &format!("warning: {warning}\n");
    }
    text += &report.verdict;
    text.push('\n');
    text
}

fn report(
    plan: &Plan,
    file: &TestFile,
    machine: Machine,
    variants: &[AnyVariant],
    runs: Vec<Run>,
    started: SystemTime,
) -> Report {
    let rows: Vec<_> = plan
        .depths
        .iter()
        .flat_map(|&depth| stats::rows(&runs, depth))
        .collect();
    Report {
        header: Header::new(json::VERSION, started),
        seed: plan.seed,
        machine,
        load: load(plan, file),
        variants: variants
            .iter()
            .map(|variant| VariantFacts {
                name: variant.name().into(),
                side: side(variant.name()),
                about: variant.about().into(),
            })
            .collect(),
        warnings: verdict::warnings(plan, &runs, &rows),
        verdict: verdict::verdict(&runs, &rows, &plan.depths),
        interrupted: false,
        notes: Vec::new(),
        runs,
        rows,
        traced: Vec::new(),
    }
}

fn load(plan: &Plan, file: &TestFile) -> Load {
    Load {
        rw: plan.description(),
        write_percent: plan.write_percent,
        block_bytes: plan.block_bytes,
        offset_bytes: file.offset_bytes,
        size_bytes: file.total_bytes(),
        files: file.count(),
        cache: file.cache.label().into(),
        file: file.description.clone(),
        contents_known: file.contents != check::Contents::Unknown,
        depths: plan.depths.clone(),
        threads: plan.threads,
        drivers: plan.drivers,
        name: (!plan.load.name.is_empty()).then(|| plan.load.name.into()),
        durable: plan.durable,
        memory_limit_bytes: plan.memory_bytes,
        runtime_seconds: plan.runtime.as_secs_f64(),
        repeats: plan.repeat,
    }
}
