//! `annulus bench net`: loads a running server, or starts echo or HTTP servers and compares them under the same load.
//!
//! A cell is a number of connections and a size. Each repeat of a cell runs all variants in shuffled order. Each server
//! is started for its run and stopped after it.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use annulus_baselines::Failure;
use annulus_baselines::net::load;

use crate::args::NetArgs;
use crate::bench::early;
use crate::bench::machine::{Machine, Usage};
use crate::bench::output::{Destination, Header, print_text};
use crate::bench::progress::Progress;
use crate::fault::Fault;
use crate::report::Pictures;
use crate::signals;
use crate::trace::AtCell;

mod child;
pub(crate) mod json;
mod options;
mod pages;
mod sample;
mod server;
mod stats;
pub(crate) mod table;
mod traced;
mod variants;
mod watch;
mod watching;

pub(crate) use child::{net_child, net_server};
pub(crate) use json::Run;
use json::{LoadFacts, Report, Sample, VariantFacts};
pub(crate) use options::Options;
pub(crate) use pages::find_program;
use server::Server;
use variants::Variant;
use watch::Watch;

/// The exit code for "not supported on this machine".
const EXIT_UNAVAILABLE: u8 = 77;

/// Runs the command.
pub(crate) fn net(args: &NetArgs) -> Result<ExitCode, Fault> {
    signals::listen()?;
    let options = Options::new(&args.protocol)?;
    let output = &args.protocol.load().output;
    let destination = Destination::json(output)?;
    let pictures = Pictures::of(output)?;
    let trace = traced::TraceRequest::new(&options)?;
    if let Some(failure) = load::kernel_refuses() {
        return unavailable(&failure);
    }
    let judge = watching::judge(&options)?;
    let _watching = crate::watching::begin(options.args.watch.metrics)?;
    let started = SystemTime::now();
    let machine = Machine::of(None);
    print_text(&heading(&options, &machine))?;
    let runs = measure(&options)?;
    let interrupted = signals::received();
    let traced = match interrupted {
        Some(_) => Vec::new(),
        None => trace.runs(&options)?,
    };
    let note = interrupted.map(|signal| {
        let planned = options.cells().len() * options.repeats * options.variants.len();
        early::interruption(signal, runs.len(), planned)
    });
    let rows = stats::rows(&options, &runs);
    let report = Report {
        header: Header::new(json::VERSION, started),
        seed: options.seed,
        machine,
        load: LoadFacts::of(&options),
        variants: (options.variants.iter())
            .map(|variant| VariantFacts::of(variant, options.protocol))
            .collect(),
        warnings: table::warnings(&runs),
        verdict: table::verdict(&runs, &rows),
        interrupted: interrupted.is_some(),
        runs,
        rows,
        traced,
    };
    let mut text = table::tables(&report);
    text += &note.map_or(String::new(), |note| format!("note: {note}\n"));
    text += &traced::text(&report.traced);
    // A failed print must not prevent writing the report.
    let printed = print_text(&text);
    if let Some(destination) = &destination {
        destination.write(&report, output.timeline)?;
    }
    pictures.of_network(&report)?;
    printed?;
    let alerts = watching::verdict(&judge, &options, &report.runs);
    if let Some(signal) = interrupted {
        return Ok(ExitCode::from(signal.exit_code()));
    }
    crate::trace::verdict_on(&report.traced)?;
    Ok(match report.runs.iter().any(Run::failed) {
        true => ExitCode::from(1),
        false => alerts.exit_code(ExitCode::SUCCESS),
    })
}

fn unavailable(failure: &Failure) -> Result<ExitCode, Fault> {
    use std::io::Write;
    let text = format!("annulus: the load generator needs io_uring: {failure}");
    // An error here means that standard error is closed. It cannot be reported.
    let _ = writeln!(std::io::stderr(), "{text}");
    Ok(ExitCode::from(EXIT_UNAVAILABLE))
}

fn heading(options: &Options, machine: &Machine) -> String {
    let mut text = format!(
        "{}; {} s × {} repeats; seed {}\n{}\n",
        options.description(),
        options.args.runtime.as_secs_f64(),
        options.repeats,
        options.seed,
        machine.line(),
    );
    for note in &options.notes {
        text += &format!("note: {note}\n");
    }
    text
}

