//! Pages that are in memory: a map of the file beside a page pool.
//!
//! A word of a page costs less than the clock, so one operation reads many pages, far from each other.

use std::io;

use annulus::Engine;
use annulus_baselines::{
    Bench, Completed, Failure, Finished, Job, MappedPages, Op, Variant, Worker, on_owning_threads,
};
use annulus_pool::Stats;
use futures_executor::block_on;

use super::annulus::Opened;
use super::pool::{Pages, summary, unfit};

/// The pages that one operation reads.
pub(crate) const PAGES_PER_OP: usize = 256;
/// One in this number of operations compares the words with the file's tags, which costs as much as reading them.
const COMPARED_EVERY: u64 = 16;
/// The pages of a batch.
const BATCH: usize = 16;

/// The way to read a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// The first word of each page, in place.
    Words,
    /// Words like `Words`, with a guard of the page.
    Guards,
    /// A copy of each page.
    Copies,
    /// The first word of each page, after the processor was asked for all pages of the batch.
    Batches,
}

/// A way to read pages that are in memory, on a thread for each operation in flight.
#[derive(Clone, Copy)]
pub(crate) struct Resident {
    name: &'static str,
    about: &'static str,
    is_pool: bool,
    access: Access,
}

impl Resident {
    pub(crate) fn variants() -> [Resident; 7] {
        [
            ("mmap-words", "a word of each page", Access::Words),
            ("mmap-copies", "a copy of each page", Access::Copies),
            (
                "mmap-batches",
                "a word of each page, 16 prefetched by hand",
                Access::Batches,
            ),
            (
                "pool-with",
                "a word of each page, in a closure",
                Access::Words,
            ),
            (
                "pool-guards",
                "a word of each page, through a guard",
                Access::Guards,
            ),
            ("pool-copies", "a copy of each page", Access::Copies),
            (
                "pool-batches",
                "a word of each page, 16 pages at once",
                Access::Batches,
            ),
        ]
        .map(|(name, about, access)| Resident {
            name,
            about,
            is_pool: name.starts_with("pool"),
            access,
        })
    }
}

impl<B: Bench> Variant<B> for Resident {
    fn name(&self) -> &str {
        self.name
    }

    fn about(&self) -> &str {
        self.about
    }

    fn reads_resident(&self) -> bool {
        true
    }

    fn unfit(&self, job: &Job) -> Option<String> {
        if job.files.len() > 1 {
            return Some("it reads one file".into());
        }
        unfit(job)
    }

    fn run(&self, job: &Job, bench: &B) -> Result<Finished, Failure> {
        if !self.is_pool {
            self.run_on(&Source::Map(MappedPages::new(job)?), job, bench)?;
            return Ok(Finished::default());
        }
        let opened = Opened::new(job, None, Engine::builder())?;
        let source = Source::Pool(Pages::new(&opened, job)?);
        let stats = || match &source {
            Source::Map(_) => Stats::default(),
            Source::Pool(pages) => pages.pool.stats(),
        };
        let before = stats();
        self.run_on(&source, job, bench)?;
        Ok(Finished {
            calls: None,
            note: Some(summary(&before, &stats())),
        })
    }
}

impl Resident {
    fn run_on<B: Bench>(&self, source: &Source, job: &Job, bench: &B) -> Result<(), Failure> {
        let setup = |_| Ok(vec![0; job.block_bytes]);
        on_owning_threads(bench, job.depth, setup, |mut buffer, mut worker| {
            let start = Op {
                offset: job.offset_bytes,
                ..Op::default()
            };
            let tags = worker.ideal_result(&start);
            if tags.word(0) == 0 {
                let what = "the words of this file are not known: leave out the path";
                return Err(Failure::Unavailable(what.into()));
            }
            let (mut ops, mut sum) = (0_u64, 0);
            while let Some(op) = worker.next() {
                let walk = Walk::new(job, &op);
                let is_compared = ops.is_multiple_of(COMPARED_EVERY);
                ops += 1;
                let right = |page, word| {
                    sum ^= word;
                    !is_compared || word == tags.word(page * job.block_bytes)
                };
                let result = match self.read(source, job, walk, &mut buffer, right) {
                    true => Ok(op.bytes as usize),
                    false => Err(io::Error::other(
                        "a page is not in memory, or has a wrong word",
                    )),
                };
                let compared = worker.ideal_result(&op);
                worker.finish(op, result, &compared);
            }
            std::hint::black_box(sum);
            Ok((worker, 0))
        })?;
        Ok(())
    }

    /// Reads the pages of one operation, and returns whether all were in memory and had the right word.
    #[inline]
    fn read(
        &self,
        source: &Source,
        job: &Job,
        mut walk: Walk,
        buffer: &mut [u8],
        mut right: impl FnMut(usize, u64) -> bool,
    ) -> bool {
        let bytes = job.block_bytes;
        let pages = match source {
            Source::Map(map) => {
                return match self.access {
                    Access::Words | Access::Guards => {
                        walk.all(|page| right(page, map.word(page * bytes)))
                    }
                    Access::Copies => walk.all(|page| {
                        map.copy(page * bytes, buffer);
                        right(page, buffer.word(0))
                    }),
                    Access::Batches => walk.batches().all(|batch| {
                        batch.iter().for_each(|page| map.prefetch(page * bytes));
                        batch
                            .iter()
                            .all(|page| right(*page, map.word(page * bytes)))
                    }),
                };
            }
            Source::Pool(pages) => pages,
        };
        let file = &pages.files[0];
        let first = job.offset_bytes / job.block_bytes as u64;
        let number = |page: usize| first + page as u64;
        match self.access {
            Access::Words => walk.all(|page| {
                let word = file.with(number(page), |bytes| bytes.word(0));
                word.is_some_and(|word| right(page, word))
            }),
            Access::Guards => walk.all(|page| {
                let guard = file.try_page(number(page));
                guard.is_some_and(|guard| right(page, guard.word(0)))
            }),
            Access::Copies => walk.all(|page| {
                let at = job.offset_bytes + (page * bytes) as u64;
                let read = file.try_read_exact_at(buffer, at);
                matches!(read, Ok(true)) && right(page, buffer.word(0))
            }),
            Access::Batches => block_on(async {
                for batch in walk.batches() {
                    let Ok(pages) = file.pages(&batch.map(number)).await else {
                        return false;
                    };
                    let mut all = pages.iter().zip(batch);
                    if !all.all(|(guard, page)| right(page, guard.word(0))) {
                        return false;
                    }
                }
                true
            }),
        }
    }
}

/// The memory that is read.
enum Source {
    Map(MappedPages),
    Pool(Pages),
}

/// The pages of one operation, from the start of the job's part: from the operation's page on, in steps of the golden
/// section, so that none is near the one before.
struct Walk {
    page: usize,
    step: usize,
    pages: usize,
    left: usize,
}

impl Walk {
    fn new(job: &Job, op: &Op) -> Walk {
        let pages = job.size_bytes as usize / job.block_bytes;
        Walk {
            page: (op.offset - job.offset_bytes) as usize / job.block_bytes,
            step: (pages as f64 * 0.618_034) as usize,
            pages,
            left: PAGES_PER_OP,
        }
    }

    fn batches(&mut self) -> impl Iterator<Item = [usize; BATCH]> {
        (0..PAGES_PER_OP / BATCH).map(|_| std::array::from_fn(|_| self.next().unwrap_or_default()))
    }
}

impl Iterator for Walk {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let page = self.page;
        self.page += self.step;
        if self.page >= self.pages {
            self.page -= self.pages;
        }
        Some(page)
    }
}
