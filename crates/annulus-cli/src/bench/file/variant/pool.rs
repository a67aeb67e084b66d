//! Reads of a page pool, in place of the page cache: a task per operation in flight, which reads its page in place.

use std::cell::RefCell;
use std::io;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;

use annulus::Engine;
use annulus_baselines::{
    Bench, Failure, Finished, Job, Op, Variant, WORKERS, Worker, on_owning_threads, run_tasks,
};
use annulus_pool::{Page, PagePool, PoolFile, Stats};
use futures_executor::block_on;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::runtime::Builder;

use super::annulus::Opened;
use super::submit::taken_back;

/// The size of the parts in which a page may be.
const GRAIN_BYTES: usize = 4096;
/// The pages in flight while the pool is filled.
const FILL: usize = 256;

/// The threads that read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Host {
    /// Threads, as many as `--threads`, each of which drives a ring.
    Own,
    /// This many workers of Tokio, unless `--threads` says another number, with a ring on each.
    Tokio(usize),
}

/// A page pool.
#[derive(Clone, Copy)]
pub(crate) struct Pooled {
    name: &'static str,
    about: &'static str,
    host: Host,
}

impl Pooled {
    pub(crate) fn variants() -> [Pooled; 3] {
        [
            Pooled {
                name: "pool",
                about: "page pool of Annulus, a task per operation in flight, the submitting thread drives the ring",
                host: Host::Own,
            },
            Pooled {
                name: "pool-tokio",
                about: "page pool of Annulus on Tokio (multi_thread, 2 workers), a task per operation in flight",
                host: Host::Tokio(WORKERS),
            },
            Pooled {
                name: "pool-tokio-1",
                about: "page pool of Annulus on Tokio (multi_thread, 1 worker), a task per operation in flight",
                host: Host::Tokio(1),
            },
        ]
    }
}

impl<B: Bench> Variant<B> for Pooled {
    fn name(&self) -> &str {
        self.name
    }

    fn about(&self) -> &str {
        self.about
    }

    fn has_own_cache(&self) -> bool {
        true
    }

    fn unfit(&self, job: &Job) -> Option<String> {
        unfit(job)
    }

    fn run(&self, job: &Job, bench: &B) -> Result<Finished, Failure> {
        let threads = job.threads;
        let drivers = (self.host == Host::Own).then_some(1);
        let opened = Opened::new(job, drivers, Engine::builder())?;
        let pages = Arc::new(Pages::new(&opened, job)?);
        opened.shows_calls(bench);
        let before = pages.pool.stats();
        match self.host {
            Host::Own => {
                let depths = job.split_depth(threads.unwrap_or(1));
                let setup = |index: usize| Ok((opened.current_thread_driver()?, depths[index]));
                on_owning_threads(bench, depths.len(), setup, |(own, depth), worker| {
                    Ok((own.block_on(pages.tasks(worker, depth))?, 0))
                })?;
            }
            Host::Tokio(workers) => {
                let runtime = Builder::new_multi_thread()
                    .worker_threads(threads.unwrap_or(workers))
                    .enable_all()
                    .build()
                    .map_err(|error| Failure::failed("starting the Tokio runtime", &error))?;
                let workers = (0..job.depth).map(|_| bench.worker()).collect();
                run_tasks(&runtime, bench, workers, |worker| {
                    task(Arc::clone(&pages), worker)
                })?;
            }
        }
        let after = pages.pool.stats();
        if job.warm && after.evicted == 0 && after.resident < pages.blocks {
            return Err(Failure::Failed(
                "the pool has neither all pages nor was it full".into(),
            ));
        }
        let mut finished = opened.finished(job, threads.unwrap_or(1), self.host == Host::Own);
        let note = finished.note.get_or_insert_default();
        *note += &format!("; {}", summary(&before, &after));
        Ok(finished)
    }
}

/// Returns the reason for which a pool cannot run this job.
pub(super) fn unfit(job: &Job) -> Option<String> {
    if job.writes {
        return Some("a page pool only reads".into());
    }
    if job.direct {
        return Some("a page pool is a cache; use --buffered".into());
    }
    (!job.block_bytes.is_multiple_of(GRAIN_BYTES))
        .then(|| "the pages of a pool are multiples of 4,096 bytes".into())
}