fn measure(options: &Options) -> Result<Vec<Run>, Fault> {
    let cells = options.cells();
    signals::end_in_order();
    let progress = Progress::new(cells.len() * options.repeats * options.variants.len());
    let mut rng = fastrand::Rng::with_seed(options.seed);
    let mut runs = Vec::new();
    'runs: for cell in cells {
        for repeat in 1..=options.repeats {
            let mut order: Vec<&Variant> = options.variants.iter().collect();
            rng.shuffle(&mut order);
            for variant in order {
                if signals::received().is_some() {
                    break 'runs;
                }
                progress.begin(format!(
                    "{}, {repeat}/{}: {}",
                    cell,
                    options.repeats,
                    variant.name()
                ));
                let done = one(options, cell, variant);
                progress.step();
                let cut_short = signals::received().is_some()
                    && !matches!(&done, Ok(sample) if sample.measured_seconds >= options.args.runtime.as_secs_f64());
                let (sample, reason) = match done {
                    Ok(sample) if cut_short => cut(sample, options.args.runtime),
                    Ok(sample) => (Some(sample), None),
                    Err(Fault::Failed(why)) => (None, Some(why)),
                    // Interrupted before the run began.
                    Err(Fault::Interrupted { .. }) => break 'runs,
                    Err(fault) => {
                        progress.clear();
                        return Err(fault);
                    }
                };
                runs.push(Run {
                    cell,
                    repeat,
                    variant: variant.name().to_string(),
                    sample,
                    reason,
                    cut_short,
                });
            }
        }
    }
    progress.clear();
    Ok(runs)
}

/// Returns the sample of an interrupted run, if it is usable, and a note on how much was measured.
fn cut(sample: Sample, runtime: Duration) -> (Option<Sample>, Option<String>) {
    let measured = Duration::from_secs_f64(sample.measured_seconds);
    let enough = early::is_enough(measured, runtime);
    let note = early::cut_short(measured, runtime);
    // A short sample with errors is kept so that the errors are reported. Its faults exclude it from the results.
    let counts = |sample: &Sample| enough || !sample.errors.is_empty();
    (Some(sample).filter(counts), Some(note))
}

/// A variant that is ready for load.
struct Ready {
    /// The server process, if this run started it. Dropping it ends the process.
    server: Option<Server>,
    plan: load::Plan,
    pid: Option<u32>,
}

fn ready(options: &Options, cell: AtCell, variant: &Variant) -> Result<Ready, Fault> {
    let server = match variant {
        Variant::External { .. } => None,
        variant => Some(Server::start(variant, options, cell)?),
    };
    let (target, pid) = match (variant, &server) {
        (Variant::External { target, pid }, _) => (target.clone(), *pid),
        (_, Some(server)) => (server.target.clone(), Some(server.pid())),
        _ => return Err(Fault::failed("a variant without a server")),
    };
    let plan = options.plan(cell, target);
    if options.fill {
        let (target, workload) = (plan.target.clone(), plan.workload.clone());
        let doing = "the server's keys were being given values (--fill)";
        let filled = signals::unless_interrupted(doing, move || load::fill(&target, &workload))?;
        filled.map_err(|error| failed!("--fill: giving the keys their values: {error}"))?;
    }
    Ok(Ready { server, plan, pid })
}

/// One variant in one cell, once.
fn one(options: &Options, cell: AtCell, variant: &Variant) -> Result<Sample, Fault> {
    let Ready {
        server,
        mut plan,
        pid,
    } = ready(options, cell, variant)?;
    let (outcome, watch, used) = loop {
        let mut watch = pid.map(Watch::new);
        let (mut before, mut used) = (Usage::now(), None);
        let outcome = load::run_until(&plan, signals::flag(), &mut |moment, live| {
            match moment {
                load::Moment::Begin => before = Usage::now(),
                load::Moment::End => used = Some(Usage::now().since(&before)),
                load::Moment::After => {}
            }
            if let Some(watch) = &mut watch {
                watch.at(moment, live);
            }
        });
        let outcome = outcome.map_err(|failure| Fault::failed(failure.to_string()))?;
        // All responses arrived outside the measured time.
        let is_late =
            outcome.responses == 0 && outcome.all_responses > 0 && outcome.unanswered == 0;
        match early::longer(plan.runtime) {
            Some(longer) if is_late && signals::received().is_none() => plan.runtime = longer,
            _ => break (outcome, watch, used),
        }
    };
    let gone = server.and_then(|mut server| server.death());
    let mut sample = sample::sample(&plan, &outcome, watch.as_ref(), used);
    sample.faults.extend(gone);
    Ok(sample)
}
