//! Random calls on a simulated kernel with all faults, compared with arrays: small pools, guards that are held,
//! forgotten, dropped by other threads and longer than their pool, futures that are dropped at any await, files that
//! are closed.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use annulus::Engine;
use annulus::sim::{Sim, SimConfig, spawn};
use annulus_pool::{Page, PagePool, PoolFile};

use crate::{PAGE, contents};

const TASKS: u64 = 6;
const FILES: u64 = 3;
const FILE_BYTES: u64 = 12 * PAGE as u64 + 700;

/// A task with guards that it holds across awaits.
struct Worker {
    engine: Engine,
    pool: PagePool,
    files: Vec<Option<PoolFile>>,
    arrays: Rc<Vec<Vec<u8>>>,
    guards: Vec<(Page, u64, u64)>,
    rng: fastrand::Rng,
    /// The number of guards that may still be taken, so that frames for reads remain.
    may_hold: Rc<Cell<usize>>,
    batch: usize,
    checked: Rc<Cell<u64>>,
    task: usize,
    calls: Rc<Calls>,
}

/// The current call of each task. Printed if the run fails.
struct Calls {
    pool: PagePool,
    each: RefCell<Vec<String>>,
}

impl Drop for Calls {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{:#?}\n{:?}", self.each.borrow(), self.pool.stats());
        }
    }
}

#[test]
fn random_calls_return_the_bytes_of_the_file_or_an_injected_error() {
    // Alone: each guard that a thread of the process drops evicts in all pools, and the simulation has no such thread.
    let name = "model::random_calls_return_the_bytes_of_the_file_or_an_injected_error";
    annulus_testing::child_process::in_child(name, all_seeds);
}

fn all_seeds() {
    // ANNULUS_SEEDS and ANNULUS_STEPS for long runs.
    let number =
        |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (first, seeds) = (number("ANNULUS_SEED", 0), number("ANNULUS_SEEDS", 12));
    let steps = number("ANNULUS_STEPS", 1200) / TASKS;
    let mut outlived = 0;
    for seed in first..first + seeds {
        let result = std::panic::catch_unwind(|| run(seed, steps));
        outlived += result.unwrap_or_else(|_| panic!("ANNULUS_SEED={seed} ANNULUS_SEEDS=1"));
    }
    assert!(outlived > 0 || seeds < 12, "no guard outlived its pool");
}

/// Returns how many guards outlived their pool.
fn run(seed: u64, steps: u64) -> usize {
    let sim = Sim::new(SimConfig::chaos(seed));
    let arrays: Vec<_> = (0..FILES)
        .map(|file| contents(file, FILE_BYTES as usize))
        .collect();
    for (file, array) in arrays.iter().enumerate() {
        sim.put(format!("/{file}"), array).unwrap();
    }
    let arrays = Rc::new(arrays);
    let checked = Rc::new(Cell::new(0));
    let counted = Rc::clone(&checked);
    let expected = Rc::clone(&arrays);
    let last = sim.run(async move |engine| {
        let frames = [1, 2, 3, 5, 8, 24][seed as usize % 6];
        let pool = crate::pool(&engine, frames);
        let may_hold = Rc::new(Cell::new(frames / 2));
        let calls = Rc::new(Calls {
            pool: pool.clone(),
            each: RefCell::new(vec![String::new(); TASKS as usize]),
        });
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                spawn(
                    Worker {
                        engine: engine.clone(),
                        pool: pool.clone(),
                        files: (0..FILES).map(|_| None).collect(),
                        arrays: Rc::clone(&arrays),
                        guards: Vec::new(),
                        rng: fastrand::Rng::with_seed(seed << 8 | task),
                        may_hold: Rc::clone(&may_hold),
                        batch: (frames / 2).max(1),
                        checked: Rc::clone(&counted),
                        task: task as usize,
                        calls: Rc::clone(&calls),
                    }
                    .work(steps),
                )
            })
            .collect();
        let mut last = Vec::new();
        for task in tasks {
            last.extend(task.await);
        }
        // All files are closed, so every frame is free, but for those of guards that are held or were forgotten.
        let stats = pool.stats();
        let pages: HashSet<_> = last.iter().map(|(_, file, page)| (file, page)).collect();
        assert_eq!(stats.resident, 0, "{stats:?}");
        assert!(
            (pages.len()..=frames / 2).contains(&stats.held),
            "{} pages, {stats:?}",
            pages.len()
        );
        last
    });
    for (guard, number, page) in &last {
        assert!(
            **guard == *page_of(&expected, *number, *page),
            "page {page} of {number}, after the pool"
        );
    }
    let report = sim.report();
    assert_eq!(report.slots_in_use, 0, "a slot leaked");
    assert_eq!(sim.open_descriptors(), 0, "a descriptor leaked");
    assert_eq!((report.metrics.stale, report.metrics.leaked), (0, 0));
    assert!(
        checked.get() > steps,
        "{} pages were compared",
        checked.get()
    );
    last.len()
}

impl Worker {
    /// Makes the calls, and returns the guards that it holds at the end.
    async fn work(mut self, steps: u64) -> Vec<(Page, u64, u64)> {
        for _ in 0..steps {
            let at = self.rng.usize(..FILES as usize);
            let Some(file) = self.open(at).await else {
                continue;
            };
            self.step(&file, at as u64).await;
            if self.rng.u8(..) < 12 {
                self.files[at] = None;
            }
        }
        std::mem::take(&mut self.guards)
    }

