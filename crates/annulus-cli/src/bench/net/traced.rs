//! One more run of each server, looked into while it is under load: `--syscalls`, `--flamegraph`.

use std::path::PathBuf;
use std::time::Duration;

use annulus_baselines::net::load::{self, Live, Moment};

use super::question::{Cell, Question};
use super::variants::Who;
use super::watch::{family, while_answering};
use super::{Ready, ready};
use crate::bench::progress::Progress;
use crate::bench::traced::RECORDED;
use crate::fault::Fault;
use crate::trace::{AtCell, Counter, Traced, tables};

/// Until the load runs evenly; it is looked into after that.
const SETTLING: Duration = Duration::from_millis(100);

/// Which graphs go where.
pub(super) struct TraceRequest {
    graphs: Vec<(Cell, String, PathBuf)>,
}

impl TraceRequest {
    pub(super) fn new(question: &Question) -> Result<TraceRequest, Fault> {
        let Some(graphs) = &question.trace.graphs else {
            return Ok(TraceRequest { graphs: Vec::new() });
        };
        let mut requested = Vec::new();
        for cell in question.cells() {
            let names = question.variants.iter().map(Who::name);
            requested.extend(names.map(|name| (cell, name.to_string())));
        }
        let label = |(cell, name): &(Cell, String)| match cell.size {
            Some(size) if question.sizes.len() > 1 => format!("{name}-{}-{size}", cell.connections),
            _ => format!("{name}-{}", cell.connections),
        };
        let labels: Vec<String> = requested.iter().map(label).collect();
        let files = requested.into_iter().zip(graphs.files(&labels)?);
        Ok(TraceRequest {
            graphs: files
                .map(|((cell, name), file)| (cell, name, file))
                .collect(),
        })
    }

    /// The runs, if any were requested.
    pub(super) fn runs(&self, question: &Question) -> Result<Vec<Traced<AtCell>>, Fault> {
        let mut traced = Vec::new();
        if !question.trace.is_requested() {
            return Ok(traced);
        }
        let cells = question.cells();
        let progress = Progress::new(cells.len() * question.variants.len());
        for cell in cells {
            for who in &question.variants {
                progress.begin(format!("{}, looked into: {}", cell.words(), who.name()));
                traced.push(self.one(question, cell, who));
                progress.step();
            }
        }
        progress.clear();
        Ok(traced)
    }

    fn one(&self, question: &Question, cell: Cell, who: &Who) -> Traced<AtCell> {
        let trace = &question.trace;
        let mut one = Traced::new(
            who.name(),
            AtCell {
                connections: cell.connections,
                size: cell.size,
            },
        );
        match trace.refusal() {
            Some(why) => one.counted(Err(why)),
            None if trace.counts() => {
                one.counted(under_load(question, cell, who, |pids, live| {
                    while_answering(live, trace.count(pids), Counter::stop)
                }));
            }
            None => {}
        }
        let of = |(at, name, _): &&(Cell, String, PathBuf)| *at == cell && name == who.name();
        if let (Some(graphs), Some((_, name, path))) = (&trace.graphs, self.graphs.iter().find(of))
        {
            let recorded = under_load(question, cell, who, |pids, _| {
                let recorder = graphs.record(pids)?;
                std::thread::sleep(RECORDED);
                recorder.end()
            });
            let title = format!("{name}: {}, {}", question.words(), cell.words());
            one.drawn(
                path,
                recorded.and_then(|recorded| graphs.draw(recorded, &title, path)),
            );
        }
        one
    }
}

/// Loads the server once more, and looks while the load is on.
fn under_load<T>(
    question: &Question,
    cell: Cell,
    who: &Who,
    run: impl FnOnce(&[u32], &Live<'_>) -> Result<T, String>,
) -> Result<T, String> {
    let Ready {
        server,
        mut plan,
        pid,
    } = ready(question, cell, who).map_err(|fault| fault.to_string())?;
    let pid = pid.ok_or("not available: --pid PID says which process is the server's")?;
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
        // A server that is stopped at every call may lose its client to a timeout; what was counted is no less true.
        (Ok(_), None) => result,
    }
}

pub(super) fn text(traced: &[Traced<AtCell>]) -> String {
    tables(traced, |cell| {
        let (connections, size) = (cell.connections, cell.size);
        Cell { connections, size }.words()
    })
}
