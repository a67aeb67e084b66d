//! The variant without I/O, which measures the cost of the harness.

use annulus_baselines::{Bench, Failure, Finished, Job, Op, Variant, Worker};

/// Keeps `depth` operations outstanding and completes the oldest with the correct result.
pub(crate) struct Null;

impl<B: Bench> Variant<B> for Null {
    fn name(&self) -> &str {
        "null"
    }

    fn about(&self) -> &str {
        "no I/O at all: what the harness itself costs"
    }

    fn opens_files(&self) -> bool {
        true
    }

    fn run(&self, job: &Job, bench: &B) -> Result<Finished, Failure> {
        let mut worker = bench.worker();
        let mut ops: Vec<Op> = Vec::with_capacity(job.depth);
        bench.go();
        while let Some(op) = (ops.len() < job.depth).then(|| worker.next()).flatten() {
            ops.push(op);
        }
        let mut oldest = 0;
        let mut outstanding = ops.len();
        while outstanding > 0 {
            let op = ops[oldest];
            let data = worker.ideal_result(&op);
            worker.finish(op, Ok(job.block_bytes), &data);
            match worker.next() {
                Some(op) => ops[oldest] = op,
                None => outstanding -= 1,
            }
            oldest = (oldest + 1) % ops.len();
        }
        bench.done(worker);
        Ok(Finished::default())
    }
}
