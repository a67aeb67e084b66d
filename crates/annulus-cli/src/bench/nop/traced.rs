//! An extra traced run of each layer, as in `bench file`.

use std::path::PathBuf;
use std::time::Duration;

use super::layers::{LAYERS, Layer};
use crate::args::NopArgs;
use crate::bench::traced::{RECORDED, files};
use crate::fault::Fault;
use crate::trace::{AtDepth, Counter, Trace, Traced};

pub(super) struct TraceRequest {
    trace: Trace,
    graphs: Vec<(usize, String, PathBuf)>,
}

impl TraceRequest {
    pub(super) fn new(args: &NopArgs, depths: &[usize]) -> Result<TraceRequest, Fault> {
        let trace = Trace::new(&args.trace, args.replace)?;
        let layers = |&depth: &usize| LAYERS.map(|layer| (depth, layer.name().to_string()));
        let graphs = files(
            trace.graphs.as_ref(),
            depths.iter().flat_map(layers).collect(),
        )?;
        Ok(TraceRequest { trace, graphs })
    }

    pub(super) fn runs(&self, depths: &[usize], runtime: Duration) -> Vec<Traced<AtDepth>> {
        let mut traced = Vec::new();
        if self.trace.is_requested() {
            for &depth in depths {
                traced.extend(LAYERS.map(|layer| self.one(layer, depth, runtime)));
            }
        }
        traced
    }

    fn one(&self, layer: Layer, depth: usize, runtime: Duration) -> Traced<AtDepth> {
        let own = [std::process::id()];
        let mut one = Traced::new(layer.name(), AtDepth { depth });
        match self.trace.refusal() {
            Some(why) => one.counted(Err(why)),
            None if self.trace.counts() => {
                let counter = self.trace.count(&own);
                one.counted(during(
                    layer,
                    depth,
                    runtime.min(RECORDED),
                    counter,
                    Counter::stop,
                ));
            }
            None => {}
        }
        let of = |(at, name, _): &&(usize, String, PathBuf)| *at == depth && name == layer.name();
        if let (Some(graphs), Some((_, _, path))) =
            (&self.trace.graphs, self.graphs.iter().find(of))
        {
            let recorder = graphs.record(&own);
            let recorded = during(layer, depth, RECORDED, recorder, |recorder| recorder.end());
            let title = format!("{}, depth {depth}: NOPs", layer.name());
            let drawn = recorded.and_then(|(recorded, _)| graphs.draw(recorded, &title, path));
            one.drawn(path, drawn);
        }
        one
    }
}

/// Runs the layer with a tracer attached. Returns the tracer's result and the number of completed operations.
fn during<A, B>(
    layer: Layer,
    depth: usize,
    runtime: Duration,
    attached: Result<A, String>,
    detach: impl FnOnce(A) -> Result<B, String>,
) -> Result<(B, u64), String> {
    let attached = attached?;
    let sample = layer.run(depth, runtime);
    let result = detach(attached)?;
    sample
        .map(|sample| (result, sample.ops))
        .map_err(|failure| failure.to_string())
}