    async fn open(&mut self, at: usize) -> Option<PoolFile> {
        if self.files[at].is_none() {
            let open = self.pool.open(format!("/{at}"));
            self.files[at] = check(with_luck(&self.engine, &mut self.rng, open).await?);
        }
        self.files[at].clone()
    }

    async fn step(&mut self, file: &PoolFile, number: u64) {
        let page = self.rng.u64(..file.page_count());
        let offset = self.rng.u64(..FILE_BYTES);
        let bytes = self.rng.u64(1..=(FILE_BYTES - offset).min(3 * PAGE as u64));
        let mut buf = vec![0; bytes as usize];
        let choice = self.rng.u8(..16);
        let held: Vec<_> = self
            .guards
            .iter()
            .map(|(_, number, page)| (number, page))
            .collect();
        let call =
            format!("{choice}: file {number}, page {page}, {bytes} from {offset}; holds {held:?}");
        self.calls.each.borrow_mut()[self.task] = call;
        match choice {
            0..=4 => {
                let wanted = file.page(page);
                if let Some(guard) = with_luck(&self.engine, &mut self.rng, wanted)
                    .await
                    .and_then(check)
                {
                    self.take(guard, number, page);
                }
            }
            5 => {
                if let Some(guard) = file.try_page(page) {
                    self.take(guard, number, page);
                }
            }
            6 => {
                if let Some(same) = file.with(page, |bytes| bytes == self.page(number, page)) {
                    assert!(same, "page {page} of {number}");
                }
            }
            7 | 8 => {
                let wanted: Vec<u64> = (0..self.rng.usize(1..=self.batch))
                    .map(|_| self.rng.u64(..file.page_count()))
                    .collect();
                let pages = file.pages(&wanted);
                let pages = with_luck(&self.engine, &mut self.rng, pages)
                    .await
                    .and_then(check);
                for (guard, page) in pages.into_iter().flatten().zip(wanted) {
                    self.compare(&guard, number, page);
                }
            }
            9 | 10 => {
                let read = file.read_exact_at(&mut buf, offset);
                if with_luck(&self.engine, &mut self.rng, read)
                    .await
                    .and_then(check)
                    .is_some()
                {
                    self.compare_range(&buf, number, offset);
                }
            }
            11 => {
                if file.try_read_exact_at(&mut buf, offset).unwrap() {
                    self.compare_range(&buf, number, offset);
                }
            }
            12 => file.prefetch(offset..offset + bytes),
            13 => file.invalidate(offset..offset + bytes),
            _ => {
                if let Some(guard) = self.guards.pop() {
                    self.release(guard);
                }
            }
        }
    }

    /// Holds a guard, drops it, or forgets it.
    fn take(&mut self, guard: Page, number: u64, page: u64) {
        self.compare(&guard, number, page);
        if self.may_hold.get() > 0 {
            self.may_hold.set(self.may_hold.get() - 1);
            match self.rng.u16(..500) {
                // One that is allowed permanently.
                0 => std::mem::forget(guard),
                _ => self.guards.push((guard, number, page)),
            }
        }
    }

    /// Drops a guard, some of them on another thread.
    fn release(&mut self, (guard, number, page): (Page, u64, u64)) {
        self.compare(&guard, number, page);
        if self.rng.u8(..32) == 0 {
            std::thread::scope(|scope| scope.spawn(|| drop(guard)).join().unwrap());
        }
        self.may_hold.set(self.may_hold.get() + 1);
    }

    fn page(&self, number: u64, page: u64) -> &[u8] {
        page_of(&self.arrays, number, page)
    }

    fn compare(&self, guard: &Page, number: u64, page: u64) {
        assert!(
            **guard == *self.page(number, page),
            "page {page} of file {number}"
        );
        self.checked.set(self.checked.get() + 1);
    }

    fn compare_range(&self, bytes: &[u8], number: u64, offset: u64) {
        let from = offset as usize;
        assert!(*bytes == self.arrays[number as usize][from..from + bytes.len()]);
        self.checked.set(self.checked.get() + 1);
    }
}

fn page_of(arrays: &[Vec<u8>], number: u64, page: u64) -> &[u8] {
    let array = &arrays[number as usize];
    let from = page as usize * PAGE;
    &array[from..array.len().min(from + PAGE)]
}

/// Returns the value, if the simulated kernel injected no error.
fn check<T>(result: io::Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            let text = error.to_string();
            let injected = [
                "os error 5",
                "os error 12",
                "os error 28",
                "Out of memory",
                "os error 11",
            ];
            let is_injected = injected.iter().any(|one| text.contains(one));
            assert!(
                is_injected || error.kind() == ErrorKind::OutOfMemory,
                "{error:?}"
            );
            None
        }
    }
}

/// Awaits the future, or drops it: at once, after the first poll, or after some time.
async fn with_luck<F: Future>(
    engine: &Engine,
    rng: &mut fastrand::Rng,
    future: F,
) -> Option<F::Output> {
    let luck = rng.u8(..12);
    let mut future = pin!(future);
    match luck {
        0 => None,
        1 => {
            poll_fn(|context| match future.as_mut().poll(context) {
                Poll::Ready(output) => Poll::Ready(Some(output)),
                Poll::Pending => Poll::Ready(None),
            })
            .await
        }
        2 => {
            let mut time = engine.sleep(Duration::from_micros(rng.u64(..400)));
            poll_fn(|context| {
                if let Poll::Ready(output) = future.as_mut().poll(context) {
                    return Poll::Ready(Some(output));
                }
                Pin::new(&mut time).poll(context).map(|_| None)
            })
            .await
        }
        _ => Some(future.await),
    }
}
