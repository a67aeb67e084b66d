//! The variants of `annulus-baselines`, on the load of this program.

use std::io;
use std::sync::Arc;

use annulus_baselines::{Bench, Completed, Job, Op, Variant, Worker};

use crate::load::{Cache, Load};

struct Harness(Arc<Load>);

struct Reads(Arc<Load>);

impl Worker for Reads {
    fn next(&mut self) -> Option<Op> {
        Some(Op {
            bytes: self.0.block_bytes as u32,
            offset: self.0.next()?,
            ..Op::default()
        })
    }

    fn fill(&self, _op: &Op, _bytes: &mut [u8]) {}

    fn finish<A: Completed + ?Sized>(&mut self, op: Op, result: io::Result<usize>, data: &A) {
        self.0.done(op.offset, result, &data.word(0).to_le_bytes());
    }
}

impl Bench for Harness {
    type Worker = Reads;

    fn worker(&self) -> Reads {
        Reads(Arc::clone(&self.0))
    }

    fn go(&self) {}

    fn done(&self, _worker: Reads) {}
}

/// Runs the variant with this name.
pub fn run(load: &Arc<Load>, name: &str) -> io::Result<()> {
    let file = load.open()?;
    let job = Job {
        size_bytes: file.metadata()?.len(),
        files: Arc::new([file]),
        block_bytes: load.block_bytes,
        depth: load.depth,
        direct: load.cache == Cache::Direct,
        random: true,
        ..Job::default()
    };
    let all = annulus_baselines::variants::<Harness>();
    let variant = all.iter().find(|variant| variant.name() == name);
    let variant: &Arc<dyn Variant<Harness>> =
        variant.ok_or_else(|| io::Error::other(format!("no variant {name}")))?;
    match variant.unfit(&job) {
        Some(reason) => Err(io::Error::other(reason)),
        None => variant
            .run(&job, &Harness(Arc::clone(load)))
            .map(drop)
            .map_err(io::Error::other),
    }
}
