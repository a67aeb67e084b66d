//! One more run of each variant under a tracer: `--syscalls`, `--flamegraph`.
//!
//! Variants run in this process, so the tracer attaches to this process for the length of the variant's run. The
//! trace excludes the preparation of the page cache and the check afterwards. It includes the harness; `null` shows
//! its share.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::json::Outcome;
use super::plan::Plan;
use super::run::AnyVariant;
use super::single;
use super::testfile::TestFile;
use super::variant::{self, Side, side};
use crate::args::FileArgs;
use crate::bench::progress::Progress;
use crate::fault::Fault;
use crate::trace::{AtDepth, Counter, RECORDED, Trace, Traced, files, tables};

/// The first position of these runs; no measured run or warm-up has it.
const FIRST_POSITION: usize = usize::MAX / 2;

/// The requested traces, and the file of each graph.
pub(super) struct TraceRequest {
    trace: Trace,
    graphs: Vec<(usize, String, PathBuf)>,
}

impl TraceRequest {
    pub(super) fn new(
        args: &FileArgs,
        plan: &Plan,
        variants: &[AnyVariant],
    ) -> Result<TraceRequest, Fault> {
        let mut options = args.trace.clone();
        options.syscalls |= args.load_or_plain().syscalls;
        let trace = Trace::new(&options, args.output.replace)?;
        // The base is always measured, but its graph is drawn only if it is named.
        let sets = ["all", "default"];
        let listed = super::requested(args);
        let every = listed.iter().any(|name| sets.contains(&name.trim()));
        let named = |name: &str| every || listed.iter().any(|listed| listed.trim() == name);
        let mut requested = Vec::new();
        for &depth in &plan.depths {
            let names = variants.iter().map(|variant| variant.name());
            let names = names.filter(|name| named(name));
            requested.extend(names.map(|name| (depth, name.to_string())));
        }
        let graphs = files(&trace, requested, |depth, name| format!("{name}-{depth}"))?;
        Ok(TraceRequest { trace, graphs })
    }

    /// Makes the traced runs, if any were requested.
    pub(super) fn runs(
        &self,
        plan: &Plan,
        file: &TestFile,
        variants: &[AnyVariant],
    ) -> Result<Vec<Traced<AtDepth>>, Fault> {
        let mut traced = Vec::new();
        if !self.trace.is_requested() {
            return Ok(traced);
        }
        let mut variants = variants.to_vec();
        let null = |variant: &AnyVariant| side(variant.name()) == Side::Null;
        if self.trace.counts() && !variants.iter().any(null) {
            variants.extend(variant::all().into_iter().filter(null));
        }
        let progress = Progress::new(plan.depths.len() * variants.len());
        for &depth in &plan.depths {
            for variant in &variants {
                let name = variant.name();
                progress.begin(format!("depth {depth}, traced: {name}"));
                let mut run = TracedRun {
                    plan,
                    file,
                    variant,
                    depth,
                    position: FIRST_POSITION + 2 * traced.len(),
                    hangs: false,
                };
                let mut one = Traced::new(name, AtDepth { depth });
                self.one(&mut run, &mut one)?;
                traced.push(one);
                progress.step();
                if run.hangs {
                    progress.clear();
                    return Ok(traced);
                }
            }
        }
        progress.clear();
        Ok(traced)
    }

    fn one(&self, run: &mut TracedRun<'_>, one: &mut Traced<AtDepth>) -> Result<(), Fault> {
        match self.trace.refusal() {
            Some(why) => one.counted(Err(why)),
            None if self.trace.counts() => {
                let start = || Counter::by_name(&[std::process::id()]);
                let short = run.plan.runtime.min(RECORDED);
                one.counted(run.during(short, start, Counter::stop)?);
            }
            None => {}
        }
        let of = |(depth, name, _): &&(usize, String, PathBuf)| {
            *depth == run.depth && name == run.variant.name()
        };
        if let (Some(graphs), Some((depth, name, path))) =
            (&self.trace.graphs, self.graphs.iter().find(of))
            && !run.hangs
        {
            let title = format!("{name}, depth {depth}: {}", run.plan.description());
            let start = || graphs.record(&[std::process::id()]);
            let recorded = run.during(RECORDED, start, |recorder| recorder.end())?;
            one.drawn(
                path,
                recorded.and_then(|(recorded, _)| graphs.draw(recorded, &title, path)),
            );
        }
        Ok(())
    }
}

/// One variant at one depth.
struct TracedRun<'r> {
    plan: &'r Plan,
    file: &'r TestFile,
    variant: &'r AnyVariant,
    depth: usize,
    position: usize,
    hangs: bool,
}

impl TracedRun<'_> {
    /// Makes a run with a tracer attached. Returns the tracer's result and the number of completions.
    fn during<A, B>(
        &mut self,
        runtime: Duration,
        mut start: impl FnMut() -> Result<A, String>,
        mut stop: impl FnMut(A) -> Result<B, String>,
    ) -> Result<Result<(B, u64), String>, Fault> {
        let short = Plan {
            runtime,
            ..self.plan.clone()
        };
        self.position += 1;
        let mut result = Err("the variant did not run".to_string());
        let around = |part| {
            let attached = start();
            let outcome = single::measured(part);
            result = attached.and_then(&mut stop);
            outcome
        };
        let variant = Arc::clone(self.variant);
        let done = single::run_by(
            &short,
            self.file,
            &variant,
            self.depth,
            self.position,
            around,
        )?;
        self.hangs = done.hangs;
        Ok(match done.outcome {
            Outcome::Measured(sample) => result.map(|result| (result, sample.checks.completions)),
            other => Err(other.reason().unwrap_or_default()),
        })
    }
}

pub(super) fn text(traced: &[Traced<AtDepth>]) -> String {
    tables(traced, |at| format!("depth {}", at.depth))
}
