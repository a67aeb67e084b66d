//! Extra runs for `--syscalls` and `--flamegraph`, which trace each server under load.

use std::path::PathBuf;
use std::time::Duration;

use annulus_baselines::net::load::{self, Live, Moment};

use super::options::Options;
use super::variants::Variant;
use super::watch::{family, while_loaded};
use super::{Ready, ready};
use crate::bench::progress::Progress;
use crate::fault::Fault;
use crate::trace::{AtCell, Counter, RECORDED, Traced, files, tables};

/// The time before tracing starts, so that the load becomes steady.
const SETTLING: Duration = Duration::from_millis(100);

/// The requested flame graphs and their files.
pub(super) struct TraceRequest {
    graphs: Vec<(AtCell, String, PathBuf)>,
}

impl TraceRequest {
    pub(super) fn new(options: &Options) -> Result<TraceRequest, Fault> {
        let mut requested = Vec::new();
        for cell in options.cells() {
            let names = options.variants.iter().map(Variant::name);
            requested.extend(names.map(|name| (cell, name.to_string())));
        }
        let label = |cell: &AtCell, name: &str| match cell.size {
            Some(size) if options.sizes.len() > 1 => format!("{name}-{}-{size}", cell.connections),
            _ => format!("{name}-{}", cell.connections),
        };
        Ok(TraceRequest {
            graphs: files(&options.trace, requested, label)?,
        })
    }

    /// Makes the extra runs, if any are requested.
    pub(super) fn runs(&self, options: &Options) -> Result<Vec<Traced<AtCell>>, Fault> {
        let mut traced = Vec::new();
        if !options.trace.is_requested() {
            return Ok(traced);
        }
        let cells = options.cells();
        let progress = Progress::new(cells.len() * options.variants.len());
        for cell in cells {
            for variant in &options.variants {
                progress.begin(format!("{}, looked into: {}", cell, variant.name()));
                traced.push(self.one(options, cell, variant));
                progress.step();
            }
        }
        progress.clear();
        Ok(traced)
    }

    fn one(&self, options: &Options, cell: AtCell, variant: &Variant) -> Traced<AtCell> {
        let trace = &options.trace;
        let mut one = Traced::new(variant.name(), cell);
        match trace.refusal() {
            Some(why) => one.counted(Err(why)),
            None if trace.counts() => {
                one.counted(under_load(options, cell, variant, |pids, live| {
                    while_loaded(live, Counter::by_name(pids), Counter::stop)
                }));
            }
            None => {}
        }
        let of = |(at, name, _): &&(AtCell, String, PathBuf)| *at == cell && name == variant.name();
        if let (Some(graphs), Some((_, name, path))) = (&trace.graphs, self.graphs.iter().find(of))
        {
            let recorded = under_load(options, cell, variant, |pids, _| {
                let recorder = graphs.record(pids)?;
                std::thread::sleep(RECORDED);
                recorder.end()
            });
            let title = format!("{name}: {}, {}", options.description(), cell);
            one.drawn(
                path,
                recorded.and_then(|recorded| graphs.draw(recorded, &title, path)),
            );
        }
        one
    }
}

/// Loads the server once more and calls `run` while it is under load.
fn under_load<T>(
    options: &Options,
    cell: AtCell,
    variant: &Variant,
    run: impl FnOnce(&[u32], &Live<'_>) -> Result<T, String>,
) -> Result<T, String> {
    let Ready {
        server,
        mut plan,
        pid,
    } = ready(options, cell, variant).map_err(|fault| fault.to_string())?;
    let pid = pid.ok_or("not available: give the server's process with --pid PID")?;
    plan.runtime = SETTLING;
    let (mut run, mut result) = (
        Some(run),
        Err("the load ended before it was looked at".into()),
    );
    let outcome = load::run(&plan, &mut |moment, live| {
        if let Some(run) = run.take_if(|_| moment == Moment::After) {
            result = run(&family(pid), live);
        }
    });
    let gone = server.and_then(|mut server| server.death());
    match (outcome, gone) {
        (Err(failure), _) => Err(failure.to_string()),
        (Ok(_), Some(gone)) => Err(gone),
        // The tracer can slow the server so much that requests time out. The counts are still valid.
        (Ok(_), None) => result,
    }
}

pub(super) fn text(traced: &[Traced<AtCell>]) -> String {
    tables(traced, AtCell::to_string)
}