/// Returns the counts of a run.
pub(super) fn summary(before: &Stats, after: &Stats) -> String {
    format!(
        "pool of {} pages: {} hits, {} misses, {} evictions, {} waits for a frame",
        after.frames,
        after.hits - before.hits,
        after.misses - before.misses,
        after.evicted - before.evicted,
        after.starved - before.starved
    )
}

/// A pool whose pages are blocks of the job, and the job's files in it.
pub(super) struct Pages {
    pub(super) pool: PagePool,
    pub(super) files: Vec<PoolFile>,
    page_bytes: u64,
    /// The number of pages that the job uses.
    blocks: usize,
}

impl Pages {
    pub(super) fn new(opened: &Opened, job: &Job) -> Result<Pages, Failure> {
        let pool = PagePool::builder(&opened.target.engine)
            .memory(job.cache_bytes)
            .page_bytes(job.block_bytes)
            .build()
            .map_err(|error| Failure::failed("making the page pool", &error))?;
        let opening = async {
            let mut files = Vec::with_capacity(job.files.len());
            for file in job.files.iter() {
                // By its descriptor, because the tool's files have no names.
                let path = format!("/proc/self/fd/{}", file.as_raw_fd());
                files.push(pool.open(path).await?);
            }
            io::Result::Ok(files)
        };
        let files = block_on(opening)
            .map_err(|error| Failure::failed("opening the files in the page pool", &error))?;
        if files
            .iter()
            .any(|file| file.len() < job.offset_bytes + job.size_bytes)
        {
            let what = "a page pool reads regular files; this has no length, as a device";
            return Err(Failure::Unavailable(what.into()));
        }
        let page_bytes = job.block_bytes as u64;
        let per_file = job.size_bytes / page_bytes;
        let pages = Pages {
            blocks: files.len() * per_file as usize,
            pool,
            files,
            page_bytes,
        };
        if job.warm {
            let first = job.offset_bytes / page_bytes;
            block_on(pages.fill(first, per_file))
                .map_err(|error| Failure::failed("filling the page pool", &error))?;
        }
        Ok(pages)
    }

    /// Reads pages until all are in memory, or the pool is full.
    async fn fill(&self, first: u64, per_file: u64) -> io::Result<()> {
        for file in &self.files {
            let numbers: Vec<u64> = (first..first + per_file).collect();
            for some in numbers.chunks(FILL.min(self.pool.stats().frames)) {
                if self.pool.stats().evicted > 0 {
                    return Ok(());
                }
                file.pages(some).await?;
            }
        }
        Ok(())
    }

    #[inline]
    async fn read(&self, op: &Op) -> io::Result<Page> {
        self.files[op.file as usize]
            .page(op.offset / self.page_bytes)
            .await
    }

    /// Runs the tasks of one thread as one future.
    async fn tasks<L: Worker>(&self, worker: L, depth: usize) -> Result<L, Failure> {
        let worker = Rc::new(RefCell::new(worker));
        let task = |_| {
            let worker = Rc::clone(&worker);
            async move {
                loop {
                    // A separate statement, because the borrow must end before the task waits.
                    let next = worker.borrow_mut().next();
                    let Some(op) = next else { return };
                    let page = self.read(&op).await;
                    finish(&mut *worker.borrow_mut(), op, page);
                }
            }
        };
        let all: FuturesUnordered<_> = (0..depth).map(task).collect();
        all.collect::<()>().await;
        taken_back(worker)
    }
}

async fn task<L: Worker>(pages: Arc<Pages>, mut worker: L) -> L {
    while let Some(op) = worker.next() {
        let page = pages.read(&op).await;
        finish(&mut worker, op, page);
    }
    worker
}

#[inline]
fn finish<L: Worker>(worker: &mut L, op: Op, page: io::Result<Page>) {
    match page {
        Ok(page) => worker.finish(op, Ok(page.len()), &*page),
        Err(error) => worker.finish(op, Err(error), &[][..]),
    }
}
