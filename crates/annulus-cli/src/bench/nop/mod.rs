//! `annulus bench nop`: the cost of each layer between a program and an operation, measured with NOPs.
//!
//! Each repeat at each depth runs all layers in a shuffled order, as `bench file` does with variants.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use annulus_baselines::Failure;

use super::json::Destination;
use super::machine::Machine;
use super::progress::Progress;
use super::watching;
use crate::args::NopArgs;
use crate::fault::Fault;
use crate::signals;

mod json;
mod layers;
mod table;
mod traced;

pub(crate) use json::Run;
use json::{LayerFacts, Report};
use layers::{LAYERS, Layer};

/// The largest depth. A NOP needs no device, so a larger depth gives no new information.
const DEPTH_MAX: usize = 4096;
const REPEAT_MAX: usize = 1000;
/// The duration of the unmeasured run of each layer at each depth, which wakes processors and touches memory.
const WARM_UP: Duration = Duration::from_millis(50);

/// Runs the command.
pub(crate) fn nop(args: &NopArgs) -> Result<ExitCode, Fault> {
    check(args)?;
    signals::listen()?;
    let judge = watching::of_nop(&args.watch.alert, args.runtime)?;
    let _watching = crate::watching::begin(args.watch.metrics)?;
    let destination = args
        .json
        .as_deref()
        .map(|path| Destination::new(path, args.replace))
        .transpose()?;
    let mut depths = args.depth.clone();
    depths.sort_unstable();
    depths.dedup();
    let trace = traced::TraceRequest::new(args, &depths)?;
    let started = SystemTime::now();
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let machine = Machine::of(None);
    super::print_text(&heading(args, seed, &machine))?;
    let runs = measure(args, &depths, seed);
    let interrupted = signals::received();
    let traced = match interrupted {
        Some(_) => Vec::new(),
        None => trace.runs(&depths, args.runtime),
    };
    let (made, planned) = (runs.len(), depths.len() * args.repeat * LAYERS.len());
    let rows: Vec<_> = depths
        .iter()
        .flat_map(|&depth| json::rows(&runs, depth, &LAYERS))
        .collect();
    let report = Report {
        version: json::VERSION,
        annulus: env!("CARGO_PKG_VERSION").into(),
        command: super::command(),
        started_unix_s: super::unix_seconds(started),
        seed,
        machine,
        verdict: table::verdict(&runs, &rows, &depths),
        depths,
        runtime_seconds: args.runtime.as_secs_f64(),
        repeats: args.repeat,
        layers: layers(),
        interrupted: interrupted.is_some(),
        runs,
        rows,
        traced,
    };
    let mut text = table::tables(&report);
    if let Some(signal) = interrupted {
        text += &format!("note: {}\n", super::interruption(signal, made, planned));
    }
    text += &super::traced::text(&report.traced);
    // If printing fails, the JSON is still written.
    let printed = super::print_text(&text);
    if let Some(destination) = &destination {
        destination.write_figures(&report)?;
    }
    printed?;
    let alerts = watching::judge_nop(&judge, &report.runs);
    if let Some(signal) = interrupted {
        return Ok(ExitCode::from(signal.exit_code()));
    }
    super::traced::verdict_on(&report.traced)?;
    Ok(match report.runs.iter().any(|run| run.failed) {
        true => ExitCode::from(1),
        false => alerts.exit_code(ExitCode::SUCCESS),
    })
}

fn heading(args: &NopArgs, seed: u64, machine: &Machine) -> String {
    format!(
        "NOPs through each layer; {} s × {} repeats; seed {seed}\n{}\n",
        args.runtime.as_secs_f64(),
        args.repeat,
        machine.line(),
    )
}

fn layers() -> Vec<LayerFacts> {
    let facts = |layer: &Layer| LayerFacts {
        name: layer.name().into(),
        about: layer.about().into(),
    };
    LAYERS.iter().map(facts).collect()
}

fn check(args: &NopArgs) -> Result<(), Fault> {
    for &depth in &args.depth {
        if depth == 0 || depth > DEPTH_MAX {
            return Err(Fault::usage(format!(
                "--depth {depth}: a depth is from 1 to {DEPTH_MAX}"
            )));
        }
    }
    if args.repeat == 0 || args.repeat > REPEAT_MAX {
        return Err(Fault::usage(format!(
            "--repeat {}: from 1 to {REPEAT_MAX}",
            args.repeat
        )));
    }
    Ok(())
}

fn measure(args: &NopArgs, depths: &[usize], seed: u64) -> Vec<Run> {
    signals::end_in_order();
    let progress = Progress::new(depths.len() * args.repeat * LAYERS.len());
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut runs = Vec::new();
    'runs: for &depth in depths {
        for layer in LAYERS {
            // A failure here appears again in a measured run.
            let _ = layer.run(depth, WARM_UP.min(args.runtime));
        }
        for repeat in 1..=args.repeat {
            let mut order = LAYERS;
            rng.shuffle(&mut order);
            for layer in order {
                if signals::received().is_some() {
                    break 'runs;
                }
                let name = layer.name();
                progress.begin(format!("depth {depth}, {repeat}/{}: {name}", args.repeat));
                runs.push(one(layer, depth, repeat, args.runtime));
                progress.step();
            }
        }
    }
    progress.clear();
    runs
}

fn one(layer: Layer, depth: usize, repeat: usize, runtime: Duration) -> Run {
    let (sample, reason, failed) = match layer.run(depth, runtime) {
        Ok(sample) if signals::received().is_some() && sample.seconds < runtime.as_secs_f64() => {
            let measured = Duration::from_secs_f64(sample.seconds);
            let enough = super::is_enough(measured, runtime);
            let reason = super::cut_short(measured, runtime);
            (Some(sample).filter(|_| enough), Some(reason), false)
        }
        Ok(sample) => (Some(sample), None, false),
        Err(Failure::Unavailable(why)) => (None, Some(format!("not available here: {why}")), false),
        Err(Failure::Failed(why)) => (None, Some(format!("FAILED: {why}")), true),
    };
    Run {
        depth,
        repeat,
        layer: layer.name().into(),
        sample,
        reason,
        failed,
    }
}
